"""Work that grows with the model and not faster, counted in calls: seconds tell of the machine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.recurrent import whole_recurrent_layers
from dippm.model.graph import build
from dippm.model.relax.raw_graph import RawGraph


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What tensors without data are asked to compute."""
    calls: list[str] = []
    dispatch = FakeTensorMode.dispatch

    def count(self, func, *args, **kwargs):  # type: ignore[no-untyped-def]
        calls.append(str(func))
        return dispatch(self, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", count)
    return calls


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: bool | int) -> None:
        super().__init__()
        self.layer = kind(8, 16, 6, batch_first=True, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def convert(module: nn.Module, shape: str) -> RawGraph:
    return pytorch.convert_module(module.eval(), InputSpec.parse(shape))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_takes_no_longer_for_more_steps(
    kind: type[nn.RNNBase], dispatched: list[str]
) -> None:
    """Six layers of 512 steps took half a minute: each step ran without data."""
    counts = []
    for steps in (4, 512):
        dispatched.clear()
        convert(Recurrent(kind), f"{steps},8")
        counts.append(len(dispatched))
    assert counts[1] <= counts[0] + 8


@pytest.mark.parametrize("settings", [{}, {"bidirectional": True}, {"proj_size": 4}])
def test_its_shapes_are_those_of_the_layer(settings: dict[str, bool | int]) -> None:
    module = Recurrent(nn.LSTM, **settings)
    graph = build(convert(module, "5,8")).at_batch(3)
    assert graph.outputs[0].shape == tuple(module(torch.zeros(3, 5, 8)).shape)


def test_the_layers_compute_again_afterwards() -> None:
    layer, x = nn.GRU(4, 4).to("meta"), torch.zeros(5, 2, 4, device="meta")
    kernels = dict(torch.ops.aten.gru.input.py_kernels)
    with pytest.raises(KeyError), whole_recurrent_layers():
        raise KeyError
    assert dict(torch.ops.aten.gru.input.py_kernels) == kernels
    assert layer(x)[0].shape == (5, 2, 4)
