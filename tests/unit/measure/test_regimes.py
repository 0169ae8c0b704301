import gc

import pytest
import torch

from dippm.errors import ConditionsError
from dippm.measure.protocol import Regime
from dippm.measure.regimes import flags, prepare_step

CPU = torch.device("cpu")


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 4),
    ).eval()  # fmt: skip


def images() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, 8, 8),)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("amp-bf16", torch.bfloat16)],
)
def test_the_result_has_the_precision(precision, dtype):
    module = network()
    with prepare_step(module, images(), Regime(precision), device=CPU) as step:
        assert step().dtype == dtype
    weights = next(module.parameters()).dtype
    assert weights == (torch.float32 if precision.startswith("amp") else dtype)


def test_one_module_serves_many_regimes_one_after_the_other():
    module, inputs = network(), images()
    expected = module(*inputs)
    for regime in (Regime("bf16"), Regime(channels_last=True), Regime(phase="train"), Regime()):
        with prepare_step(module, inputs, regime, device=CPU) as step:
            result = step()
    assert result.dtype == torch.float32
    assert torch.allclose(result, expected, atol=0.1)
    assert not module.training
    assert not torch.is_inference_mode_enabled()


def test_channels_last_moves_weights_and_images_and_plain_moves_them_back():
    module = network()
    with prepare_step(module, images(), Regime(channels_last=True), device=CPU) as step:
        step()
        assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    with prepare_step(module, images(), Regime(), device=CPU):
        assert module[0].weight.is_contiguous()


def test_a_training_step_changes_the_weights_and_leaves_no_gradient():
    module = network()
    before = module[4].weight.clone()
    with prepare_step(module, images(), Regime(phase="train"), device=CPU) as step:
        step()
        assert module.training
    assert not torch.equal(before, module[4].weight)
    assert module[4].weight.grad is None


def test_a_compiled_module_gives_the_same_numbers():
    module, inputs = network(), images()
    expected = module(*inputs)
    with prepare_step(module, inputs, Regime(mode="compiled"), device=CPU) as step:
        assert torch.allclose(step(), expected, atol=1e-4)


def test_switches_of_tf32_are_put_back():
    before = flags()
    with prepare_step(network(), images(), Regime("fp16"), device=CPU):
        pass
    assert flags() == before


def test_a_cpu_has_no_tf32():
    with (
        pytest.raises(ConditionsError, match="tf32"),
        prepare_step(network(), images(), Regime("tf32"), device=CPU),
    ):
        pass


def test_a_model_without_floating_point_results_cannot_be_trained():
    class Argmax(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return (x * self.scale).argmax(1)

    with (
        prepare_step(Argmax(), images(), Regime(phase="train"), device=CPU) as step,
        pytest.raises(ConditionsError, match="nothing to train"),
    ):
        step()


def test_an_operator_without_weights_is_trained_through_its_inputs():
    inputs = (torch.randn(2, 3, 8, 8, requires_grad=True),)
    with prepare_step(torch.nn.Softmax(1), inputs, Regime(phase="train"), device=CPU) as step:
        step()
    with (
        pytest.raises(ConditionsError, match="no parameters"),
        prepare_step(torch.nn.Softmax(1), images(), Regime(phase="train"), device=CPU),
    ):
        pass


def test_gradients_of_inputs_are_computed_if_asked_for_and_only_then():
    seen = []

    class Layer(torch.nn.Linear):
        def forward(self, x):
            x.register_hook(lambda grad: seen.append(grad)) if x.requires_grad else None
            return super().forward(x)

    for wanted in (False, True):
        inputs = (torch.randn(2, 4, requires_grad=wanted),)
        with prepare_step(Layer(4, 4), inputs, Regime("bf16", phase="train"), device=CPU) as step:
            step()
            assert len(seen) == wanted


@pytest.mark.parametrize("regime", [Regime("bf16"), Regime("bf16", channels_last=True)])
def test_inputs_in_half_precision_are_in_memory_once(regime):
    """Held by the caller, as whoever measures holds them."""
    gc.collect()
    alive: list[torch.Tensor] = []

    class Counts(torch.nn.Module):
        def forward(self, x):
            found = (o for o in gc.get_objects() if type(o) is torch.Tensor)
            alive.extend({t.data_ptr(): t for t in found if t.shape == (3, 5, 7, 11)}.values())
            return x

    inputs = (torch.randn(3, 5, 7, 11),)
    with prepare_step(Counts(), inputs, regime, device=CPU) as step:
        step()
    assert [tensor.dtype for tensor in alive] == [torch.bfloat16]
    assert inputs[0].dtype == torch.bfloat16
