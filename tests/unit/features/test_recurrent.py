"""Recurrent layers: a compiler leaves them, and what their call does first, to the library."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from dippm.devices import find
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernels import launched
from dippm.estimate.pretrained import load as load_predictor
from dippm.model.frontends import InputSpec, load
from dippm.model.graph import ModelGraph, build

LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
OWN = ("recurrent", "cast", "copy", "elementwise")
"""Classes of what the call of a layer launches, its first states of zeros among them."""


class Between(nn.Module):
    """A layer between element-wise operators, which read each other around it, too."""

    def __init__(self, layer: type[nn.RNNBase], *, both: bool) -> None:
        super().__init__()
        self.layer = layer(64, 128, num_layers=2, batch_first=True, bidirectional=both)
        self.last = nn.Linear(128 * (1 + both), 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.sigmoid(torch.tanh(x))
        return torch.tanh(self.last(self.layer(before)[0]) + before)


@cache
def read(layer: type[nn.RNNBase], *, both: bool, steps: int) -> ModelGraph:
    module = Between(layer, both=both).eval()
    return build(load(module, InputSpec.parse(f"{steps},64"), cache=False))


def of_the_layer(kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels of the layer's call; their sources are other positions in each mode."""
    node = next(kernel.node for kernel in kernels if kernel.kind == "recurrent")
    return [kernel._replace(sources=()) for kernel in kernels if kernel.node == node]


@pytest.mark.parametrize("both", [False, True])
def test_a_compiled_layer_launches_what_an_eager_one_launches(both: bool) -> None:
    for layer in LAYERS:
        graph = read(layer, both=both, steps=50).at_batch(4)
        for precision in ("fp32", "fp16", "amp"):
            eager = launched(graph, precision, "eager")
            compiled = launched(graph, precision, "compiled")
            own = of_the_layer(compiled)
            assert own == of_the_layer(eager), (layer, precision)
            assert own[-1].serial == 30.0 * 50 * 2 * (1 + both)
            assert own[-1].launches == 2 * (1 + both)
            assert {kernel.kind for kernel in own} <= set(OWN)
            # what is before the layer and after it is compiled: two element-wise calls are one
            assert len(compiled) < len(eager), (layer, precision)
            assert [k.kind for k in compiled if k.kind == "costly_activation"], layer


def test_nothing_is_merged_across_a_layer() -> None:
    kernels = launched(read(nn.LSTM, both=False, steps=50).at_batch(4), "fp32", "compiled")
    others = [i for i, kernel in enumerate(kernels) if kernel.kind not in OWN]
    assert [kernels[i].kind for i in others] == ["costly_activation", "gemm", "costly_activation"]
    first, last = kernels[others[0]], kernels[others[-1]]
    assert first.write_bytes == 4 * 4 * 50 * 64  # the layer and the sum read it
    assert others[0] in last.sources


def test_a_compiled_layer_takes_as_long_as_an_eager_one() -> None:
    predictor, recurrent = load_predictor().predictor, list(KERNEL_CLASSES).index("recurrent")
    for layer in LAYERS:
        graph = read(layer, both=False, steps=400)
        for device, precision, batch in (
            ("A100", "fp32", 1),
            ("RTX-4090", "amp", 64),
            ("T4", "fp16", 8),
            ("H200", "fp32", 256),
        ):
            conditions = Conditions(
                device=find(device), batch=batch, precision=precision, timer="kernel"
            )
            eager, compiled = (
                predictor.class_ms(graph, replace(conditions, mode=mode))[0]
                for mode in ("eager", "compiled")
            )
            assert compiled[recurrent] == pytest.approx(eager[recurrent], rel=0.02), device
            assert compiled.sum() == pytest.approx(eager.sum(), rel=0.05), (layer, device)
