"""The kernels that a model launches: operators expanded for a precision and an execution mode.

A latency is spent by kernels, not by operators: an eager framework launches a batch norm that an
exporter would have folded, casts what autocast feeds to a tensor core, and copies a permuted view
before it reshapes it. Views cost nothing and launch nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from dippm.conditions import Mode, Precision
from dippm.features.fusion import fuse
from dippm.features.kernel import Kernel, Unit
from dippm.features.kernel_classes import (
    KERNEL_CLASSES,
    class_of_folded,
    class_of_operator,
    convolution_class,
    reads_parameter,
)
from dippm.graph.draft import item_bytes
from dippm.graph.model_graph import STATIC, ModelGraph, OpNode
from dippm.graph.operators import operator
from dippm.progress import counted

KERNEL_VERSION = "6"

FUSED_RANK = 4
UNFUSED_ATTENTION = ("multiply", "multiply", "batch_matmul", "softmax", "batch_matmul")
"""What scaled_dot_product_attention launches for operands of more axes than its fused kernels."""


def launched(
    graph: ModelGraph,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    *,
    channels_last: bool = False,
) -> list[Kernel]:
    """Return the kernels of one inference in execution order.

    Args:
        graph: a graph at the batch in question.
        precision: see `Conditions`.
        mode: "eager", or "compiled", which fuses chains of element-wise kernels.
        channels_last: images are held so; a change to channels-last order is then only a view.
    """
    kernels = list(_Expansion(graph, precision, channels_last).kernels())
    if mode == "compiled":
        return fuse(graph, kernels)
    return kernels


class _Expansion:
    """Walks the graph in order and keeps, per node, the bytes per element of its result."""

    def __init__(self, graph: ModelGraph, precision: Precision, channels_last: bool) -> None:
        self.graph, self.precision, self.channels_last = graph, precision, channels_last
        self.autocast = precision in ("amp", "amp-bf16")
        self.low = 2 if precision in ("fp16", "bf16", "amp", "amp-bf16") else 4
        self.full = 2 if precision in ("fp16", "bf16") else 4
        self.producers: list[list[int]] = [[] for _ in graph.nodes]
        for producer, consumer in graph.edges:
            self.producers[consumer].append(producer)
        self.width = [self.full] * len(graph.nodes)
        self.strided = [False] * len(graph.nodes)

    def kernels(self) -> Iterator[Kernel]:
        nodes = counted(self.graph.nodes, len(self.graph.nodes), "kernels of operator")
        for position, node in enumerate(nodes):
            yield from self._node(position, node)

    def _node(self, i: int, node: OpNode) -> Iterator[Kernel]:
        matrix = self._matrix(node.op)
        if matrix and is_integer(node):
            self.width[i] = self._promoted(i, node)
            for kernel in matrix(i, node):
                yield self._in_integers(i, node, kernel)
            yield from self._epilogue(i, node)
            return
        if matrix:
            yield from self._casts(i, node)
            self.width[i] = self.low
            yield from matrix(i, node)
            yield from self._epilogue(i, node)
            return
        self.width[i] = self._promoted(i, node)
        if node.op == "transpose" or operator(node.op).category == "view":
            copies = bool(node.attributes.get("copies")) and not self._is_free(node)
            self.strided[i] = not copies and (node.op == "transpose" or self._reads_strided(i))
            if copies:
                yield self._move(i, node)
        elif any(not piece.startswith(STATIC) for piece in node.absorbed):
            yield from self._epilogue(i, node)
        elif operator(node.op).kernel != "none":
            yield from self._simple(i, node)

    def _is_free(self, node: OpNode) -> bool:
        return self.channels_last and node.attributes.get("permutation") == (0, 2, 3, 1)

    def _reads_strided(self, i: int) -> bool:
        return any(self.strided[p] for p in self.producers[i])

    def _matrix(self, op: str) -> Callable[[int, OpNode], Iterator[Kernel]] | None:
        return {
            "convolution": self._convolution,
            "gemm": self._dense,
            "batched_gemm": self._batched,
            "attention": self._attention,
            "recurrent": self._recurrent,
        }.get(operator(op).kernel)

    def _promoted(self, i: int, node: OpNode) -> int:
        """Return the bytes per element of the result of an operator without a matrix product."""
        if node.dtype.startswith(("int64", "uint64")):
            return 8
        if node.dtype.startswith(("int32", "uint32")):
            return 4
        if node.dtype.startswith(("bool", "int8", "uint8")):
            return 1
        if self.autocast and operator(node.op).autocast == "float32":
            return 4
        if self.autocast and reads_parameter(node):
            return 4
        widths = [self.width[p] for p in self.producers[i] if self.width[p] in (2, 4)]
        return max(widths, default=self.full)

    def _casts(self, i: int, node: OpNode) -> Iterator[Kernel]:
        """Casts that autocast launches before a matrix product: activations and weights."""
        if not self.autocast:
            return
        sources = [(p, _numel(self.graph.nodes[p])) for p in self.producers[i]]
        wide = [n for p, n in sources if self.width[p] == 4]
        if not sources:
            wide = [prod(node.in_shapes[0])] if node.in_shapes else []
        for elements in wide:
            yield _stream(i, "cast", elements, 4.0 * elements, 2.0 * elements, 4, 2)
        weights = node.param_bytes / item_bytes(node.dtype)
        if weights:
            cast = _stream(i, "cast", weights, 0.0, 2.0 * weights, 4, 2)
            yield replace(cast, weight_bytes=4.0 * weights)

    def _unit(self, kind: str) -> Unit:
        row = KERNEL_CLASSES[kind]
        if not row.tensor_cores:
            return "fp32"
        if self.precision in ("fp16", "bf16", "amp", "amp-bf16"):
            return "half"
        if self.precision == "tf32" or (self.precision == "fp32" and row.tf32_by_default):
            return "tf32"
        return "fp32"

    def _product(
        self, i: int, node: OpNode, kind: str, shape: tuple[float, float, float], copies: float
    ) -> Kernel:
        m, n, k = shape
        elements_in = sum(prod(s) for s in node.in_shapes)
        weights = node.param_bytes / item_bytes(node.dtype)
        return Kernel(
            node=i,
            kind=kind,
            unit=self._unit(kind),
            flops=2.0 * node.macs,
            read_bytes=float(self.low * elements_in),
            write_bytes=float(self.low * _numel(node)),
            weight_bytes=float(self.low * weights),
            m=m,
            n=n,
            k=k,
            copies=copies,
            in_bytes=self.low,
            out_bytes=self.low,
            strided=self._reads_strided(i),
        )

    def _in_integers(self, i: int, node: OpNode, kernel: Kernel) -> Kernel:
        """Return a product as one of 8-bit integers, whatever the precision of the rest."""
        share = kernel.flops / max(2.0 * node.macs, 1.0)
        return replace(
            kernel,
            unit="int8",
            read_bytes=kernel.read_bytes / self.low,
            write_bytes=kernel.write_bytes / self.low * self.width[i],
            weight_bytes=float(node.param_bytes) * share,
            in_bytes=1,
            out_bytes=self.width[i],
        )

    def _convolution(self, i: int, node: OpNode) -> Iterator[Kernel]:
        attributes = node.attributes
        kernel = _ints(attributes.get("kernel", (1,)))
        strides = _ints(attributes.get("strides", (1,)))
        groups = int(_number(attributes.get("groups", 1)))
        channels_in = int(_number(attributes.get("in_channels", 1)))
        channels_out = int(_number(attributes.get("out_channels", 1)))
        out = node.out_shapes[0]
        pixels = out[0] * prod(out[2:])
        shape = (float(pixels), channels_out / groups, channels_in / groups * prod(kernel))
        kind = convolution_class(node.op, kernel, strides, groups, channels_in)
        product = self._product(i, node, kind, shape, float(groups))
        yield replace(product, window=prod(kernel), stride=max(strides))

    def _dense(self, i: int, node: OpNode) -> Iterator[Kernel]:
        n = _number(node.attributes.get("out_features", node.out_shapes[0][-1]))
        k = _number(node.attributes.get("in_features", 1))
        yield self._product(i, node, "gemm", (_numel(node) / max(n, 1.0), n, k), 1.0)

    def _batched(self, i: int, node: OpNode) -> Iterator[Kernel]:
        out = node.out_shapes[0]
        m, n = (float(out[-2]), float(out[-1])) if len(out) > 1 else (1.0, float(out[-1]))
        yield from self._gathered(i, node)
        k = node.macs / max(1, _numel(node))
        yield self._product(i, node, "batched_gemm", (m, n, k), _numel(node) / max(m * n, 1.0))

    def _gathered(self, i: int, node: OpNode) -> Iterator[Kernel]:
        """Copies of permuted operands: a batched product wants its batch axes as one."""
        copies = node.absorbed.count("transpose")
        if copies and node.in_shapes:
            elements = sum(prod(s) for s in node.in_shapes) / len(node.in_shapes)
            moved = self.low * elements
            copy = _stream(i, "copy", elements, moved, moved, self.low, self.low)
            yield from [replace(copy, strided=True)] * copies

    def _attention(self, i: int, node: OpNode) -> Iterator[Kernel]:
        spelled = node.absorbed
        if "sdpa" in spelled and node.in_shapes and len(node.in_shapes[0]) > FUSED_RANK:
            spelled = UNFUSED_ATTENTION
        queries = _number(node.attributes.get("query_length", node.out_shapes[0][-2]))
        keys = _number(node.attributes.get("key_length", queries))
        width = _number(node.attributes.get("head_dim", node.out_shapes[0][-1]))
        heads = node.macs / max(1.0, 2.0 * queries * keys * width)
        fused = self._product(i, node, "attention", (queries, keys, width), heads)
        if not spelled or "sdpa" in spelled:
            yield fused
            return
        scores = queries * keys * heads
        first = True
        yield from self._gathered(i, node)
        for piece in spelled:
            if piece == "batch_matmul":
                shape = (queries, keys, width) if first else (queries, width, keys)
                io = (queries + keys) * width * heads, scores
                io = io if first else (scores + keys * width * heads, queries * width * heads)
                yield replace(
                    fused,
                    kind="batched_gemm",
                    flops=fused.flops / 2,
                    read_bytes=self.low * io[0],
                    write_bytes=self.low * io[1],
                    m=shape[0],
                    n=shape[1],
                    k=shape[2],
                )
                first = False
            elif piece == "softmax":
                yield from self._spelled_softmax(i, scores, keys)
            elif piece.startswith(STATIC):
                rows = node.param_bytes / 4
                yield _stream(i, "gather", rows, 4.0 * rows, 4.0 * rows, 4, 4)
            elif operator(piece).category in ("elementwise", "activation"):
                size = queries * width * heads if first else scores
                moved = self.low * size
                yield _stream(i, "elementwise", size, moved, moved, self.low, self.low)

    def _spelled_softmax(self, i: int, scores: float, keys: float) -> Iterator[Kernel]:
        wide = 4 if self.autocast else self.low
        kernel = _stream(i, "softmax", scores, wide * scores, wide * scores, wide, wide)
        if self.autocast:
            yield _stream(i, "cast", scores, 2.0 * scores, 4.0 * scores, 2, 4)
        yield replace(kernel, m=scores / max(keys, 1.0), n=keys, flops=5.0 * scores)
        if self.autocast:
            yield _stream(i, "cast", scores, 4.0 * scores, 2.0 * scores, 4, 2)

    def _recurrent(self, i: int, node: OpNode) -> Iterator[Kernel]:
        hidden = _number(node.attributes.get("hidden_size", 1))
        steps = int(_number(node.attributes.get("steps", 1)))
        layers = int(_number(node.attributes.get("layers", 1)))
        product = self._product(i, node, "recurrent", (_numel(node) / hidden, hidden, hidden), 1.0)
        yield replace(product, launches=max(1, steps * layers))

    def _move(self, i: int, node: OpNode) -> Kernel:
        elements, width = float(_numel(node)), self.width[i]
        moved = _stream(i, "copy", elements, width * elements, width * elements, width, width)
        row = node.out_shapes[0][-1] if node.out_shapes[0] else 1
        return replace(moved, strided=True, m=elements / max(row, 1), n=float(row))

    def _simple(self, i: int, node: OpNode) -> Iterator[Kernel]:
        kind = class_of_operator(node)
        elements = float(sum(prod(s) for s in node.out_shapes))
        width = self.width[i]
        sources = [self.width[p] for p in self.producers[i]]
        read = float(sum(prod(s) for s in node.in_shapes))
        source_width = max(sources, default=self.full)
        if self.autocast and operator(node.op).autocast == "float32" and source_width == 2:
            yield _stream(i, "cast", read, 2.0 * read, 4.0 * read, 2, 4)
            source_width = 4
        if KERNEL_CLASSES[kind].reads_what_it_writes or node.op == "dynamic_slice":
            read = elements
        row = _row(node, kind)
        serial = prod(node.out_shapes[0][:2]) if self._is_serial(i, node) else 0
        yield Kernel(
            node=i,
            kind=kind,
            unit="fp32",
            flops=float(max(node.flops, elements)),
            read_bytes=float(source_width * read),
            write_bytes=float(width * elements),
            weight_bytes=float(4 * row if KERNEL_CLASSES[kind].parameter_row else 0),
            m=max(read, elements) / max(row, 1.0),
            n=row,
            window=prod(_ints(node.attributes.get("kernel", (1,)))),
            stride=max(_ints(node.attributes.get("strides", (1,)))),
            in_bytes=source_width,
            out_bytes=width,
            strided=self._reads_strided(i),
            serial=float(serial),
        )

    def _is_serial(self, i: int, node: OpNode) -> bool:
        """Bilinear upsampling of contiguous images: a thread walks all images and channels."""
        return (
            node.op == "resize"
            and node.attributes.get("mode") == "linear"
            and len(node.out_shapes[0]) == 4
            and not self._reads_strided(i)
        )

    def _epilogue(self, i: int, node: OpNode) -> Iterator[Kernel]:
        """Kernels of what the rules folded in: after a product, in place of anything else."""
        if node.op == "attention":
            return
        elements, width = float(_numel(node)), self.width[i]
        for folded in node.absorbed:
            kind = class_of_folded(folded)
            if kind is None or folded == "transpose":
                continue
            yield _stream(i, kind, elements, width * elements, width * elements, width, width)


def is_integer(node: OpNode) -> bool:
    """Return whether a product is one of 8-bit integers."""
    return bool(node.in_dtypes) and all(dtype in ("int8", "uint8") for dtype in node.in_dtypes)


def _row(node: OpNode, kind: str) -> float:
    """Return the length over which a kernel reduces or streams contiguously."""
    shape = node.in_shapes[0] if node.in_shapes else node.out_shapes[0]
    axis = KERNEL_CLASSES[kind].axis
    if axis == "reduced" and node.out_shapes:
        return prod(shape) / max(1, prod(node.out_shapes[0]))
    if axis == "channels":
        return float(shape[1]) if len(shape) > 1 else 1.0
    return float(shape[-1]) if shape else 1.0


def _stream(
    node: int, kind: str, elements: float, read: float, write: float, in_bytes: int, out_bytes: int
) -> Kernel:
    return Kernel(
        node=node,
        kind=kind,
        unit="fp32",
        flops=float(elements),
        read_bytes=float(read),
        write_bytes=float(write),
        m=float(elements),
        in_bytes=in_bytes,
        out_bytes=out_bytes,
    )


def _numel(node: OpNode) -> int:
    return prod(node.out_shapes[0]) if node.out_shapes else 0


def _ints(value: object) -> tuple[int, ...]:
    if isinstance(value, tuple | list):
        return tuple(int(v) for v in value) or (1,)
    return (int(value),) if isinstance(value, int | float) else (1,)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 1.0
