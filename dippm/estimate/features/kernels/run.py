"""State of a run while its kernels are launched: tensors, strides, number formats.

A `Run` holds the `State` of every tensor and the kernels so far. The second section follows views,
and decides the memory order in which calls write their results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

from dippm.estimate.conditions import Precision
from dippm.estimate.features.kernel import Kernel, Part, Unit
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.model.graph.calls import CallSequence, OperatorCall, Tensor
from dippm.model.graph.draft import Shape, item_bytes
from dippm.model.graph.macs import is_complex
from dippm.model.graph.operators import operator
from dippm.model.graph.strides import (
    broadcast_strides,
    dense_strides,
    dense_strides_like,
    is_channels_last,
    view_strides,
)

Strides = tuple[int, ...]
HALF: tuple[Precision, ...] = ("fp16", "bf16")
AUTOCAST: tuple[Precision, ...] = ("amp", "amp-bf16")
LONGEST_RUN = 4096
"""Number of contiguous elements above which longer runs are not distinguished."""
HALF_WIDTH = 2
"""Bytes per element in half precision."""
KeptHalf: TypeAlias = Literal["scores", "group_norms", "layer_norms"]
"""What stays in half precision where PyTorch widens it to float32.

Scores of unfused attention, as in PyTorch before its version 2.5; normalisations under autocast, as
timm runs its own after `set_fast_norm`.
"""
NORMS: Mapping[str, KeptHalf] = {
    "group_norm": "group_norms",
    "layer_norm": "layer_norms",
    "rms_norm": "layer_norms",
}


@dataclass(slots=True)
class State:
    """The state of a tensor during a run.

    Attributes:
        width: bytes per element.
        strides: strides in elements; 0 along a broadcast axis.
        makers: positions of the kernels that wrote it.
        widened: whether the model itself casts it from half precision to float32.
    """

    width: int
    strides: Strides
    makers: tuple[int, ...] = ()
    widened: bool = False


class Run:
    """A run of a model.

    Attributes:
        sequence: calls of the model, at the batch of the run.
        precision: number format of the run.
        channels_last: whether images and weights of convolutions are in channels-last layout.
        compiled: whether a compiler generates the kernels.
        kept_half: what stays in half precision where PyTorch widens it.
        autocast: whether the framework chooses the precision of each call.
        product_width: bytes per element of the operands and results of matrix products.
        default_width: bytes per element of parameters and inputs.
        tensors: tensors of the sequence, then those that rules add.
        part: part of a training step that the next kernels belong to.
        training: whether batch normalisations compute the statistics of the batch.
        kernels: kernels launched so far.
        graph_breaks: ranges of kernels, one per call that a compiler leaves to the framework; the
            calls before and after it are compiled as separate graphs.
    """

    def __init__(
        self,
        sequence: CallSequence,
        precision: Precision,
        *,
        channels_last: bool,
        compiled: bool = False,
        kept_half: Collection[KeptHalf] = (),
        training: bool = False,
    ) -> None:
        self.training, self.tensors = training, list(sequence.tensors)
        self.part: Part = "forward"
        self.sequence, self.precision, self.channels_last = sequence, precision, channels_last
        self.compiled, self.kept_half = compiled, kept_half
        self.autocast = precision in AUTOCAST
        self.product_width = 2 if precision in (*HALF, *AUTOCAST) else 4
        self.default_width = 2 if precision in HALF else 4
        self.kernels: list[Kernel] = []
        self.graph_breaks: list[range] = []
        self.states: dict[int, State] = {}
        self.cast_weights: dict[tuple[int, ...], int] = {}
        for position in sequence.inputs:
            tensor = sequence.tensors[position]
            strides = dense_strides(tensor.shape)
            if channels_last and len(tensor.shape) == 4:
                strides = dense_strides_like(tensor.shape, (tensor.size, 1, 3, 2))
            self.states[position] = State(self.natural_width(tensor), strides)

    @contextmanager
    def restored(self, positions: Iterable[int]) -> Iterator[None]:
        """Restore the states of arguments after a block: casts and copies serve one call only."""
        before = {p: self.state(p) for p in positions}
        yield
        self.states.update(before)

    def tensor(self, position: int) -> Tensor:
        """Return a tensor of the sequence."""
        return self.tensors[position]

    def state(self, position: int) -> State:
        """Return the state of a tensor; parameters are dense."""
        if position not in self.states:
            tensor = self.tensor(position)
            self.states[position] = State(self.natural_width(tensor), dense_strides(tensor.shape))
        return self.states[position]

    def natural_width(self, tensor: Tensor) -> int:
        """Return the bytes per element of a tensor that nothing has cast."""
        return self.default_width if tensor.is_float else item_bytes(tensor.dtype)

    def operands(self, call: OperatorCall) -> list[int]:
        """Return the arguments of a call that are tensors rather than numbers."""
        return [p for p in call.inputs if not self.tensor(p).is_number]

    def stored(self, position: int) -> int:
        """Return the number of elements of a tensor in memory; broadcast ones count once."""
        shape, strides = self.tensor(position).shape, self.state(position).strides
        return prod(n for n, stride in zip(shape, strides, strict=True) if stride)

    def is_dense(self, position: int) -> bool:
        """Return whether a tensor is contiguous in the order of its axes."""
        shape, strides = self.tensor(position).shape, self.state(position).strides
        dense = dense_strides(shape)
        return all(n == 1 or s == d for n, s, d in zip(shape, strides, dense, strict=True))

    def run_length(self, position: int, strides: Strides) -> int:
        """Return how many contiguous elements a kernel reads in the order in which it writes.

        Args:
            position: tensor that is read.
            strides: strides of the tensor that is written, over the same axes.
        """
        shape, held = self.tensor(position).shape, self.state(position).strides
        order = sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis))
        length = 1
        for axis in order:
            if shape[axis] == 1:
                continue
            if held[axis] != length:
                break
            length *= shape[axis]
        return min(length, LONGEST_RUN)

    def make(
        self, position: int, width: int, strides: Strides | None = None, *, widened: bool = False
    ) -> None:
        """Record the tensor that the last kernel wrote."""
        shape = self.tensor(position).shape
        makers = (len(self.kernels) - 1,) if self.kernels else ()
        self.states[position] = State(width, strides or dense_strides(shape), makers, widened)

    def share(self, position: int, source: int, strides: Strides | None = None) -> None:
        """Record that a tensor is a view of another, possibly of real numbers as complex ones."""
        held = self.state(source)
        self.states[position] = replace(
            held,
            width=self._width_of_view(position, source),
            strides=strides or dense_strides(self.tensor(position).shape),
        )

    def _width_of_view(self, position: int, source: int) -> int:
        width = self.state(source).width
        before, after = (is_complex(self.tensor(p).dtype) for p in (source, position))
        if before == after:
            return width
        return width // 2 if before else 2 * width

    def emit(self, kernel: Kernel, reads: Iterable[int] = (), after: Iterable[int] = ()) -> int:
        """Launch a kernel; return its position.

        Args:
            kernel: kernel without its sources.
            reads: tensors that it reads.
            after: positions of further kernels whose results it reads.
        """
        sources = {m for p in reads for m in self.state(p).makers} | set(after)
        self.kernels.append(kernel._replace(sources=tuple(sorted(sources)), part=self.part))
        return len(self.kernels) - 1

    def promoted(self, call: OperatorCall) -> int:
        """Return the bytes per element of a result that no rule of autocast decides.

        It is the width of the widest operand, where a complex number counts as two real ones.
        """
        out = self.tensor(call.outputs[0])
        parts = 2 if is_complex(out.dtype) else 1
        if not out.is_float and parts == 1:
            return item_bytes(out.dtype)
        widths = [
            self.state(p).width // (1 if self.tensor(p).is_float else 2)
            for p in self.operands(call)
            if self.tensor(p).shape and self.tensor(p).is_continuous
        ]
        return parts * max(widths, default=self.natural_width(out) // parts)

    def unit(self, kind: str) -> Unit:
        """Return the arithmetic unit of a matrix product of a kernel class."""
        row = KERNEL_CLASSES[kind]
        if not row.tensor_cores:
            return "fp32"
        if self.precision in (*HALF, *AUTOCAST):
            return "half"
        if self.precision == "tf32" or (self.precision == "fp32" and row.tf32_by_default):
            return "tf32"
        return "fp32"

    def widens(self, call: OperatorCall) -> bool:
        """Return whether autocast runs a call in float32 (the float32 list of torch.amp)."""
        if self.narrows(call):
            return False
        upsamples = call.op == "resize" and call.spelled.startswith("upsample")
        return self.autocast and (upsamples or operator(call.op).autocast == "float32")

    def narrows(self, call: OperatorCall) -> bool:
        """Return whether a normalisation under autocast takes its operands in half precision."""
        return self.autocast and NORMS.get(call.op) in self.kept_half


# Views, and the memory order of results.

TO_CHANNELS_FIRST = (0, 3, 1, 2)


def view(run: Run, call: OperatorCall) -> bool:
    """Record the results of a call as views of its argument; return whether that is possible."""
    source = call.inputs[0]
    given, shape = run.state(source).strides, run.tensor(source).shape
    out = call.outputs[0]
    if call.op == "transpose":
        if call.attributes.get("layout"):
            run.share(out, source, _renamed(run, call))
        else:
            run.share(out, source, tuple(given[a] for a in call.attributes["permutation"]))
        return True
    if call.op == "reshape":
        strides = view_strides(shape, given, run.tensor(out).shape)
        if strides is None:
            return False
        run.share(out, source, strides)
        return True
    if call.op == "broadcast":
        run.share(out, source, broadcast_strides(shape, given, run.tensor(out).shape))
        return True
    if is_complex(run.tensor(source).dtype) and not is_complex(run.tensor(out).dtype):
        given = tuple(2 * stride for stride in given)  # real or imaginary parts: every other number
    for part in call.outputs:
        same_rank = len(run.tensor(part).shape) == len(shape)
        run.share(part, source, given if same_rank else _taken(run, call, part))
    return True


def _renamed(run: Run, call: OperatorCall) -> Strides:
    """Return the strides of images that the file transposes only to state their layout."""
    shape = run.tensor(call.outputs[0]).shape
    if run.channels_last and tuple(call.attributes["permutation"]) == TO_CHANNELS_FIRST:
        return dense_strides_like(shape, (prod(shape), 1, 3, 2))
    return dense_strides(shape)


def _taken(run: Run, call: OperatorCall, part: int) -> Strides:
    """Return the strides of a slice at one index of an axis."""
    source = call.inputs[0]
    given, shape = run.state(source).strides, run.tensor(source).shape
    left = run.tensor(part).shape
    axis = call.attributes.get("axis")
    if isinstance(axis, int) and len(left) == len(shape) - 1:
        return tuple(stride for i, stride in enumerate(given) if i != axis % len(shape))
    return dense_strides(left)


def elementwise_strides(run: Run, positions: Sequence[int], shape: Shape) -> Strides:
    """Return the strides of an element-wise result: the order of the first operand of its shape."""
    for position in positions:
        if run.tensor(position).shape == shape:
            strides = run.state(position).strides
            if all(strides[axis] or n == 1 for axis, n in enumerate(shape)):
                return dense_strides_like(shape, strides)
    return dense_strides(shape)


def images_last(run: Run, position: int) -> bool:
    """Return whether a tensor holds images in channels-last layout."""
    shape = run.tensor(position).shape
    if len(shape) != 4:
        return False
    if run.channels_last and shape[2:] == (1, 1):
        return True
    return is_channels_last(shape, run.state(position).strides)


def image_strides(run: Run, source: int, shape: Shape) -> Strides:
    """Return the strides of images that a layer computes from others, in the same layout."""
    if images_last(run, source):
        return dense_strides_like(shape, (prod(shape), 1, 3, 2))
    return dense_strides(shape)
