"""Every layer of `torch.nn`, and what forward passes call, against torch's own flop counter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dippm.errors import ConversionError
from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.export import Exported
from dippm.model.graph import ModelGraph, build
from tests.frontends.pytorch.cases import CASES, Shape
from tests.samples import sampled

BATCH = 3
NOT_COUNTED_BY_TORCH = {
    "Bilinear": BATCH * (8 * 4 * 8 + 4 * 8),
    "mv": 8 * 8,
    "a vector": BATCH * 6 * 8,
    "dot": 8,
    "addbmm": BATCH * 8 * 8 * 8,
    "addmv": 4 * 8,
    "grouped_mm": BATCH * 6 * 16 * 32,
    "spectral_norm": BATCH * 6 * 6 * 4 * 4 * 9 + 4 * 36,
    "spectral_norm of old": BATCH * 6 * 8 * 4 + 4 * 8,
    "fake_quantize": 0,
    "complex product": BATCH * 6 * 8 * 4 * 4,
}
"""Products that the counter has no formula for, or takes for real: from their definition."""


def graph_of(module: nn.Module, shape: Shape) -> ModelGraph:
    spec = InputSpec.parse(",".join(map(str, shape)))
    return build(pytorch.convert_module(module.eval().requires_grad_(False), spec))


def counted(module: nn.Module, shape: Shape) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.to("meta")(torch.rand(BATCH, *shape, device="meta"))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("name", "module", "shape"),
    sampled([(n, *case) for n, case in CASES.items()], pytest.mark.nightly(part="frontends")),
    ids=CASES,
)
def test_a_layer_is_known_and_counted(name: str, module: nn.Module, shape: Shape) -> None:
    graph = graph_of(module, shape)
    assert not graph.unknown_ops
    assert graph.batch_is_symbolic
    known = NOT_COUNTED_BY_TORCH.get(name)
    assert graph.at_batch(BATCH).macs == (counted(module, shape) if known is None else known)


class Detector(nn.Module):
    """Keeps strides and anchors as plain tensors, made anew in forward, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.stride = torch.tensor([8.0, 16.0])
        self.anchors = torch.empty(0)
        self.strides = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x)).flatten(2)
        self.anchors = torch.arange(y.shape[-1], device=x.device, dtype=x.dtype) + 0.5
        self.strides = torch.full_like(self.anchors, 8.0)
        return (y + self.anchors) * self.strides * self.stride.new_tensor(2.0)


def test_constants_that_no_input_names_are_dropped_and_bound_to_nothing() -> None:
    module = Detector().eval()
    graph = graph_of(module, (3, 8, 8)).at_batch(1)
    assert graph.macs == 64 * 4 * 27
    assert not graph.unknown_ops
    program = torch.export.export(module, (torch.rand(1, 3, 8, 8),), strict=False)
    program.constants["of_nobody"] = torch.zeros(7)
    raw = pytorch._to_graph(Exported(program, 1, False))
    assert build(raw).macs == 64 * 4 * 27
    assert all(value.shape != (7,) for value in raw.values)


def test_complex_numbers_are_complex_in_the_graph() -> None:
    module, shape = CASES["rotary by complex numbers"]
    graph = graph_of(module, shape).at_batch(1)
    (product,) = [n for n in graph.nodes if n.op == "multiply"]
    assert product.dtype == "complex64"
    assert product.bytes_written == 6 * 4 * 8
    assert graph.outputs[0].dtype == "float32"


def test_a_size_that_depends_on_data_is_refused_by_name() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.bincount(x.long().abs().flatten(), minlength=9)

    with pytest.raises(ConversionError, match="bincount"):
        graph_of(Counts(), (8,))


class InRegions(nn.Module):
    """Runs a part in full precision and without gradients, as quantisers and norms do."""

    def __init__(self, device=None):
        super().__init__()
        self.one, self.two, self.device = nn.Linear(8, 16), nn.Linear(16, 4), device

    def forward(self, x):
        with torch.autocast(self.device or x.device.type, enabled=False):
            y = self.one(x.float())
            with torch.set_grad_enabled(True):
                z = self.two(y.relu())
        return z + y.sum(-1, keepdim=True)


@pytest.mark.parametrize("device", ["cuda", None])
def test_the_operators_of_a_region_are_counted(device):
    graph = build(pytorch.convert_module(InRegions(device), InputSpec.parse("8"))).at_batch(1)
    assert graph.macs == 8 * 16 + 16 * 4
    assert not graph.unknown_ops
    assert {node.path for node in graph.nodes if node.op == "dense"} == {"one", "two"}
