"""Sizes at another batch."""

from __future__ import annotations

import pytest
import torch

import dippm
from dippm.estimate.features.kernel_table import KernelTable
from dippm.model.graph import build
from dippm.model.graph.calls import batch_rescaler
from tests.unit.graph.sketch import Sketch


@pytest.mark.parametrize(("old", "new", "given", "expected"), [
    (1009, 4, 1009 * 12, 48), (1009, 4, 12, 12), (1009, 2, 1009**2, 4), (1009, 1009, 2018, 2018),
    (1, 1, 7, 7), (1, 8, 7, 7), (1009, 4, 0, 0),
])  # fmt: skip
def test_the_batch_is_a_factor_of_what_grows_with_it(old, new, given, expected) -> None:
    assert batch_rescaler(old, new)(given) == expected


def test_a_file_that_fixes_batch_one_has_its_kernels() -> None:
    s = Sketch(batch=1)
    raw = s.raw(s.call("exp", [s.input(1, 8)], 1, 8), symbolic=False)
    table = KernelTable.of(build(raw))
    assert (table.batch, table.input_bytes, len(table.kind)) == (1, (0.0, 32.0), 1)


@pytest.mark.parametrize("held", [1, 2, 6])
def test_a_graph_at_one_batch_answers_for_every_other(held: int) -> None:
    """Its sizes no longer show what follows the batch: 2 and 6 are sizes of the model, too."""
    layers = torch.nn.Conv2d(2, 6, 2, stride=2), torch.nn.ReLU(), torch.nn.Flatten()
    net = torch.nn.Sequential(*layers, torch.nn.Linear(6 * 6 * 6, 2)).eval()
    source = dippm.read_graph(net, input=(2, 12, 12))
    graph = dippm.predict(source, batch=held, device="A100").graph
    assert (graph.batch, graph.at_batch(held)) == (held, graph)
    for batch in (1, 4, 6, 96):
        assert graph.at_batch(batch) == source.at_batch(batch)
        for asked in (
            {"device": "A100"},
            {"device": "A100", "phase": "train"},
            {"device": "T4", "runtime": "tensorrt", "precision": "fp16"},
            {"device": "A100-40GB", "checkpoint": "pmgns-a100", "autograd": True},
        ):
            answers = [dippm.predict(one, batch=batch, **asked) for one in (graph, source)]
            for target in ("latency_ms", "energy_j", "memory_mb", "memory_bound_mb"):
                found, expected = (getattr(answer, target) for answer in answers)
                assert found == expected, (batch, asked, target)
