"""Models that compute gradients in their forward pass: forces of potentials, PDE residuals.

`torch.export` traces above autograd and loses the operators of a gradient. Traced below autograd
they are ordinary operators, and the traced graph is then exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from dippm.model.relax.torch_programs import without_source

_ENGINE = "_engine_run_backward"
_WORDS = ("does not require grad", "object has no attribute 'constant'")
"""Parts of errors when a gradient is requested while gradients are disabled."""

Called = Callable[[dict[str, torch.Tensor]], tuple[torch.Tensor, ...]]


class GradientRequests:
    """Records whether a module requested gradients while it ran."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record requests for gradients in the block."""
        run = getattr(torch.autograd, _ENGINE)

        def seen(*args: Any, **kwargs: Any) -> Any:
            self.asked = True
            return run(*args, **kwargs)

        with patch.object(torch.autograd, _ENGINE, seen):
            yield

    def explain(self, error: Exception) -> None:
        """Count an error that mentions gradients as a request: function transforms raise one."""
        self.asked = self.asked or any(word in str(error) for word in _WORDS)


def trace_with_gradients(
    module: torch.nn.Module, called: Called, tensors: dict[str, torch.Tensor]
) -> ExportedProgram:
    """Return the program of a module with the operators of its gradients.

    Args:
        module: a module on the meta device.
        called: function that calls the module with tensors and returns those of its result.
        tensors: its inputs by name.
    """
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = list(tensors)

    def run(state: dict[str, torch.Tensor], *values: torch.Tensor) -> Any:
        whole = _Called(module, called)
        given = {f"module.{name}": value for name, value in state.items()}
        return functional_call(whole, given, (dict(zip(names, values, strict=True)),))

    rules = {torch.ops.aten.convolution_backward.default: _convolution_backward}
    with without_source():
        with torch.enable_grad():
            graph = make_fx(run, decomposition_table=rules)(state, *tensors.values())
        flat = _Flat(module, graph)
        with torch.no_grad():
            return torch.export.export(flat, tuple(tensors.values()), strict=False)


class _Called(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, called: Called) -> None:
        super().__init__()
        self.module, self._called = module, called

    def forward(self, tensors: dict[str, torch.Tensor]) -> Any:
        return self._called(tensors)


class _Flat(torch.nn.Module):
    """Passes parameters and buffers to a traced graph, under their names in the module."""

    def __init__(self, module: torch.nn.Module, graph: torch.fx.GraphModule) -> None:
        super().__init__()
        self.module = module
        self._graph: Callable[..., Any]
        object.__setattr__(self, "_graph", graph)

    def forward(self, *values: torch.Tensor) -> Any:
        module = self.module
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return self._graph(state, *values)


def _convolution_backward(
    gradient: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    """Write the gradient of a convolution with respect to its input as a convolution."""
    if not output_mask[0] or any(output_mask[1:]):
        return NotImplemented
    missing = [0] * len(stride)
    if not transposed:
        for i, (size, kept) in enumerate(zip(source.shape[2:], gradient.shape[2:], strict=True)):
            window = dilation[i] * (weight.shape[2 + i] - 1) + 1
            missing[i] = size - ((kept - 1) * stride[i] - 2 * padding[i] + window)
    result = torch.ops.aten.convolution.default(
        gradient, weight, None, stride, padding, dilation, not transposed, missing, groups
    )
    return result, None, None
