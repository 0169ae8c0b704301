"""Recurrent layers: a compiler leaves them, and what their call does first, to the library."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import dippm
from dippm.devices import find
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernels import launched, sequence_of, training_step
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
            steps = 50 * 2 * (1 + both)
            assert own[-1].serial == pytest.approx(128 / 36 * steps)
            assert (own[-1].launches, own[-1].inner_launches) == (2 * (1 + both), 70)
            assert {kernel.kind for kernel in own} <= set(OWN)
            # what is before the layer and after it is compiled: two element-wise calls are one
            assert len(compiled) < len(eager), (layer, precision)
            assert [k.kind for k in compiled if k.kind == "costly_activation"], layer


@pytest.mark.parametrize(
    ("layer", "largest"), [(nn.LSTM, 192), (nn.GRU, 192), (nn.RNN, 384)], ids=lambda x: str(x)
)
def test_a_larger_state_takes_two_launches_a_step(layer: type[nn.RNNBase], largest: int) -> None:
    for hidden, inner in ((largest, 70), (largest + 1, 24 + 2 * 50)):
        module = layer(64, hidden, batch_first=True).eval()
        graph = build(load(module, InputSpec.parse("50,64"), cache=False)).at_batch(4)
        [found] = [k for k in launched(graph) if k.kind == "recurrent"]
        assert found.inner_launches == inner
        assert found.serial == pytest.approx(50 * (hidden / 36 if inner == 70 else 12.5))


def test_the_weights_gradient_of_a_layer_is_one_product() -> None:
    graph = read(nn.LSTM, both=False, steps=50)
    step = training_step(sequence_of(graph).at_batch(4))
    found = [k for k in step.kernels if k.kind == "recurrent"]
    assert [k.inner_launches for k in found] == [70, 70, 0]
    assert [k.serial > 0 for k in found] == [True, True, False]


# Times of a GRU on our H100 and H200 (dataset/data/h100, h200), which taught the networks nothing.
MEASURED = (
    *(("H100-SXM-80GB", 64, 256, 4, True, "fp16", 1, "kernel", 1.0005),),
    *(("H200", 256, 256, 4, False, "fp32", 1, "kernel", 3.988),),
    *(("H200", 256, 256, 4, False, "fp32", 1, "wall", 20.76),),
)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row[1]}-{row[7]}")
def test_steps_take_what_they_were_measured_to_take(row: tuple[Any, ...]) -> None:
    gpu, hidden, steps, layers, both, precision, batch, timer, measured_ms = row
    module = nn.GRU(32, hidden, num_layers=layers, batch_first=True, bidirectional=both).eval()
    found = dippm.predict(
        module, input=(steps, 32), batch=batch, device=gpu, precision=precision, timer=timer
    )
    assert found.latency_ms == pytest.approx(measured_ms, rel=0.4)


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
            assert compiled[recurrent] == pytest.approx(eager[recurrent], rel=0.05), device
            assert compiled.sum() == pytest.approx(eager.sum(), rel=0.05), (layer, device)
