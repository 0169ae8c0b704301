"""Counts of operators and written bytes of a forward pass on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
KERNELS_PER_STEP = 2
"""Kernel launches of a recurrent layer per time step: a product and element-wise work."""


class OperatorTally(TorchDispatchMode):
    """Sums over all operators except views.

    Attributes:
        written: bytes of all outputs.
        peak: maximum bytes of inputs and outputs of one operator.
        operators: number of operators that ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = self.peak = self.operators = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view and "empty" not in str(function):
            self.add(args, result)
        return result

    def add(self, inputs: object, outputs: object) -> None:
        """Count one operator, without its weights."""
        read = sum(t.nbytes for t in _tensors(inputs) if not t.requires_grad)
        written = sum(t.nbytes for t in _tensors(outputs))
        self.written += written
        self.peak = max(self.peak, read + written)
        self.operators += 1


class FusedOperators(TorchFunctionMode):
    """Counts attention and recurrent layers as GPU kernels, not as decomposed on meta.

    Fused attention does not write its scores; a recurrent layer is one call with a few launches
    per time step.
    """

    def __init__(self, tally: OperatorTally) -> None:
        super().__init__()
        self.tally = tally

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(function, "__name__", "")
        tally = self.tally
        before = tally.written, tally.peak, tally.operators
        result = function(*args, **(kwargs or {}))
        if name == "scaled_dot_product_attention":
            tally.written, tally.peak, tally.operators = before
            tally.add((args, kwargs), result)
        elif name in RECURRENT and isinstance(args[0], Tensor):
            passes = len(args[1]) if isinstance(args[1], Sequence) else 1
            layers = args[1][0].shape[0] if passes > 1 else args[1].shape[0]
            tally.operators = before[2] + KERNELS_PER_STEP * layers * args[0].shape[1]
        return result


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
