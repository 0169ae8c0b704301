"""Kernels of attention that is a single call: a fused kernel, or separate steps.

`attention` launches the kernels of a call. `in_steps` replaces the call by a call for each step,
for executions without fused kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dippm.estimate.conditions import Precision
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.casts import lower
from dippm.estimate.features.kernels.products import copied, macs, product
from dippm.estimate.features.kernels.run import AUTOCAST, HALF_WIDTH, Run, Strides
from dippm.model.graph.calls import CallSequence, OperatorCall, Tensor
from dippm.model.graph.draft import Shape
from dippm.model.graph.operators import FUSED_RANK

ALIGNED = 8
"""Number of half-precision elements that fused kernels read at once."""
BLOCK = 128
"""Number of queries, and of keys, in a block of scores in FlashAttention (Dao et al. 2022)."""
HEAD_DIMS = (32, 64, 96, 128, 192, 256)
"""Head dimensions with a FlashAttention kernel; another one runs in the next larger kernel."""


def attention(run: Run, call: OperatorCall) -> None:
    """Launch one fused kernel, or a kernel for each step if no fused one supports the operands."""
    a, out = call.attributes, run.tensor(call.outputs[0])
    query = run.tensor(call.inputs[0]).shape
    queries, keys = float(a["query_length"]), float(a["key_length"])
    width = float(a["head_dim"])
    work = macs(run, call)
    heads = work / max(1.0, 2.0 * queries * keys * width)
    rank = len(query)
    strides: Strides | None = None
    if rank == FUSED_RANK:  # the result is in memory order batch, length, heads, width
        _, many, rows, wide = out.shape
        strides = (many * rows * wide, wide, many * wide, 1)
    if rank != FUSED_RANK and query[-1] == width:  # packed heads are one operator of ONNX Runtime
        _unfused(run, call, (queries, keys, width), heads, 2.0 * work)
        return
    if run.product_width == HALF_WIDTH and width % ALIGNED:
        strides = _pad_operands(run, call, out.shape)
    product(
        run,
        call,
        "attention",
        (queries, keys, width),
        copies=heads,
        flops=2.0 * work * _work_share(run, a, queries, keys),
        operands=call.inputs,
        strides=strides,
    )
    run.kernels[-1] = run.kernels[-1]._replace(strided=False)


def _work_share(run: Run, a: Mapping[str, Any], queries: float, keys: float) -> float:
    """Return the operations of a fused kernel over those of its two products without a mask."""
    share = causal_share(queries, keys) if a.get("causal") else 1.0
    if run.product_width != HALF_WIDTH:
        return share
    head_dim = float(a["head_dim"])
    return share * next((d for d in HEAD_DIMS if d >= head_dim), head_dim) / head_dim


def causal_share(queries: float, keys: float) -> float:
    """Return the share of the scores that causal attention computes.

    Whole blocks above the diagonal are skipped; the last query attends to the last key.
    """
    return 1.0 - max(0.0, min(queries, keys) - BLOCK) / (2.0 * max(keys, 1.0))


def _pad_operands(run: Run, call: OperatorCall, shape: Shape) -> Strides:
    """Launch copies that pad the operands' width to `ALIGNED`; return the result's strides."""
    for position in call.inputs[:3]:
        lower(run, call, position)
        copied(run, call, position, run.tensor(position).size)
    _, heads, rows, width = shape
    wide = -(-width // ALIGNED) * ALIGNED
    return (heads * rows * wide, wide, heads * wide, 1)


def _unfused(
    run: Run, call: OperatorCall, shape: tuple[float, float, float], heads: float, flops: float
) -> None:
    """Launch a kernel for each step of softmax(queries · keysᵀ + mask) · values.

    The scaling is applied to queries and keys. Since version 2.5, PyTorch computes all steps in
    float32, whatever the type of the operands.
    """
    for position in call.inputs:
        lower(run, call, position)
    queries, keys, width = shape
    scores, i, narrow = queries * keys * heads, call.node, run.product_width
    wide = narrow if "scores" in run.kept_half else 4
    sizes = [queries * width * heads, keys * width * heads, keys * width * heads]
    after: tuple[int, ...] = tuple(m for p in call.inputs for m in run.state(p).makers)
    first = Kernel(
        node=i,
        kind="batched_gemm",
        unit="half" if wide == HALF_WIDTH else "fp32",
        flops=flops / 2,
        read_bytes=wide * (sizes[0] + sizes[1]),
        write_bytes=wide * scores,
        m=queries,
        n=keys,
        k=width,
        copies=heads,
        in_bytes=wide,
        out_bytes=wide,
    )
    second = first._replace(
        read_bytes=wide * (scores + sizes[2]), write_bytes=wide * sizes[0], n=width, k=keys
    )
    softmax = Kernel.stream(i, "softmax", scores, wide)
    softmax = softmax._replace(m=queries * heads, n=keys, flops=5.0 * scores)
    steps = [Kernel.stream(i, "cast", size, narrow, wide) for size in sizes if narrow != wide]
    steps += [Kernel.stream(i, "elementwise", size, wide) for size in sizes[:2]]
    steps += [Kernel.stream(i, "copy", size, wide)._replace(strided=True) for size in sizes[:2]]
    steps += [first, *_mask_kernels(run, call, scores, wide), softmax]
    if narrow != wide:  # the weights in the type of the operands, which are never read
        steps.append(Kernel.stream(i, "cast", scores, wide, narrow))
    steps += [Kernel.stream(i, "copy", sizes[2], wide)._replace(strided=True), second]
    if narrow != wide:
        steps.append(Kernel.stream(i, "cast", sizes[0], wide, narrow))
    for kernel in steps:
        after = (run.emit(kernel, after=after),)
    run.make(call.outputs[0], narrow)


def _mask_kernels(run: Run, call: OperatorCall, scores: float, width: int) -> list[Kernel]:
    """Return kernels that add masks to the scores, in place."""
    found = []
    for position in call.inputs[3:]:
        if not run.tensor(position).is_number:
            mask = float(run.stored(position) * run.state(position).width)
            added = Kernel.stream(call.node, "broadcast", scores, width)
            found.append(added._replace(read_bytes=width * scores + mask, in_place=True))
    return found


# Attention without fused kernels: a call of attention replaced by the calls of its steps.
#
#     scores = (scale · queries) keysᵀ + mask
#     result = softmax(scores) values
#
# The copies and casts around each step follow from the rules of its kind, as for any other call. A
# causal mask that is an attribute instead of a tensor is not added.


def in_steps(sequence: CallSequence, precision: Precision) -> CallSequence:
    """Return a sequence in which each call of attention is replaced by its steps.

    A call whose operands no fused kernel supports (more axes) stays as it is; `attention` launches
    its steps.

    Args:
        sequence: calls at any batch.
        precision: number format of the run; autocast casts a mask before it is added.
    """
    steps = _StepBuilder(sequence, autocast=precision in AUTOCAST)
    for call in sequence.calls:
        steps.add(call)
    return replace(sequence, tensors=tuple(steps.tensors), calls=tuple(steps.calls))


class _StepBuilder:
    def __init__(self, sequence: CallSequence, *, autocast: bool) -> None:
        self.tensors, self.autocast = list(sequence.tensors), autocast
        self.calls: list[OperatorCall] = []

    def add(self, call: OperatorCall) -> None:
        """Add a call, or its steps if it is attention that fused kernels take."""
        axis = self._axis_of_lengths(call) if call.op == "attention" else None
        if axis is None:
            self.calls.append(call)
        else:
            self._add_steps(call, heads_inside=axis == -3)

    def _axis_of_lengths(self, call: OperatorCall) -> int | None:
        """Return the axis of the sequence length; None if the shapes do not show it.

        PyTorch has (batch, heads, length, width), Relax (batch, length, heads, width).
        """
        shapes = [self._shape(position) for position in call.inputs[:3]]
        ranks = {len(shape) for shape in shapes}
        if len(shapes) < 3 or len(ranks) > 1 or not 2 <= len(shapes[0]) <= FUSED_RANK:
            return None
        a = call.attributes
        lengths = [a["query_length"], a["key_length"], a["key_length"]]
        axes = (-2, -3) if len(shapes[0]) == FUSED_RANK else (-2,)
        return next((x for x in axes if [shape[x] for shape in shapes] == lengths), None)

    def _add_steps(self, call: OperatorCall, *, heads_inside: bool) -> None:
        query, key, value = call.inputs[:3]
        if heads_inside:
            query, key, value = (self._swap_axes(call, p, 1, 2) for p in (query, key, value))
        shape = self._shape(query)
        number = self._new_tensor(Tensor((), "float32", is_parameter=True, is_number=True))
        query = self._step(call, "multiply", (query, number), shape)
        rank = len(shape)
        key = self._swap_axes(call, key, rank - 2, rank - 1)
        table = (*shape[:-1], self._shape(key)[-1])
        scores = self._step(call, "matmul", (query, key), table, {"k": shape[-1]})
        for position in call.inputs[3:]:
            if not self.tensors[position].is_number and _broadcasts_to(
                self._shape(position), table
            ):
                scores = self._step(call, "add", (scores, self._cast_mask(call, position)), table)
        weights = self._step(call, "softmax", (scores,), table, {"axis": rank - 1})
        if not heads_inside:
            self._call(call, "matmul", (weights, value), call.outputs[0], {"k": table[-1]})
            return
        result = (*shape[:-1], self._shape(value)[-1])
        made = self._step(call, "matmul", (weights, value), result, {"k": table[-1]})
        self._call(call, "transpose", (made,), call.outputs[0], {"permutation": (0, 2, 1, 3)})

    def _cast_mask(self, call: OperatorCall, position: int) -> int:
        """Cast a mask as autocast does for a call of attention, so that the scores stay half."""
        tensor = self.tensors[position]
        if not self.autocast or not tensor.is_float:
            return position
        out = self._new_tensor(Tensor(tensor.shape, "float16"))
        self._call(call, "cast", (position,), out)
        return out

    def _swap_axes(self, call: OperatorCall, position: int, first: int, second: int) -> int:
        held = self.tensors[position]
        axes = list(range(len(held.shape)))
        axes[first], axes[second] = second, first
        out = self._new_tensor(replace(held, shape=tuple(held.shape[axis] for axis in axes)))
        self._call(call, "transpose", (position,), out, {"permutation": tuple(axes)})
        return out

    def _step(
        self,
        call: OperatorCall,
        op: str,
        inputs: tuple[int, ...],
        shape: Shape,
        attributes: Mapping[str, Any] | None = None,
    ) -> int:
        out = self._new_tensor(Tensor(shape, "float32"))
        self._call(call, op, inputs, out, attributes)
        return out

    def _call(
        self,
        call: OperatorCall,
        op: str,
        inputs: tuple[int, ...],
        out: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.calls.append(
            OperatorCall(op, attributes or {}, inputs, (out,), path=call.path, node=call.node)
        )

    def _new_tensor(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _shape(self, position: int) -> Shape:
        return self.tensors[position].shape


def _broadcasts_to(shape: Shape, wide: Shape) -> bool:
    """Return whether a tensor can be broadcast to a shape."""
    if len(shape) > len(wide):
        return False
    return all(n in (1, w) for n, w in zip(reversed(shape), reversed(wide), strict=False))
