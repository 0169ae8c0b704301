"""`MemoryFootprint`: the bytes of a model in memory at each step, for every batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dippm.estimate.conditions import Attention, Mode, Precision
from dippm.estimate.features.kernels.launch import keeps_state
from dippm.estimate.models.allocator import BLOCK, MIB, Residents, reserved_bytes, residents_of
from dippm.estimate.models.compiled_program import narrowed, overwritten, without_indices
from dippm.model.graph.dialects.recurrent import GATES
from dippm.model.graph.draft import Shape, item_bytes
from dippm.model.graph.float_type import weight_bytes
from dippm.model.graph.liveness import Lifetime, compiled_lifetimes, eager_lifetimes
from dippm.model.graph.macs import is_complex
from dippm.model.graph.model_graph import ModelGraph, OpNode, is_view
from dippm.model.graph.operators import FUSED_RANK, operator
from dippm.model.graph.program import Buffer, Program, ProgramStep

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

KEPT_MARGIN = 1.4
"""Times the sum of all results: of 160 models of a zoo none keeps more under autograd. Recurrent
layers, which keep their gates, come closest (Sequencer2D: 1.35)."""
PRODUCT_WORKSPACE = 8_519_680
LARGE_PRODUCT_WORKSPACE = 32 << 20
"""Bytes that PyTorch gives cuBLAS with the first matrix product, CUBLAS_WORKSPACE_CONFIG unset; the
larger one on Hopper and Blackwell of data centres. Measured on an H200 (torch 2.11): 33.0 MiB more
is allocated than weights and activations take, in the median of 108 small models."""
LAZY_CAPABILITY = 8.9
"""Compute capability from which a GPU needs CUDA 11.8 or newer, which load kernels lazily."""
_PRODUCTS = ("dense", "batch_matmul", "attention")
_AUTOCASTS: tuple[Precision, ...] = ("amp", "amp-bf16")


class MemoryGpu(NamedTuple):
    """The properties of a GPU that the memory of a process depends on.

    Attributes:
        sm_count: number of multiprocessors of the GPU or slice; None if not known.
        compute_capability: NVIDIA's compute capability, such as 9.0 for Hopper; None if not known.
    """

    sm_count: int | None = None
    compute_capability: float | None = None

    @property
    def workspace_bytes(self) -> int:
        """Return the workspace of matrix products in bytes."""
        is_large = 9.0 <= (self.compute_capability or 0.0) < 12.0
        return LARGE_PRODUCT_WORKSPACE if is_large else PRODUCT_WORKSPACE

    @property
    def is_lazy(self) -> bool:
        """Tell whether every software that runs on it loads its kernels lazily."""
        return (self.compute_capability or 0.0) >= LAZY_CAPABILITY


@dataclass(frozen=True, slots=True)
class Alive:
    """The contents of memory at its peak.

    Attributes:
        activation_bytes: tensors of the pass.
        cast_weight_bytes: half-precision copies of weights that autocast has made by then.
        node: position in `ModelGraph.nodes`; None if the inputs alone are the peak.
    """

    activation_bytes: float
    cast_weight_bytes: float
    node: int | None

    @property
    def total_bytes(self) -> float:
        """Return the sum of activations and copies of weights."""
        return self.activation_bytes + self.cast_weight_bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory of a model at one batch, the same on every GPU with one size of workspace.

    Attributes:
        weight_bytes: parameters, as they are stored.
        alive: contents of memory at its peak.
        reserved_bytes: segments of the caching allocator: `torch.cuda.max_memory_reserved`.
        convolves: whether the model has convolutions.
        kept_bytes: part of the reserved bytes that autograd alone keeps.
    """

    weight_bytes: float
    alive: Alive
    reserved_bytes: float
    convolves: bool
    kept_bytes: float = 0.0

    @property
    def reserved_mb(self) -> float:
        """Return the segments of the allocator in MiB."""
        return self.reserved_bytes / MIB


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """The tensors of one pass, with the steps between which each is in memory.

    The size of a tensor is `base · batch ** power` bytes, so a batch needs no other walk, though
    the step at which most is alive may change with it.

    Attributes:
        weight_bytes: parameters, as they are stored.
        weights: segments of the parameters.
        first, last: steps of each tensor, both included, shape (T,).
        base, power: coefficients of each tensor's size, base · batch^power, shape (T,).
        cast_weight: whether it is autocast's copy of a weight, shape (T,).
        workspace: whether it is a library's workspace, which frameworks do not count, shape (T,).
        nodes: position in `ModelGraph.nodes` of each step, -1 without one.
        first_product: step with the first matrix product; None without one.
        first_recurrent: step with the first recurrent layer; None without one.
        convolves: whether it has convolutions.
    """

    weight_bytes: float
    weights: Residents
    first: Integers
    last: Integers
    base: Floats
    power: Floats
    cast_weight: NDArray[np.bool_]
    workspace: NDArray[np.bool_]
    nodes: tuple[int, ...]
    first_product: int | None
    first_recurrent: int | None
    convolves: bool

    @classmethod
    def of(
        cls,
        graph: ModelGraph,
        precision: Precision = "fp32",
        mode: Mode = "eager",
        *,
        attention: Attention = "fused",
        channels_last: bool = False,
        inference_mode: bool = False,
    ) -> MemoryFootprint:
        """Work out the tensors of a pass.

        Args:
            graph: the model, at any batch.
            precision: number format, see `Conditions`.
            mode: "eager" or "compiled".
            attention: "fused" attention keeps its scores on the chip; "unfused" writes them.
            channels_last: whether images are stored channels last, as tensor cores need them.
            inference_mode: whether it runs under `torch.inference_mode` and not `torch.no_grad`,
                which keeps autocast's copies of weights until the pass ends.
        """
        program = graph.program or program_of(graph)
        autocast, halves = precision in _AUTOCASTS, frozenset[int]()
        if mode == "compiled":
            program = without_indices(program)
            if autocast:
                program, halves = narrowed(program, Widths(program, precision).of)
        widths = Widths(program, precision, halves)
        lifetimes = eager_lifetimes(program)
        if mode == "compiled":
            lifetimes = overwritten(program, compiled_lifetimes(program, halves), widths.of)
        tensors = list(_tensors(program, lifetimes, widths, _Scores(attention, mode)))
        if autocast:
            tensors += _cast_weights(program, freed=inference_mode or mode == "compiled")
        if precision != "fp32-ieee":
            are_first = mode == "eager" and not channels_last
            tensors += _convolution_workspaces(program, precision, channels_first=are_first)
        tensors += _recurrent_workspaces(program, graph.nodes, widths)
        marker = program.batch if graph.batch_is_symbolic else 0
        sizes = [_size(t.shape, t.width, marker) for t in tensors]
        stored = weight_bytes(graph, in_half=precision in ("fp16", "bf16"))
        products = (i for i, step in enumerate(program.steps) if step.op in _PRODUCTS)
        layers = (i for i, step in enumerate(program.steps) if step.op in GATES)
        return cls(
            weight_bytes=stored,
            weights=_weight_segments(program, stored),
            first=np.array([t.lifetime.first for t in tensors], dtype=np.int64),
            last=np.array([t.lifetime.last for t in tensors], dtype=np.int64),
            base=np.array([base for base, _ in sizes], dtype=np.float64),
            power=np.array([power for _, power in sizes], dtype=np.float64),
            cast_weight=np.array([t.cast_weight for t in tensors], dtype=np.bool_),
            workspace=np.array([t.workspace for t in tensors], dtype=np.bool_),
            nodes=tuple(step.node for step in program.steps),
            first_product=next(products, None),
            first_recurrent=next(layers, None),
            convolves=any(step.op.startswith("conv") for step in program.steps),
        )

    def usage(self, batch: int, gpu: MemoryGpu = MemoryGpu()) -> Usage:
        """Return the memory at a batch on a GPU."""
        lives = self.sizes(batch).astype(np.int64), self.first, self.last
        reserved = reserved_bytes(
            *(array.tolist() for array in lives),
            residents=self.weights,
            lasting=self.product_workspaces,
        )
        reserved -= self.spared_bytes(gpu)
        return Usage(self.weight_bytes, self.peak(batch), float(reserved), self.convolves)

    @property
    def product_workspaces(self) -> tuple[tuple[int, int], ...]:
        """Return the bytes of each workspace of matrix products with the step that makes it.

        The products of recurrent layers have one of their own. Those of every GPU are placed as the
        large ones: whether a smaller one takes a piece of a large block or of some small one hangs
        on single MiB, so that memory would fall by a quarter from one batch to the next.
        """
        steps = self.first_product, self.first_recurrent
        return tuple((LARGE_PRODUCT_WORKSPACE, step) for step in steps if step is not None)

    def spared_bytes(self, gpu: MemoryGpu) -> int:
        """Return by how much the workspaces of a GPU are smaller than those that are placed."""
        return len(self.product_workspaces) * (LARGE_PRODUCT_WORKSPACE - gpu.workspace_bytes)

    def sizes(self, batch: int) -> Floats:
        """Return the bytes of each tensor at a batch, as the allocator rounds them, shape (T,)."""
        exact = self.base * float(batch) ** self.power
        return np.asarray(np.ceil(exact / BLOCK) * BLOCK, dtype=np.float64)

    def peak(self, batch: int) -> Alive:
        """Return the contents of memory at its peak, without workspaces."""
        sizes = np.where(self.workspace, 0.0, self.sizes(batch))
        total = self._alive(sizes)
        most = int(total.argmax())
        copies = float(self._alive(np.where(self.cast_weight, sizes, 0.0))[most])
        step = most - 1
        node = self.nodes[step] if 0 <= step < len(self.nodes) else -1
        return Alive(float(total[most]) - copies, copies, None if node < 0 else node)

    def alive_by_node(self, batch: int) -> dict[int, float]:
        """Return the bytes of activations alive while each operator runs, by its position."""
        counted = self.workspace | self.cast_weight
        alive = self._alive(np.where(counted, 0.0, self.sizes(batch)))[1:]
        found: dict[int, float] = {}
        for node, total in zip(self.nodes, alive.tolist(), strict=False):
            found[node] = max(total, found.get(node, 0.0))
        found.pop(-1, None)
        return found

    def all_kept(self, batch: int, usage: Usage) -> Usage:
        """Return the memory if no tensor of the pass is freed until it ends.

        Of nearly all models that is more than autograd keeps, with a margin for copies and for the
        rounding of many small tensors.

        Args:
            batch: samples.
            usage: at the batch, as `usage` returns it.
        """
        kept = KEPT_MARGIN * float(self.sizes(batch).sum())
        kept += self.weights.reserved_bytes + LARGE_PRODUCT_WORKSPACE
        return replace(usage, reserved_bytes=max(usage.reserved_bytes, kept))

    def _alive(self, sizes: Floats) -> Floats:
        """Return the bytes alive before the first step, at each step, and after the last."""
        change = np.zeros(len(self.nodes) + 3)
        np.add.at(change, self.first + 1, sizes)
        np.add.at(change, self.last + 2, -sizes)
        return np.asarray(np.cumsum(change)[:-1], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: Shape
    width: float
    lifetime: Lifetime
    cast_weight: bool = False
    workspace: bool = False


def _tensors(
    program: Program, lifetimes: dict[int, Lifetime], widths: Widths, scores: _Scores
) -> Iterator[_Tensor]:
    fused = {b for step in program.steps for b in (*step.makes, *step.passing)} - set(lifetimes)
    for buffer in range(program.inputs):
        yield _Tensor(program.buffers[buffer].shape, widths.of[buffer], lifetimes[buffer])
    for i, step in enumerate(program.steps):
        now = Lifetime(i, i)
        for buffer in (*step.makes, *step.passing):
            if buffer not in fused:
                yield _Tensor(program.buffers[buffer].shape, widths.of[buffer], lifetimes[buffer])
        for shape, width in (*widths.casts[i], *scores.held(step, widths)):
            yield _Tensor(shape, width, now)


def _weight_segments(program: Program, weight_bytes: float) -> Residents:
    """Return the segments of the parameters, which are placed one after the other.

    What no step reads is stored as well: it is spread over those that are read.

    Args:
        program: the steps, which read the parameters.
        weight_bytes: bytes of all parameters.
    """
    elements = {parameter: n for step in program.steps for parameter, n in step.weights}
    total = sum(elements.values())
    if not total:
        return residents_of([weight_bytes] if weight_bytes else ())
    return residents_of(weight_bytes * elements[place] / total for place in sorted(elements))


def _cast_weights(program: Program, *, freed: bool) -> Iterator[_Tensor]:
    """Yield the half-precision copies of weights that autocast makes.

    Under `torch.no_grad` eager autocast keeps each copy of a parameter until the pass ends, but
    none of what the pass computes of one (a standardised weight).

    Args:
        program: the steps.
        freed: whether every copy is freed after its last reader.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    elements: dict[int, int] = {}
    for i, step in enumerate(program.steps):
        made = program.buffers[step.makes[0]].dtype if step.makes else ""
        if operator(step.op).autocast == "lower" and not is_complex(made):
            for parameter, count in step.weights:
                first.setdefault(parameter, i)
                elements.setdefault(parameter, count)
                gone = freed or parameter in step.computed
                last[parameter] = i if gone else len(program.steps)
    for parameter, start in first.items():
        lifetime = Lifetime(start, last[parameter])
        yield _Tensor((elements[parameter],), 2, lifetime, cast_weight=True)


def _convolution_workspaces(
    program: Program, precision: Precision, *, channels_first: bool
) -> Iterator[_Tensor]:
    """Yield the workspaces that cuDNN takes for convolutions of images, as seen on H100 and H200.

    Tensor cores read and write images with the channels last. Of those with the channels first it
    makes copies in that order: image and result in one block, the filter in another. Filters of one
    pixel need none, unless half precision strides over pixels; depthwise ones run without tensor
    cores. Filters of several groups have them in either order. Compiled images lie channels last.
    The most that the allocator had in use in 446 points of our own sets with convolutions: 0.7 %
    off in the median, 1.3 % without.
    """
    in_half = precision in ("fp16", "bf16", *_AUTOCASTS)
    width = 2.0 if in_half else 4.0
    for i, step in enumerate(program.steps):
        if not step.groups or not step.reads:
            continue
        result = program.buffers[step.makes[0]].shape
        if len(result) <= 3:
            continue
        image, now = step.reads[0][1], Lifetime(i, i)
        channels = image[1], result[1]
        if step.groups > 1 and step.groups >= min(channels):
            continue
        if step.groups == 1 and not channels_first:
            continue
        filter_elements = step.weights[0][1] if step.weights else 0
        is_pixel = filter_elements * step.groups == prod(channels)
        if is_pixel and not (in_half and prod(image[2:]) > prod(result[2:])):
            continue
        yield _Tensor((prod(image) + prod(result),), width, now, workspace=True)
        if not is_pixel:
            yield _Tensor((filter_elements,), width, now, workspace=True)


def _recurrent_workspaces(
    program: Program, nodes: Sequence[OpNode], widths: Widths
) -> Iterator[_Tensor]:
    """Yield what cuDNN holds while a recurrent layer runs, as seen of GRUs on an H100 and an H200.

    In tensors of the result's size: of a small state, whose steps are one kernel, its gates before
    and after the state came to them, of all layers; of a larger one those of one layer, and two.
    """
    for i, step in enumerate(program.steps):
        if step.op not in GATES or not step.makes or not step.reads:
            continue
        made, gates = step.makes[0], GATES[step.op]
        hidden = nodes[step.node].attributes.get("hidden_size")
        if isinstance(hidden, int) and hidden > 0 and keeps_state(step.op, hidden):
            results = 2 * gates * _stacked_layers(step, hidden, program.buffers[made].shape)
        else:
            results = gates + 2
        shape = (results * prod(program.buffers[made].shape),)
        yield _Tensor(shape, widths.of[made], Lifetime(i, i), workspace=True)


def _stacked_layers(step: ProgramStep, hidden: int, result: Shape) -> int:
    """Return the layers of one call, of which a graph has a node each, by their weights."""
    directions, gates = max(1, result[-1] // hidden), GATES[step.op]

    def weights(features: int) -> int:
        return directions * gates * hidden * (features + hidden + 2)

    elements = sum(n for _, n in step.weights)
    more = elements - weights(step.reads[0][1][-1])
    return 1 + max(0, round(more / weights(directions * hidden)))


@dataclass(frozen=True, slots=True)
class _Scores:
    """Return the tensors of unfused attention: scores and their softmax."""

    attention: Attention
    mode: Mode

    def held(self, step: ProgramStep, widths: Widths) -> list[tuple[Shape, float]]:
        """Return shape and bytes per element of all that is in memory while the step runs."""
        if not step.scores or (self.attention == "fused" and len(step.scores) == FUSED_RANK):
            return []
        low = widths.of[step.makes[0]]
        return [(step.scores, width) for width in self._widths(step, low, widths.autocast)]

    def _widths(self, step: ProgramStep, low: float, autocast: bool) -> tuple[float, ...]:
        if not autocast:
            return low, low
        if len(step.scores) != FUSED_RANK:
            return low, 4.0, 4.0  # computed in float32 as a whole
        # Autocast has a softmax in float32, whose scores are gone when it is cast back for the next
        # product; compiled, that is one kernel. Seven peaks that DeiT III publishes say so, see
        # `training.studies.published`.
        return (low, low) if self.mode == "compiled" else (low, 4.0)


def _size(shape: Shape, width: float, marker: int) -> tuple[float, float]:
    """Return (bytes at batch 1, power of the batch)."""
    elements, power = prod(shape), 0
    while marker > 1 and elements and elements % marker == 0:
        elements //= marker
        power += 1
    return elements * width, float(power)


# Program of a graph that no file was read for: its canonical operators, as they stand.


def program_of(graph: ModelGraph) -> Program:
    """Return one step for each operator that is not a view; all of them in one module."""
    buffers = [Buffer(spec.shape, spec.dtype) for spec in graph.inputs]
    inputs = len(buffers)
    producers: dict[int, list[int]] = {}
    for producer, consumer in graph.edges:
        producers.setdefault(consumer, []).append(producer)
    made: dict[int, tuple[int, ...]] = {}
    steps = []
    for i, node in enumerate(graph.nodes):
        before = [b for p in producers.get(i, ()) for b in made[p]]
        if is_view(node.op, node.attributes):
            made[i] = tuple(before[:1] or range(inputs)[:1])
            continue
        buffers += [Buffer(shape, node.dtype) for shape in node.out_shapes]
        made[i] = tuple(range(len(buffers) - len(node.out_shapes), len(buffers)))
        reads = tuple((b, buffers[b].shape) for b in dict.fromkeys(before))
        elements = node.param_bytes // item_bytes(node.dtype)
        weights = ((-1 - i, elements),) if node.param_bytes else ()
        steps.append(
            ProgramStep(node.op, reads, made[i], (), weights, scores=_scores(node), node=i)
        )
    outputs = {b for i in graph.output_nodes if i >= 0 for b in made[i]}
    return Program(
        tuple(buffers), tuple(steps), inputs, graph.batch, tuple(sorted(outputs)), frozenset({""})
    )


def _scores(node: OpNode) -> Shape:
    query = node.in_shapes[0] if node.op == "attention" and node.in_shapes else ()
    keys = node.attributes.get("key_length")
    return (*query[:-1], keys) if len(query) == FUSED_RANK and isinstance(keys, int) else ()


# How wide the elements of each tensor are: by the file's types, the precision, and autocast.


class Widths:
    """Bytes per element of every buffer, and the casts that autocast makes before each step.

    Args:
        program: the steps.
        precision: number format, see `Conditions`.
        halves: buffers in half precision, whatever operator writes them.
    """

    def __init__(
        self, program: Program, precision: Precision, halves: frozenset[int] = frozenset()
    ) -> None:
        self._halves = halves
        self.autocast = precision in _AUTOCASTS
        self.full = 2.0 if precision in ("fp16", "bf16") else 4.0
        self.of: dict[int, float] = {}
        self.casts: list[list[tuple[Shape, float]]] = []
        for buffer in range(program.inputs):
            self.of[buffer] = self._as_stored(program.buffers[buffer])
        for step in program.steps:
            self._follow(step, program.buffers)

    def _as_stored(self, buffer: Buffer) -> float:
        return self.full if buffer.dtype == "float32" else float(item_bytes(buffer.dtype))

    def _follow(self, step: ProgramStep, buffers: tuple[Buffer, ...]) -> None:
        for buffer, _ in step.reads:
            self.of.setdefault(buffer, self._as_stored(buffers[buffer]))
        floats = [(b, s) for b, s in step.reads if "float" in buffers[b].dtype]
        width, casts = self.full, []
        if self.autocast:
            width = self._autocast(step, [self.of[b] for b, _ in floats])
            if operator(step.op).autocast != "promote":
                casts = [(s, width) for b, s in floats if self.of[b] != width]
        self.casts.append(casts)
        for buffer in (*step.makes, *step.passing):
            stored = self._as_stored(buffers[buffer])
            self.of[buffer] = width if buffers[buffer].dtype == "float32" else stored
            if buffer in self._halves:
                self.of[buffer] = 2.0

    def _autocast(self, step: ProgramStep, given: list[float]) -> float:
        row = operator(step.op)
        if row.autocast == "lower":
            return 2.0
        if row.autocast == "float32" or (step.weights and row.category == "elementwise"):
            return 4.0
        return max(given, default=4.0)
