"""`dippm.fits`: real modules and example inputs, wherever their tensors are."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import dippm
from dippm.errors import (
    ConditionsError,
    DoesNotFitError,
    HostError,
    InputShapeError,
    UnknownFormatError,
    UnknownNameError,
)
from dippm.model.frontends.torch.sample import sample_of


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Nested(torch.nn.Module):
    """Takes a dictionary, a pair and plain numbers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.names = torch.nn.Embedding(10, 4)

    def forward(self, batch, pair, doubled: bool = False, scale: float = 1.0):
        found = self.layer(batch["x"]) + self.names(batch["ids"]) + pair[0] * pair[1]
        return found * scale if doubled else found


def convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )


def test_the_answer_is_that_of_predict_and_the_largest_batch_is_the_last_that_fits():
    module, x = convolutions(), torch.zeros(64, 3, 64, 64)
    found = dippm.fits(module, x, device="A100", room_mb=4_000)
    told = dippm.predict(module, input="3,64,64", batch=64, device="A100")
    assert (found.peak_mb, found.bound_mb) == (told.memory_mb, told.memory_bound_mb)
    assert found.interval == told.intervals["memory_mb"]
    assert found.parts == told.memory_parts
    assert found.fits
    assert found
    assert found.raise_if_not() is found
    assert found.headroom_mb == 4_000 - found.bound_mb
    largest = found.largest_batch
    for batch, holds in ((largest, True), (largest + 1, False)):
        at = dippm.predict(module, input="3,64,64", batch=batch, device="A100")
        assert (at.memory_bound_mb <= 4_000) is holds
    assert f"largest batch {largest}" in str(found)
    assert found.to_dict()["largest_batch"] == largest
    assert "fits, " in found._repr_html_()


def test_an_optimiser_its_class_or_its_name_asks_about_a_training_step():
    module, x = convolutions(), torch.zeros(8, 3, 32, 32)
    adam = torch.optim.AdamW(module.parameters())
    answers = [dippm.fits(module, x, optimizer=o) for o in (adam, torch.optim.AdamW, "adamw")]
    assert len({answer.peak_mb for answer in answers}) == 1
    weights = answers[0].parts.weights_mb
    assert answers[0].parts.optimizer_mb == pytest.approx(2 * weights)
    assert answers[0].parts.gradients_mb == weights > 0
    plain = dippm.fits(module, x, optimizer=torch.optim.SGD(module.parameters(), 0.1))
    assert any("without" in w or "momentum" in w for w in plain.warnings)
    module[0].requires_grad_(False)
    frozen = dippm.fits(module, x, optimizer=torch.optim.Adam(module.parameters()))
    assert any("parameters are frozen" in warning for warning in frozen.warnings)


def test_neither_module_nor_inputs_are_run_moved_or_changed():
    class Watched(torch.Tensor):
        """A tensor whose content nothing may look at."""

        calls: list = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.calls.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    module = convolutions().train()
    before = {name: (t.data_ptr(), t.device) for name, t in module.state_dict().items()}
    x = torch.zeros(2, 3, 32, 32).as_subclass(Watched)
    Watched.calls.clear()
    dippm.fits(module, x, optimizer="sgd")
    looks = {getattr(func, "__name__", "") for func in Watched.calls}
    assert looks <= {"__get__", "is_complex", "is_floating_point"}
    assert module.training
    assert before == {name: (t.data_ptr(), t.device) for name, t in module.state_dict().items()}
    assert all(parameter.grad is None for parameter in module.parameters())


