"""Scripted and traced modules: objects, parts of modules, sizes that a trace computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dippm.errors import ConversionError, UnsafeModelError
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_table import KernelTable
from dippm.model.frontends import load
from dippm.model.graph import build

SHAPE = "3,32,32"


class Padded(nn.Module):
    """Pads to a multiple of 7, as transformers of windows do."""

    def forward(self, x):
        rest = (7 - x.shape[1] % 7) % 7
        return nn.functional.pad(x, (0, rest)).reshape(x.shape[0], x.shape[1] * 2 - 1 + 1, -1)


@pytest.fixture(scope="module")
def reference(small_cnn):
    return build(load(small_cnn, SHAPE))


@pytest.mark.parametrize(
    "write",
    [
        torch.jit.script,
        lambda module: torch.jit.trace(module, torch.zeros(2, 3, 32, 32)),
    ],
    ids=["script", "trace"],
)
def test_an_object_gives_the_graph_of_its_file(small_cnn, reference, write):
    graph = build(load(write(small_cnn), SHAPE))
    assert graph.batch_is_symbolic
    assert (graph.nodes, graph.edges) == (reference.nodes, reference.edges)
    assert graph.param_bytes == reference.param_bytes


def test_a_trace_adds_the_biases_of_convolutions_as_its_module_does():
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.Conv2d(4, 4, 3, bias=False),
    )  # fmt: skip
    trace = torch.jit.trace(module.eval(), torch.zeros(2, 3, 32, 32))
    tables = [KernelTable.of(build(load(each, SHAPE)), "fp32") for each in (module, trace)]
    kinds = [[list(KERNEL_CLASSES)[kind] for kind in table.kind] for table in tables]
    assert kinds[0] == kinds[1]
    assert kinds[0].count("broadcast") == 2


def test_a_frozen_script_has_no_modes(small_cnn, reference):
    frozen = torch.jit.freeze(torch.jit.script(small_cnn))
    assert build(load(frozen, SHAPE)).macs == reference.macs


def test_a_script_rewritten_for_a_processor_is_refused(small_cnn):
    rewritten = torch.jit.optimize_for_inference(torch.jit.script(small_cnn))
    with pytest.raises(ConversionError, match="rewritten") as caught:
        load(rewritten, SHAPE)
    assert "before torch.jit.optimize_for_inference" in caught.value.hint


def test_a_module_may_have_scripted_parts(small_cnn, reference):
    parts = [torch.jit.script(small_cnn[0]), *small_cnn[1:]]
    graph = build(load(nn.Sequential(*parts), SHAPE))
    assert [node.op for node in graph.nodes] == [node.op for node in reference.nodes]
    assert graph.macs == reference.macs


def test_sizes_that_a_trace_computes_are_numbers():
    traced = torch.jit.trace(Padded(), torch.zeros(2, 6, 5))
    (output,) = build(load(traced, "6,5")).outputs
    assert output.shape[1:] == (12, 3)


def test_a_legacy_file_says_what_it_holds(files):
    with pytest.raises(UnsafeModelError, match=r"whole module \(torch.nn.modules.container") as it:
        load(files / "legacy.pth", SHAPE)
    assert "1.6" in str(it.value)
    assert "torch.save" in it.value.hint
