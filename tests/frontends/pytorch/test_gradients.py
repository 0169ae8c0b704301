"""Models that differentiate in forward: the operators of their gradients are counted."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import dippm
from dippm.errors import ConversionError
from dippm.model.graph.operators import fold_name, operator
from tests.samples import sampled


class Potential(nn.Module):
    """An energy with several layers, and its negative gradient: a force."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, stride=2, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(32, 1)

    def energy(self, x: Tensor) -> Tensor:
        y = nn.functional.silu(self.conv(x.unsqueeze(1)))
        y = self.norm(y + self.attention(y, y, y, need_weights=False)[0])
        return self.out(torch.tanh(y).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_(True)
            return -grad(self.energy(x).sum(), x, create_graph=True)[0]


class Both(Potential):
    """Energy and force, without a word about gradients being on."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_()
        energy = self.energy(x)
        return energy, -torch.autograd.grad(energy.sum(), x)[0]


class Residual(nn.Module):
    """The second derivative by one coordinate, of a network that solves an equation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.out = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad_(True)
        u = self.out(self.net(x))
        first = grad(u, x, torch.ones_like(u), create_graph=True)[0]
        second = grad(first[:, :1], x, torch.ones_like(u), create_graph=True)[0]
        return second[:, :1] + first[:, 1:] + u


class ByTransform(Residual):
    """The same by transforms of functions."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: self.out(self.net(row)).sum()))(x)


class Jacobian(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.jacrev(self.net))(x)


CASES = {
    "force": (Potential(), (16,)),
    "energy and force": (Both(), (16,)),
    "second derivative": (Residual(), (2,)),
    "vmap of grad": (ByTransform(), (2,)),
    "jacobian": (Jacobian(), (2,)),
}


class _NoModules(nullcontext):
    """Hooks of the counter's own, by which it tells modules apart, stop some gradients."""

    parents = frozenset({"Global"})


@pytest.mark.parametrize("name", sampled(CASES, pytest.mark.nightly(part="frontends")))
def test_gradients_are_counted_as_torch_counts_them(name: str) -> None:
    module, shape = CASES[name]
    graph = dippm.read_graph(module.eval(), input=",".join(map(str, shape)))
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    with counter, torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        module(torch.rand(3, *shape))
    assert graph.batch_is_symbolic
    assert graph.at_batch(3).macs == counter.get_total_flops() // 2
    assert any("differentiates" in note for note in graph.notes)
    assert all("backward" in operator for operator in graph.unknown_ops)
    assert graph.param_bytes <= 4 * sum(p.numel() for p in module.parameters())


ACTIVATIONS = {
    "elu": nn.functional.elu,
    "gelu": nn.functional.gelu,
    "hardsigmoid": nn.functional.hardsigmoid,
    "hardswish": nn.functional.hardswish,
    "hardtanh": nn.functional.hardtanh,
    "leaky_relu": nn.functional.leaky_relu,
    "log_sigmoid": nn.functional.logsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": nn.functional.silu,
    "softplus": nn.functional.softplus,
    "softshrink": nn.functional.softshrink,
    "tanh": torch.tanh,
    "threshold": torch.relu,
}
"""By the operator that differentiates it."""


class Slopes(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        return tuple(grad(f(x).sum(), x)[0] for f in ACTIVATIONS.values())


def test_gradients_of_activations_are_element_wise_operators() -> None:
    graph = dippm.read_graph(Slopes(), input="5,16")
    assert not graph.unknown_ops
    slopes = [node for node in graph.at_batch(3).nodes if node.op == "activation_gradient"]
    assert len(slopes) == len(ACTIVATIONS)
    assert all(node.out_shapes == ((3, 5, 16),) for node in slopes)
    assert all(node.flops == 4 * 3 * 5 * 16 and not node.macs for node in slopes)


def test_operators_of_gradients_are_those_that_torch_has() -> None:
    """So that no row stands for a name that nothing is called by."""
    schemas = torch._C._jit_get_all_schemas()
    known = {
        fold_name(s.name.removeprefix("aten::")) for s in schemas if s.name.startswith("aten::")
    }
    assert set(operator("activation_gradient").spellings) <= known
    assert {fold_name(f"{name}_backward") for name in ACTIVATIONS} <= known


class Untraceable(Potential):
    def forward(self, x: Tensor) -> Tensor:
        force = super().forward(x)
        return force if float(force.sum()) > 0 else -force


def test_gradients_that_cannot_be_traced_are_named_with_their_line() -> None:
    with pytest.raises(ConversionError, match="differentiates in its forward pass") as caught:
        dippm.read_graph(Untraceable().eval(), input="16")
    assert "if float(force.sum()) > 0" in caught.value.message
    assert "phase='train'" in caught.value.hint
