"""One question: the same options for every verb, and a prediction wherever a model is."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_type_hints

import pytest
import torch

import dippm
from dippm.api import read_graph
from dippm.cli import options as command_line
from dippm.devices import find
from dippm.errors import ConditionsError, UnknownOptionError
from dippm.estimate.conditions import (
    CONDITIONS,
    KINDS,
    ConditionOptions,
    Conditions,
    Execution,
    usual_values,
)
from dippm.estimate.options import OPTIONS, Options, PairOptions
from dippm.estimate.place import Place
from dippm.estimate.prediction import Prediction

MODEL = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3))
SIZES = (3, 64, 64)
CHANGED = {
    "device": find("H100"),
    "batch": 4,
    "precision": "fp16",
    "timer": "event",
    "host": 7.0,
    "context_mb": 300.0,
}


@pytest.fixture(scope="module")
def loaded() -> Any:
    return dippm.load()


@pytest.fixture(scope="module")
def asked(loaded) -> Prediction:
    """A prediction of a graph in memory, under conditions that are not the usual ones."""
    graph = read_graph(MODEL, input=SIZES)
    return dippm.predict(graph, batch=8, precision="fp16", host=5, checkpoint=loaded)


def test_predict_spells_the_options_that_all_verbs_take() -> None:
    spelled = inspect.signature(dippm.predict).parameters
    own = ("source", "framework", "path")
    assert {name for name in spelled if name not in own} == set(OPTIONS)
    hints, theirs = get_type_hints(inspect.unwrap(dippm.predict)), get_type_hints(Options)
    assert {name: hints[name] for name in theirs} == theirs
    device = spelled["device"].default
    given = {name: spelled[name].default for name in CONDITIONS if name != "device"}
    usual = usual_values(ConditionOptions)
    assert find(device) == usual.pop("device")
    assert given == usual


def test_the_command_line_has_them_all_with_the_same_defaults() -> None:
    spelled = inspect.signature(dippm.predict).parameters
    shared = inspect.signature(command_line._shared).parameters
    assert set(shared) == {*OPTIONS, "framework"}
    assert {n: p.default for n, p in shared.items()} == {n: spelled[n].default for n in shared}


def test_a_difference_takes_two_of_each_condition() -> None:
    assert {*PairOptions.__annotations__} == {*Options.__annotations__}


def test_documents_and_files_have_every_condition(asked) -> None:
    assert tuple(asked.to_dict()["conditions"]) == CONDITIONS
    assert set(KINDS) == set(CONDITIONS)


VERBS: dict[str, tuple[Callable[..., Any], Callable[[Any], Conditions], dict[str, Any]]] = {
    "predict": (dippm.predict, lambda p: p.conditions, {}),
    "explain": (dippm.explain, lambda e: e.prediction.conditions, {}),
    "what_if": (dippm.what_if, lambda w: w.baseline.conditions, {}),
    "sweep": (dippm.sweep, lambda s: s.predictions[0].conditions, {"batch": [8]}),
    "sweep_power": (dippm.sweep_power, lambda s: s.prediction.conditions, {"limits_w": 400}),
    "parallelize": (dippm.parallelize, lambda e: e.prediction.conditions, {"gpus": 2}),
    "compare": (lambda p, **o: dippm.compare([p], **o), lambda c: c[0].conditions, {}),
    "choose": (dippm.choose, lambda c: c.best.prediction.conditions, {"devices": "A100"}),
    "smallest_slice": (
        dippm.smallest_slice,
        lambda c: c.contenders[-1].prediction.conditions,
        {},
    ),
    "share": (lambda p, **o: dippm.share([p], **o), lambda s: s.processes[0].alone.conditions, {}),
    "request_resources": (dippm.request_resources, lambda r: r.prediction.conditions, {}),
    "diff": (dippm.diff, lambda d: d.before.prediction.conditions, {"timer": ("wall", "event")}),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_prediction_is_a_model_under_its_conditions(name, asked) -> None:
    verb, conditions, given = VERBS[name]
    found = conditions(verb(asked, **given))
    assert found.replace(mig=None) == asked.conditions
    assert conditions(verb(asked, **{**given, "precision": "bf16"})).precision == "bf16"
    assert conditions(verb(asked.source_graph, **given)).precision == "fp32"


@pytest.mark.parametrize("name", VERBS)
def test_a_wrong_name_is_refused_with_the_closest(name, asked) -> None:
    verb, _, given = VERBS[name]
    with pytest.raises(UnknownOptionError, match="precison") as caught:
        verb(asked, **given, precison="fp16")
    assert isinstance(caught.value, TypeError)
    assert "Did you mean precision?" in caught.value.hint


def test_a_name_of_another_tool_is_told_ours(asked) -> None:
    with pytest.raises(UnknownOptionError, match="unknown option 'gpu'") as caught:
        dippm.predict(asked, gpu="A100-40GB")
    assert caught.value.hint.startswith("Did you mean device? Known: ")
    with pytest.raises(UnknownOptionError) as caught:
        dippm.predict(asked, gradient_accumulation=8)
    assert "Did you mean device?" not in caught.value.hint


def test_a_prediction_alone_is_not_made_again(asked) -> None:
    assert dippm.predict(asked) is asked
    assert dippm.explain(asked).prediction is asked


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_named_beside_a_prediction_overrides_it(name, asked) -> None:
    found = dippm.predict(asked, **{name: CHANGED[name]})
    expected = asked.conditions.replace(**{name: CHANGED[name]})
    assert found.conditions == expected
    assert found.provenance.source == asked.provenance.source


def test_what_belongs_to_an_overridden_condition_goes_with_it(asked) -> None:
    step = dippm.predict(asked, phase="train", optimizer="adam", checkpointing=True)
    again = dippm.predict(step, phase="inference")
    assert (again.conditions.optimizer, again.conditions.checkpointing) == ("sgd", False)
    again = dippm.predict(step, phase="training", batch=2)
    assert (again.conditions.optimizer, again.conditions.checkpointing) == ("adam", True)
    on_slice = dippm.predict(asked, mig="1g.5gb")
    assert dippm.predict(on_slice, device="H100").conditions.mig is None
    assert dippm.predict(on_slice, device="a100").conditions.mig == on_slice.conditions.mig


def test_a_loaded_predictor_answers_every_verb_for_its_device() -> None:
    warm = dippm.load(device="H100")
    graph = read_graph(MODEL, input=SIZES)
    assert dippm.load(warm) is warm
    for answer in (
        dippm.predict(graph, checkpoint=warm),
        dippm.explain(graph, checkpoint=warm).prediction,
        dippm.compare([graph], checkpoint=warm)[0],
        dippm.sweep(graph, batch=1, checkpoint=warm).predictions[0],
        dippm.what_if(graph, checkpoint=warm).baseline,
        warm.predict(graph),
    ):
        assert answer.conditions.device == find("H100")
    assert dippm.predict(graph, checkpoint=warm, device="A100").conditions.device == find("A100")


def test_a_prediction_of_a_named_checkpoint_is_asked_of_it_again() -> None:
    named = dippm.load("pmgns-timm-rtx3090")
    before = named.predict(MODEL, input=SIZES, device="RTX 3090", batch=8, precision="amp")
    after = dippm.predict(before, batch=16)
    assert after.provenance.checkpoint == before.provenance.checkpoint


def test_conditions_are_made_of_parts_or_of_names() -> None:
    whole = Conditions(Place(find("A100")), Execution(precision="fp16"), batch=8)
    assert whole == Conditions(device=find("A100"), precision="fp16", batch=8)
    assert whole == Conditions.of(device="a100", precision="float16", batch=8)  # type: ignore[typeddict-item]
    assert replace(whole, batch=9) == whole.replace(batch=9)
    assert whole.replace(mode="compiled").execution == replace(whole.execution, mode="compiled")
    assert whole.replace(host=5).place.host is not None
    assert pickle.loads(pickle.dumps(whole)) == whole
    with pytest.raises(UnknownOptionError, match="presicion"):
        Conditions(presicion="fp16")  # type: ignore[call-arg]
    with pytest.raises(ConditionsError, match="batch"):
        whole.replace(batch=0)


def test_pickles_of_flat_conditions_still_load() -> None:
    slot = find("A100").mig_profiles[0]
    flat = [find("A100"), 8, "fp16", "eager", "wall", slot, False, None, "fused", "inference"]
    expected = Conditions(device="A100", batch=8, precision="fp16", mig=slot, autograd=True)
    old = Conditions.__new__(Conditions)
    old.__setstate__([*flat, "sgd", False, True, None, "pytorch"])
    assert old == expected