def test_tensors_are_nested_on_any_device_and_beside_plain_numbers():
    x = {"x": torch.zeros(6, 4, device="meta"), "ids": torch.zeros(6, dtype=torch.int32)}
    pair = (torch.ones(6, 4), torch.ones(1, 4))
    by_place = dippm.fits(Nested(), (x, pair, True, 2.0))
    by_name = dippm.fits(Nested(), {"batch": x, "pair": list(pair), "doubled": True, "scale": 2.0})
    assert by_place.peak_mb == by_name.peak_mb
    assert by_place.batch == by_place.prediction.conditions.batch == 6
    with FakeTensorMode():
        fake = Nested()
        inputs = ({"x": torch.zeros(6, 4), "ids": torch.zeros(6, dtype=torch.int64)}, pair)
    assert dippm.fits(fake, inputs).fits
    with torch.device("meta"):
        meta = Nested()
    assert dippm.fits(meta, inputs, optimizer=torch.optim.Adam).fits


def test_a_record_is_one_argument_with_parts_by_name():
    class OnPair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, pair: Pair):
            return self.layer(pair.left) * pair.right

    module = OnPair()
    module.forward.__func__.__annotations__["pair"] = Pair
    assert dippm.fits(module, Pair(torch.zeros(5, 4), torch.zeros(5, 4))).batch == 5


def test_a_mapping_that_names_no_parameter_is_the_one_argument():
    class OnDictionary(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, batch):
            return self.layer(batch["x"])

    assert dippm.fits(OnDictionary(), {"x": torch.zeros(3, 4)}).batch == 3


def test_the_batch_may_stand_elsewhere_or_be_none():
    layer = torch.nn.TransformerEncoderLayer(16, 2)
    assert dippm.fits(layer, torch.zeros(5, 3, 16), batch_axis=1).batch == 3
    whole = dippm.fits(torch.nn.Linear(8, 4), torch.zeros(5, 8), batch_axis=None)
    assert whole.largest_batch is None
    assert "batch" in whole.absent["largest_batch"]


def test_a_module_whose_work_does_not_scale_is_asked_with_complete_sizes():
    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.layer(x).reshape(12, 2)

    found = dippm.fits(Fixed(), torch.zeros(6, 8))
    assert found.batch == 6
    assert found.prediction.graph.nodes
    assert "does not scale" in found.absent["largest_batch"]


def test_precision_follows_the_parameters():
    half = dippm.fits(convolutions().half(), torch.zeros(2, 3, 32, 32).half())
    assert half.prediction.conditions.precision == "fp16"
    mixed = dippm.fits(convolutions(), torch.zeros(2, 3, 32, 32), precision="amp")
    assert mixed.prediction.conditions.precision == "amp"
    with pytest.raises(ConditionsError, match="float64"):
        dippm.fits(torch.nn.Linear(4, 4).double(), torch.zeros(2, 4).double())


def test_what_does_not_fit_is_refused_with_the_batch_that_would():
    module, x = convolutions(), torch.zeros(4_096, 3, 224, 224, device="meta")
    found = dippm.fits(module, x, optimizer=torch.optim.Adam, device="A100")
    assert found.fits is False
    assert not found
    with pytest.raises(DoesNotFitError, match="training step of Sequential") as refused:
        found.raise_if_not()
    assert f"{found.largest_batch:,}" in refused.value.hint
    none = dippm.fits(module, x, optimizer=torch.optim.Adam, room_mb=100)
    assert none.largest_batch is None
    with pytest.raises(DoesNotFitError) as refused:
        none.raise_if_not()
    assert "GPU with more memory" in refused.value.hint


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ((), "holds no tensor"),
        ("text", "is a str"),
        ((torch.zeros(2, 4), torch.zeros(2)), "has 2 arguments, and forward.. takes 1"),
        ({"input": {3: torch.zeros(2, 4)}}, "has the key 3"),
        (torch.zeros(0, 4), "a size of 0"),
        (torch.zeros(2, 4, dtype=torch.complex64), "complex numbers"),
        (torch.zeros(2, 4).to_sparse(), "layout"),
        (torch.tensor(1.0), "no axis 0|has an axis 0"),
        (torch.zeros(2, 5), ""),
    ],
)
def test_samples_that_are_none_are_refused(sample, said):
    with pytest.raises(InputShapeError, match=said):
        dippm.fits(torch.nn.Linear(4, 4), sample)


