"""Whether the batch of an export stands for every batch: loops over samples, lost sizes.

An export at a marker batch is valid for all batches if the work of the model scales with the batch.
But a Python loop over samples is unrolled, and a sequence-first recurrent layer mistakes the batch
for time. `BatchWatch` detects both while the model runs; `loses_batch` checks the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dippm.model.frontends.torch.paths import path_of

MAX_PIECES = 32
"""Maximum number of pieces cut from a batch; more indicate a loop over samples."""

CUTS = frozenset(
    """
    __getitem__ select slice narrow index_select unbind split split_with_sizes chunk tensor_split
    """.split()
)


REDUCTIONS = frozenset(
    """
    all amax amin any argmax argmin histc linalg_vector_norm logsumexp max mean min norm prod std
    sum var
    """.split()
)
"""Operators that remove the batch without fixing a size: later results do not depend on it."""


class BatchMissedError(Exception):
    """The model splits the batch into samples, or uses it as the steps of a sequence."""


class BatchWatch(TorchFunctionMode):
    """Observes how a model uses the batch while it runs.

    Attributes:
        batch: the marker; 0 to observe nothing.
        knows_batch_axis: whether the user stated where the batch is, which overrides layers.
        is_cut: whether the model split the batch, which ends the run.
        misplaced: sequence-first layers that received the batch as their sequence.
        placed: sequence-first layers that received the batch at the right axis.
    """

    def __init__(self, batch: int, *, knows_batch_axis: bool = False) -> None:
        super().__init__()
        self.batch, self.knows_batch_axis, self.is_cut = batch, knows_batch_axis, False
        self.misplaced: list[str] = []
        self.placed: list[str] = []
        self._pieces = 0
        self._rests: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.batch and args:
            self.look(func, args[0], result)
        return result

    def look(self, func: Any, source: Any, result: Any) -> None:
        """Count the pieces that a function cuts from a batch.

        Raises:
            BatchMissedError: if they are too many.
        """
        name = getattr(func, "__name__", "").partition(".")[0]
        if name not in CUTS or not (self.scales(source) or id(source) in self._rests):
            return
        pieces = result if isinstance(result, list | tuple) else (result,)
        lost = [p for p in pieces if isinstance(p, torch.Tensor) and not self.scales(p)]
        for piece in lost:  # x = x[1:] continues with the rest
            sizes = [size for size in piece.shape if isinstance(size, int)]
            if any(self.batch - MAX_PIECES < size < self.batch for size in sizes):
                self._rests[id(piece)] = piece
        self._pieces += len(lost)
        if self._pieces > MAX_PIECES:
            self.is_cut = True
            raise BatchMissedError

    def scales(self, value: Any) -> bool:
        """Return whether a tensor has a size that scales with the batch."""
        return isinstance(value, torch.Tensor) and scales_with_batch(value.shape, self.batch)

    def saw_sequence_first(self, name: str, value: Any) -> None:
        """Record the input of a sequence-first layer.

        Raises:
            BatchMissedError: if the batch is at the axis of the sequence.
        """
        if not self.batch or not isinstance(value, torch.Tensor):
            return
        if value.dim() == 3 and scales_with_batch(value.shape[1:2], self.batch):
            self.placed.append(name)
        elif scales_with_batch(value.shape[:1], self.batch) and not self.knows_batch_axis:
            self.misplaced.append(name)
            raise BatchMissedError


class ScriptWatch(TorchDispatchMode):
    """The same for scripted modules, whose calls are visible as operators only."""

    def __init__(self, watch: BatchWatch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.watch.batch and args:
            self.watch.look(func, args[0], result)
        return result


def _rank(value: Any) -> int:
    return value.dim() if isinstance(value, torch.Tensor) else 0


def scales_with_batch(sizes: Any, batch: int) -> bool:
    """Return whether one of these sizes scales with a marker batch."""
    return any(isinstance(size, int) and size and size % batch == 0 for size in sizes)


def watch_sequences(module: torch.nn.Module, watch: BatchWatch) -> Callable[[], None]:
    """Hook sequence-first layers to report inputs to the watch; return the unhook function."""
    handles = []
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.RNNBase | torch.nn.MultiheadAttention):
            hook = _hook(watch, name or type(layer).__name__, layer)
            handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


def _hook(watch: BatchWatch, name: str, layer: torch.nn.Module) -> Any:
    def hook(_: torch.nn.Module, args: Any, kwargs: Any) -> None:
        value = args[0] if args else kwargs.get("input", kwargs.get("query"))
        if not layer.batch_first or _rank(value) == 2:  # rank 2 has no batch
            watch.saw_sequence_first(name, value)

    return hook


def has_sequence_first(module: torch.nn.Module) -> bool:
    """Return whether a module has layers that expect the sequence before the batch."""
    kinds = torch.nn.RNNBase | torch.nn.MultiheadAttention
    return any(isinstance(part, kinds) and not part.batch_first for part in module.modules())


def loses_batch(program: ExportedProgram, batch: int) -> bool:
    """Return whether results of some operator do not scale with the batch of its arguments.

    That is right for a mean over the batch or its first sample, but wrong if a size was computed
    from the batch (``x[: len(x) // 2]``) or fixed by a trace. A second export decides.
    """
    for node in program.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.op != "call_function" or name == "getitem" or name.startswith("new_"):
            continue
        if name.partition(".")[0] in REDUCTIONS:
            continue
        results = [v for v in _values(node.meta.get("val")) if v.dim()]
        if not results:
            continue
        cut = not all(scales_with_batch(value.shape, batch) for value in results)
        if cut and any(
            scales_with_batch(value.shape, batch)
            for argument in node.all_input_nodes
            for value in _values(argument.meta.get("val"))
        ):
            return True
    return False


def repeats_per_sample(program: ExportedProgram, batch: int) -> bool:
    """Return whether a module ran one operator so often that it may loop over samples.

    A loop repeats the same module; the same count over many layers is just a large model.
    """
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    runs = Counter((path_of(node), node.target) for node in nodes)
    return bool(runs) and runs.most_common(1)[0][1] >= batch


def same_work(one: ExportedProgram, batch: int, other: ExportedProgram, other_batch: int) -> bool:
    """Return whether two exports have the same operators, with sizes that scale with the batch."""
    nodes = [n for n in one.graph.nodes if n.op == "call_function"]
    others = [n for n in other.graph.nodes if n.op == "call_function"]
    if len(nodes) != len(others):
        return False
    for node, twin in zip(nodes, others, strict=True):
        if node.target is not twin.target:
            return False
        sizes = [tuple(v.shape) for v in _values(node.meta.get("val"))]
        twins = [tuple(v.shape) for v in _values(twin.meta.get("val"))]
        if [tuple(_rescale(s, batch, other_batch) for s in shape) for shape in sizes] != twins:
            return False
    return True


def _rescale(size: Any, batch: int, other: int) -> Any:
    factor = 1
    while isinstance(size, int) and size and size % batch == 0:
        size //= batch
        factor *= other
    return size * factor


def _values(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)
