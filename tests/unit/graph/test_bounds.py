"""Sizes that no machine has are refused; what runs nothing is answered."""

from __future__ import annotations

import pytest

import dippm
from dippm.errors import ConversionError, InputShapeError, ModelFileError
from dippm.estimate.models.targets import NOTHING_RUNS
from dippm.model import graph
from dippm.model.graph import ModelGraph
from dippm.model.graph.model_graph import GRAPH_VERSION
from dippm.model.relax.raw_graph import RawGraph, RawOperator, RawValue
from dippm.show.report.predictions import render_report

KINDS = {"hybrid-gpu": "A100", "pmgns-cpu-epyc": "CPU-AMD-EPYC-2c"}


def raw(*shapes, name="nn.relu", batch=1009, attributes=None):
    """Return one operator that reads all shapes but the last and writes the last."""
    kinds = ["input"] * (len(shapes) - 1) + ["operator"]
    values = [RawValue(s, "float32", k, "x") for s, k in zip(shapes, kinds, strict=True)]
    last = len(values) - 1
    call = RawOperator(name, tuple(range(last)), (last,), attributes or {})
    return RawGraph(tuple(values), (call,), tuple(range(last)), (last,), batch)


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ((1009, 1 << 62), InputShapeError),
        ((1009, 1 << 31, 1 << 31), InputShapeError),
        ((1 << 62, 0), InputShapeError),
        ((1009, *[1 << 15] * 4), InputShapeError),
    ],
)
def test_an_input_that_no_machine_holds(shape, error):
    with pytest.raises(error, match="no machine holds") as caught:
        graph.build(raw(shape, shape))
    assert caught.value.hint


def test_a_result_that_no_machine_holds():
    with pytest.raises(ModelFileError, match="broadcast has a tensor of sizes 1 × 1,099,511"):
        graph.build(raw((1009, 1), (1009, 1 << 40, 2), name="broadcast_to"))


def test_the_batch_does_not_count():
    big = (1009, 1 << 20, 1 << 19)
    assert graph.build(raw(big, big)).batch == 1009
    squared = (1009, 1009, 1 << 38)
    assert graph.build(raw(squared, squared)).batch == 1009
    with pytest.raises(ModelFileError):
        graph.build(raw(big, big, batch=1))


def test_operators_that_do_not_fit_together_are_an_error_of_ours():
    flat = raw((1009, 3), (4,), (1009,), name="nn.conv2d")
    with pytest.raises(ConversionError, match="do not fit together") as caught:
        graph.build(flat)
    assert caught.value.hint
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.fixture(params=["view", "empty", "only an input"])
def idle(request):
    if request.param == "view":
        return graph.build(raw((1009, 3, 8), (1009, 24), name="reshape"))
    inputs = graph.build(raw((1009, 3), (1009, 3))).inputs if request.param != "empty" else ()
    return ModelGraph(
        (), (), inputs, inputs, 0, {}, GRAPH_VERSION, 1009, output_nodes=(-1,) * len(inputs)
    )


@pytest.mark.parametrize("checkpoint", KINDS)
@pytest.mark.parametrize("batch", [1, 4])
def test_what_runs_nothing_has_no_latency(idle, checkpoint, batch):
    assert idle.runs_nothing
    answer = dippm.predict(idle, device=KINDS[checkpoint], checkpoint=checkpoint, batch=batch)
    assert answer.latency_ms is None
    assert answer.energy_j is None
    assert answer.absent["latency_ms"] == NOTHING_RUNS
    assert NOTHING_RUNS in str(answer)
    assert NOTHING_RUNS in render_report(answer)
    (row,) = dippm.compare([idle], device=KINDS[checkpoint], checkpoint=checkpoint).rows()
    assert row["latency_ms"] is None


def test_a_copy_of_the_input_takes_its_time(idle):
    answer = dippm.predict(idle, timer="wall+copy")
    assert (answer.latency_ms is not None) == bool(idle.inputs)


def test_results_without_elements_have_finite_costs():
    empty = graph.build(raw((1009, 0, 4), (1009, 0, 4)))
    for checkpoint, device in KINDS.items():
        answer = dippm.predict(empty, device=device, checkpoint=checkpoint)
        assert answer.latency_ms is not None
        assert answer.to_dict()