def test_a_sample_that_forward_refuses_is_named_as_what_it_takes():
    sample = {"batch": {"x": torch.zeros(2, 3), "ids": torch.zeros(2, dtype=torch.long)}}
    pair = {"pair": (torch.zeros(2, 4), torch.zeros(2, 4))}
    with pytest.raises(InputShapeError, match="does not accept the sample: ") as refused:
        dippm.fits(Nested(), sample | pair)
    assert "Nested takes batch, pair, doubled, scale." in refused.value.hint
    assert "input=" not in refused.value.hint


def test_a_largest_batch_that_is_the_last_that_can_be_asked_about_says_so():
    found = dippm.fits(torch.nn.Linear(4, 4), torch.zeros(2, 4))
    assert found.largest_batch == 1_000_000
    assert found.summary.endswith("largest batch 1,000,000 or more")


def test_a_sample_that_holds_itself_ends():
    held: list = []
    held.append(held)
    with pytest.raises(InputShapeError, match="nested more than"):
        sample_of(torch.nn.Linear(4, 4), (held,))


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"optimizer": torch.optim.RMSprop}, ConditionsError, "RMSprop is not modelled"),
        ({"optimizer": "lion"}, ConditionsError, "lion"),
        ({"optimizer": 3}, ConditionsError, "int is not modelled"),
        ({"device": "A10000"}, UnknownNameError, "A10000"),
        ({"optimizer": ""}, ConditionsError, "unknown optimizer ''"),
        ({"device": torch.device("cuda")}, UnknownNameError, "is a torch.device, not a name"),
        ({"device": None}, UnknownNameError, "NoneType, not a name"),
        ({"mig": 3}, UnknownNameError, "the slice is a int"),
        ({"checkpoint": 5}, UnknownNameError, "the checkpoint is a int"),
        ({"host": object()}, HostError, "not a launch time"),
        ({"host": 10**400}, HostError, "not a launch time"),
        ({"room_mb": -1}, ConditionsError, "room_mb"),
        ({"room_mb": float("nan")}, ConditionsError, "room_mb"),
        ({"batch_axis": 7}, InputShapeError, "axis 7"),
        ({"batch_axis": "0"}, InputShapeError, "batch_axis"),
        ({"precision": "fp12"}, ConditionsError, "fp12"),
    ],
)
def test_conditions_that_are_none_are_refused(asked, error, said):
    with pytest.raises(error, match=said):
        dippm.fits(torch.nn.Linear(4, 4), torch.zeros(2, 4), **asked)


def test_amsgrad_keeps_more_and_is_refused():
    module = torch.nn.Linear(4, 4)
    adam = torch.optim.Adam(module.parameters(), amsgrad=True)
    with pytest.raises(ConditionsError, match="amsgrad"):
        dippm.fits(module, torch.zeros(2, 4), optimizer=adam)


def test_a_file_is_not_a_module():
    with pytest.raises(UnknownFormatError, match="is not a torch"):
        dippm.fits("model.onnx", torch.zeros(2, 4))


def test_a_loss_inside_of_the_model_is_part_of_the_step():
    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 1_000)

        def forward(self, x, labels=None):
            found = self.layer(x)
            return found if labels is None else torch.nn.functional.cross_entropy(found, labels)

    x, labels = torch.zeros(32, 64), torch.zeros(32, dtype=torch.int64)
    inside = dippm.fits(WithLoss(), {"x": x, "labels": labels}, optimizer="adam")
    outside = dippm.fits(WithLoss(), x, optimizer="adam")
    # Outside the result is held as well, beside its likelihoods and two gradients.
    result_mb = 4 * 32 * 1_000 / 2**20
    assert inside.parts.activations_mb + result_mb == pytest.approx(
        outside.parts.activations_mb, rel=0.05
    )
