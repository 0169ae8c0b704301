"""Data-dependent sizes, replaced by upper bounds: how detectors become graphs.

Without data it is unknown which boxes survive a threshold or a non-maximum suppression. So each
such size is set to its upper bound: every candidate survives, until the model's own limits apply
(the best 1,000 proposals, 100 detections). If a model reads a number from a tensor there is no
bound, and the graph ends; that is allowed after the last layer only. Whether a layer follows is
checked by continuing with made-up data, since a loop may run earlier layers again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dippm.model.frontends.torch.paths import calling_place
from dippm.model.frontends.torch.script import has_scripts, run_script

LAYERS = frozenset(
    """
    linear bilinear matmul __matmul__ __rmatmul__ mm bmm mv addmm baddbmm addbmm addmv einsum
    tensordot conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    multi_head_attention_forward scaled_dot_product_attention
    """.split()
)
"""Functions that are a layer if an argument is a parameter or buffer of the module."""
MOST_READS = 100
"""Number of reads after the end of a graph at which the search for layers stops."""
READS = frozenset("item tolist numpy __bool__ __int__ __float__ __index__ __contains__".split())
BOUND = (
    "sizes that depend on data ({names}) were stated as their upper bound, as if every candidate "
    "passed"
)
CUT = "the work after the last layer that depends on data ({name}) is not in the graph"


class _EndOfGraphError(Exception):
    """The model read data, which ends the graph."""


class UpperBoundSizes(TorchFunctionMode):
    """Runs a module with upper bounds for data-dependent sizes.

    Args:
        answer: value of every read of data, to continue after the end of the graph; None to stop
            there.

    Attributes:
        has_run: whether the module reached a data-dependent size.
        read_at: line of the model that read data and ends the graph, "" if none did.
        stated_at: line of the first data-dependent size, "" if there is none.
        works_at: line of a layer that ran after the end, new or repeated; "" if none did.
        in_scripts: whether parts of the module are scripted; see `with_positions`.
    """

    def __init__(self, answer: bool | None = None) -> None:
        super().__init__()
        self.has_run, self.read_at, self.stated_at, self.works_at = False, "", "", ""
        self.in_scripts = False
        self._answer, self._reads = answer, 0
        self._kept: dict[int, torch.Tensor] = {}
        self._stated: dict[str, None] = {}
        self._cut = ""
        self._selects_boxes = False
        self._early = False
        self._weights: set[int] = set()
        self._made: dict[int, torch.Tensor] = {}
        self._masks: dict[int, torch.Tensor] = {}
        self._selects_others = self._has_layers = False

    def run(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Callable[[Any], Iterable[torch.Tensor]],
        masks: Iterable[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """Call the module; return its results, or the unused values at the end of the graph.

        `masks` are boolean inputs: the user of the model decides what they select.
        """
        self._masks = {id(mask): mask for mask in masks}
        self._weights = {id(p) for p in module.parameters() if p.dim() > 1}
        self._has_layers = bool(self._weights)
        kept = (*module.parameters(), *module.buffers())
        self._kept = {id(tensor): tensor for tensor in kept if tensor.dim()}
        if not self._has_layers and not self._masks:
            raise ValueError("without weights there is no last layer")
        stack = _module_stack()
        depth = len(stack)
        self.in_scripts = has_scripts(module)
        scripts = _InScriptOperators(self) if self.in_scripts else nullcontext()
        try:
            with self, scripts:
                if isinstance(module, torch.jit.ScriptModule):
                    return list(tensors(run_script(module, *args, **kwargs)))
                return list(tensors(module(*args, **kwargs)))
        except _EndOfGraphError:
            while len(stack) > depth:  # after an error the tracer does not leave modules
                stack.popitem()
            return list(self._made.values())

    @property
    def is_sound(self) -> bool:
        """Whether all bounds and omissions concern the selection of boxes, or follow all layers.

        Elsewhere a bound may be far from the truth: each expert of a mixture would get all tokens.
        """
        return self.has_run and (self._selects_boxes or not self._early)

    @property
    def is_of_inputs(self) -> bool:
        """Whether all bounds concern selections by boolean inputs."""
        return bool(self._stated) and not self._selects_others and not self._cut

    @property
    def is_cut(self) -> bool:
        """Whether the graph ends before the module's results."""
        return bool(self._cut)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        notes = (BOUND.format(names=", ".join(self._stated)),) if self._stated else ()
        return (*notes, CUT.format(name=self._cut)) if self._cut else notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func)).partition(".")[0]
        given = list(_flat([args, kwargs]))
        for tensor in given:
            self._weights.discard(id(tensor))
        if self.has_run and name in LAYERS:
            self._see_layer(given)
        if name in READS:
            return self._read(name, func, args, kwargs)
        state = _STATED.get(name)
        result = state(args, kwargs) if state is not None else None
        if result is None:
            result = func(*args, **kwargs)
        else:
            self._state(_WORDS.get(name, name), of_inputs=self._is_of_masks(name, given))
            self._selects_boxes |= name == "nms"
        made = list(_flat(result))
        self._follow_masks(given, made)
        if made:  # reading a shape is not a use
            for tensor in given:
                self._made.pop(id(tensor), None)
        self._made.update({id(tensor): tensor for tensor in made})
        if given and all(id(tensor) in self._kept for tensor in given):
            self._kept.update({id(tensor): tensor for tensor in made})
        return result

    def select(self, name: str, args: Any, kwargs: Any) -> Any:
        """Return the rows that boolean inputs select, None for other selections.

        Used for operators of scripts, where nothing else is followed.
        """
        if name not in _SELECTIONS or not self._is_of_masks(name, list(_flat([args, kwargs]))):
            return None
        result = _SELECTIONS[name](args, kwargs)
        if result is not None:
            self._state(_WORDS.get(name, name), of_inputs=True)
        return result

    def _follow_masks(self, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if given and all(id(tensor) in self._masks for tensor in given):
            self._masks.update({id(tensor): tensor for tensor in made})

    def _is_of_masks(self, name: str, given: list[torch.Tensor]) -> bool:
        """Return whether a selection is by boolean inputs or values computed from them."""
        if name in ("nonzero", "where"):
            return all(id(tensor) in self._masks for tensor in given)
        masks = [tensor for tensor in given if _is_mask(tensor)]
        return bool(masks) and all(id(mask) in self._masks for mask in masks)

    def _see_layer(self, given: list[torch.Tensor]) -> None:
        """Record a layer after a data-dependent size or a read of data.

        Raises:
            _EndOfGraphError: if it is after the end, where the search is then complete.
        """
        if not any(id(tensor) in self._kept for tensor in given):
            return
        self._early = True
        if self._cut:
            self.works_at = calling_place() or "a layer"
            raise _EndOfGraphError

    def _state(self, name: str, *, of_inputs: bool) -> None:
        self.has_run = True
        self._early |= bool(self._weights) and not of_inputs
        self._selects_others |= not of_inputs
        self._stated[name] = None
        self.stated_at = self.stated_at or calling_place()

    def _read(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the content of a tensor, if it has any: constants of the model do."""
        try:
            value = func(*args, **kwargs)
        except Exception as error:
            value = error
        if is_plain(value):
            return value
        self.has_run = True
        if self._weights or not self._has_layers:
            self._early, self._selects_boxes = True, False
            if isinstance(value, Exception):
                raise value
        self._cut = self._cut or name.strip("_")
        self.read_at = self.read_at or calling_place()
        self._reads += 1
        made_up = _MADE_UP.get(name)
        if self._answer is None or made_up is None or self._reads > MOST_READS:
            raise _EndOfGraphError
        return made_up(self._answer)


class _InScriptOperators(TorchDispatchMode):
    """Passes operators of scripts, which call no Python functions, to `UpperBoundSizes`."""

    def __init__(self, sizes: UpperBoundSizes) -> None:
        super().__init__()
        self._stated = sizes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__ if func.namespace == "aten" else ""
        with torch._C.DisableTorchFunction():  # bounds are not intercepted again
            result = self._stated.select(name, args, kwargs)
        if result is None:
            result = func(*args, **kwargs)
        self._stated._follow_masks(list(_flat([args, kwargs])), list(_flat(result)))
        return result


def with_positions(program: ExportedProgram) -> None:
    """Make operators of scripts select by positions, as `UpperBoundSizes` does for functions.

    The program is changed in place. The exporter records the operators of a script before any
    mode sees them, so the sizes of their results are the bounds, but their arguments are still
    truth values.
    """
    graph = program.graph
    for node in list(graph.nodes):
        rewrite = _rewrites().get(node.target)
        if rewrite is not None:
            with graph.inserting_before(node):
                rewrite(node)
    program.graph_module.recompile()


@cache
def _rewrites() -> dict[Any, Callable[[Node], None]]:
    aten = torch.ops.aten

    def add(node: Node, target: Any, *args: Any) -> Node:
        """Insert a call of an operator before the node, and infer the sizes of its results."""
        made = node.graph.call_function(target, args)
        made.meta = {k: v for k, v in node.meta.items() if k == "nn_module_stack"}
        made.meta["val"] = target(*map_arg(args, lambda one: one.meta["val"]))
        return made

    def turn_into(node: Node, target: Any, *args: Any) -> None:
        node.target, node.args, node.kwargs = target, args, {}

    def nonzero(node: Node) -> None:
        turn_into(node, without_data().nonzero.default, node.args[0])

    def where(node: Node) -> None:
        found = add(node, without_data().nonzero.default, node.args[0])
        turn_into(node, aten.unbind.int, found, 1)

    def masked_select(node: Node) -> None:
        both = add(node, aten.broadcast_tensors.default, list(node.args))
        values, mask = (
            add(node, aten.reshape.default, add(node, operator.getitem, both, i), [-1])
            for i in range(2)
        )
        found = add(node, without_data().nonzero.default, mask)
        turn_into(node, aten.index.Tensor, values, [add(node, aten.squeeze.dim, found, 1)])

    def index(node: Node) -> None:
        source, parts = node.args
        positions: list[Any] = []
        for part in cast("list[Node | None]", parts):
            if part is not None and _is_mask(part.meta["val"]):
                found = add(node, without_data().nonzero.default, part)
                each = add(node, aten.unbind.int, found, 1)
                axes = range(part.meta["val"].dim())
                positions += [add(node, operator.getitem, each, i) for i in axes]
            else:
                positions.append(part)
        turn_into(node, aten.index.Tensor, source, positions)

    return {
        aten.nonzero.default: nonzero,
        aten.argwhere.default: nonzero,
        aten.where.default: where,
        aten.nonzero_numpy.default: where,
        aten.masked_select.default: masked_select,
        aten.index.Tensor: index,
    }


_MADE_UP: dict[str, Callable[[bool], Any]] = {
    "__bool__": bool,
    "__contains__": bool,
    "__int__": int,
    "__index__": int,
    "__float__": float,
    "item": int,
}
"""Substitute for data that is read, by the method that reads it."""


def is_plain(value: Any) -> bool:
    """Return whether a value that was read consists of numbers, not symbols."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float)


def _module_stack() -> dict[str, Any]:
    """Return the module stack of the exporter's tracer; empty outside of an export."""
    tracer = getattr(get_proxy_mode(), "tracer", None)
    return getattr(tracer, "module_stack", {})


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested arguments."""
    return list(_flat(value))


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)


def _nonzero(args: Any, kwargs: Any) -> Any:
    found = without_data().nonzero(args[0])
    return found.unbind(1) if kwargs.get("as_tuple") else found


def _where(args: Any, kwargs: Any) -> Any:
    if len(args) + len(kwargs) != 1:
        return None
    return without_data().nonzero(*args, **kwargs).unbind(1)


def _masked_select(args: Any, kwargs: Any) -> Any:
    values, mask = torch.broadcast_tensors(*args, *kwargs.values())
    return values.reshape(-1)[without_data().nonzero(mask.reshape(-1)).squeeze(1)]


def _getitem(args: Any, kwargs: Any) -> Any:
    """Index by positions instead of truth values."""
    source, index = args
    parts = index if isinstance(index, tuple) else (index,)
    if not any(_is_mask(part) for part in parts):
        return None
    _check_masks(source.shape, parts)
    positions: list[Any] = []
    for part in parts:
        positions += without_data().nonzero(part).unbind(1) if _is_mask(part) else [part]
    return source[tuple(positions)]


def _index(args: Any, kwargs: Any) -> Any:
    """Index like the operator, with None for an omitted axis."""
    source, parts = args
    return _getitem((source, tuple(slice(None) if part is None else part for part in parts)), {})


def _check_masks(shape: torch.Size, parts: tuple[Any, ...]) -> None:
    """Raise if a mask does not have one truth value per row of its source.

    Raises:
        IndexError: with torch's message for the same check on data.
    """
    taken = [part.dim() if _is_mask(part) else int(part is not None) for part in parts]
    if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        taken[place] = len(shape) - sum(taken) + 1
    for i, part in enumerate(parts):
        first = sum(taken[:i])
        rows = shape[first : first + taken[i]]
        if _is_mask(part) and part.shape != rows:
            raise IndexError(
                f"The shape of the mask {list(part.shape)} at index {first} does not match the "
                f"shape of the indexed tensor {list(shape)} at index {first}"
            )


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype is torch.bool and part.dim() > 0


def _unique(args: Any, kwargs: Any) -> Any:
    """Return a single value, so that a loop over classes runs once, for all candidates."""
    if any(kwargs.get(key) for key in ("return_inverse", "return_counts")) or len(args) > 2:
        return None
    return args[0].reshape(-1)[:1]


def _nms(args: Any, kwargs: Any) -> Any:
    return without_data().nms(*args, **kwargs)


_STATED: dict[str, Callable[[Any, Any], Any]] = {
    "nonzero": _nonzero,
    "where": _where,
    "masked_select": _masked_select,
    "__getitem__": _getitem,
    "unique": _unique,
    "_unique2": _unique,
    "nms": _nms,
}
_SELECTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
}
"""Replacement by the name of an operator in scripts."""
_WORDS = {"__getitem__": "boolean index", "index": "boolean index"}


def _nonzero_size(condition: torch.Tensor, rows: int = -1) -> torch.Tensor:
    shape = (condition.numel() if rows < 0 else rows, max(condition.dim(), 1))
    return torch.zeros(shape, dtype=torch.int64, device=condition.device)


def _nms_size(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    return torch.zeros(scores.shape, dtype=torch.int64, device=dets.device)


@cache
def without_data() -> Any:
    """Return our operators with data-independent result sizes."""
    for name, function in (("dippm::nonzero", _nonzero_size), ("dippm::nms", _nms_size)):
        operator = torch.library.custom_op(name, function, mutates_args=())
        operator.register_fake(function)
    return torch.ops.dippm


def declare() -> None:
    """Declare our operators, for programs that were exported with them."""
    without_data()
