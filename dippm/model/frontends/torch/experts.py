"""Mixtures of experts in a Python loop: each expert gets an even share of the routed tokens.

Which tokens go to which expert depends on data, but the number of routed tokens does not: one index
per token and choice, tokens × k in all. A loop that selects by ``chosen == i`` for every expert
distributes them, and an even distribution accounts for all of the work. This applies to no other
data-dependent selection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dippm.model.frontends.torch.constant_folding import evaluate
from dippm.model.frontends.torch.data_dependent_sizes import (
    LAYERS,
    READS,
    is_plain,
    tensors_in,
    without_data,
)

SPREAD = (
    "which of the {experts} experts a token goes to depends on data: the {rows:,} choices{each} "
    "were spread over them evenly"
)
VIEWS = frozenset(
    """
    view reshape flatten unflatten squeeze unsqueeze t transpose permute swapaxes movedim contiguous
    to long int bool type clone detach __getitem__ select unbind
    """.split()
)
"""Functions that return the same choices in another form."""
_COUNTS = frozenset("any sum max amax count_nonzero".split())
_HIT = dict.fromkeys("gt __gt__ greater ne __ne__ ge __ge__".split(), True)
_MISSED = dict.fromkeys("eq __eq__ lt __lt__ le __le__ logical_not __invert__".split(), False)
_COMPARED = {**_HIT, **_MISSED}


class NotSharedError(Exception):
    """The model selects by something other than the number of an expert."""


class Experts(TorchFunctionMode):
    """Runs a module with an even share of the tokens for each expert.

    Args:
        batch: number of samples; shares are multiples of it if `is_marker`.
        is_marker: whether the batch stands for every batch.
        counts: number of experts per routing; None to count them, with all tokens for each.

    Attributes:
        masks: position of each selected expert by its number, for every routing.
        works: whether layers run on selected tokens.
    """

    def __init__(self, batch: int, *, is_marker: bool, counts: list[int] | None = None) -> None:
        super().__init__()
        self._batch, self._is_marker, self._counts = batch, is_marker, counts
        self.masks: list[dict[int, int]] = []
        self.works = False
        self._routing: dict[int, int] = {}  # routing number by id of choices or mask
        self._choices: list[torch.Tensor] = []
        self._classes: dict[int, int] = {}
        self._number: dict[int, int] = {}  # expert number by id of the mask
        self._of: dict[int, int] = {}
        self._answers: dict[int, bool] = {}
        self._chosen: set[int] = set()
        self._kept: dict[int, torch.Tensor] = {}  # ids are only unique while tensors live
        self._known: set[int] = set()

    @property
    def is_sound(self) -> bool:
        """Whether layers run on tokens that loops over at least two experts select."""
        found = [masks for masks in self.masks if masks]
        return self.works and bool(found) and all(len(masks) > 1 for masks in found)

    @property
    def counts(self) -> list[int]:
        """Number of experts of each routing."""
        return [len(masks) for masks in self.masks]

    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell the user."""
        found = {
            (len(masks), choices.numel() // (self._batch if self._is_marker else 1))
            for masks, choices in zip(self.masks, self._choices, strict=True)
            if masks
        }
        each = " of a sample" if self._is_marker else ""
        return tuple(SPREAD.format(experts=n, rows=rows, each=each) for n, rows in sorted(found))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func)).partition(".")[0]
        given = tensors_in([args, kwargs])
        if name in READS:
            return self._read(func, args, kwargs)
        if given and all(id(tensor) in self._known for tensor in given):
            return self._keep_known(evaluate(func, args, kwargs))
        if self._known:
            args, kwargs = pytree.tree_map(self._plain, (args, kwargs))
        select = _SELECTED.get(name)
        result = select(self, args, kwargs) if select is not None else None
        if result is None:
            result = func(*args, **kwargs)
        made = tensors_in(result)
        self._kept.update({id(tensor): tensor for tensor in (*given, *made)})
        self._follow(name, args, kwargs, given, made)
        return result

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        if id(args[0]) in self._known:
            return evaluate(func, args, kwargs)
        if func is torch.Tensor.__bool__ and id(args[0]) in self._answers:
            return self._answers[id(args[0])]
        try:
            value = func(*args, **kwargs)
        except Exception as error:
            raise NotSharedError from error
        if not is_plain(value):
            raise NotSharedError
        return value

    def _keep_known(self, result: Any) -> Any:
        made = tensors_in(result)
        self._kept.update({id(tensor): tensor for tensor in made})
        self._known.update(map(id, made))
        return result

    def _plain(self, value: Any) -> Any:
        """Return known numbers as Python numbers."""
        return value.tolist() if id(value) in self._known else value

    def _follow(self, name: str, args: Any, kwargs: Any, given: Any, made: Any) -> None:
        """Record what a function computed from choices, masks and selected tokens."""
        # Three kinds are followed: selected tokens, choices (tensors of expert numbers), and masks
        # that compare choices with an expert's number.
        if any(id(tensor) in self._chosen for tensor in given):
            self._chosen.update(map(id, made))
            self.works = self.works or name in LAYERS
            return
        if not made or not given:
            return
        first, source = made[0], given[0]
        if _are_choices(source) and name in ("eq", "__eq__", "one_hot"):
            self._routing[id(first)] = routing = self._routing_of(source)
            if name == "one_hot":
                self._classes[routing] = first.shape[-1]
            elif isinstance(args[1], int):
                self._number[id(first)] = args[1]
            return
        if name in VIEWS and id(source) in self._of:
            self._of.update(dict.fromkeys(map(id, made), self._of[id(source)]))
        elif name in VIEWS and _are_choices(source) and id(source) not in self._routing:
            number = self._routing_of(source)
            self._of.update(
                {id(t): number for t in made if _are_choices(t) and t.numel() == source.numel()}
            )
        routing = self._routing.get(id(source), -1)
        if routing < 0 or any(self._routing.get(id(t), routing) != routing for t in given):
            return
        if name in VIEWS or name in _COUNTS or name in _COMPARED:
            self._routing.update(dict.fromkeys(map(id, made), routing))
            self._number_masks(source, made, args[1] if name == "__getitem__" else None)
            # Every expert counts as having tokens, so that no loop skips it as idle.
            if not first.dim() and (name in _COMPARED or name == "any"):
                flipped = name in ("logical_not", "__invert__")
                hit = not self._answers.get(id(source), True) if flipped else None
                self._answers[id(first)] = _COMPARED.get(name, True) if hit is None else hit

    def _number_masks(self, source: torch.Tensor, made: list[torch.Tensor], index: Any) -> None:
        """Record the expert of each new mask: that of its source, or the one an index selects.

        Args:
            source: tensor that the masks were computed from.
            made: the new masks.
            index: index into a mask of all experts, None without one.
        """
        number = self._number.get(id(source))
        if number is None and index is not None:
            parts = index if isinstance(index, tuple) else (index,)
            numbers = [n for part in parts for n in (part if isinstance(part, list) else [part])]
            whole = [n for n in numbers if type(n) is int]
            classes = self._classes.get(self._routing[id(source)], 0)
            if len(whole) == 1 and made[0].numel() * classes == source.numel():
                number = whole[0]
        if number is not None:
            self._number.update({id(tensor): number for tensor in made})

    def fresh(self) -> Experts:
        """Return a new mode with the same arguments."""
        return Experts(self._batch, is_marker=self._is_marker, counts=self._counts)

    def _routing_of(self, choices: torch.Tensor) -> int:
        """Return the number of the routing with these choices, a new one for new choices."""
        if id(choices) not in self._of:
            self._of[id(choices)] = len(self._choices)
            self._choices.append(choices)
            self.masks.append({})
        return self._of[id(choices)]

    def positions(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the positions that a mask selects, shape (rows, axes).

        Raises:
            NotSharedError: if it is not the mask of an expert.
        """
        routing = self._routing.get(id(mask), -1)
        if routing < 0:
            raise NotSharedError
        if mask.dim() == 1 and mask.numel() == self._classes.get(routing):
            column: torch.Tensor = self._keep_known(evaluate(_column, (mask.numel(),), {}))
            return column
        number = self._number.get(id(mask))
        if number is None:
            raise NotSharedError
        masks = self.masks[routing]
        expert = masks.setdefault(number, len(masks))
        found: torch.Tensor = without_data().nonzero(mask, self._rows(routing, expert))
        self._chosen.add(id(found))
        return found

    def _rows(self, routing: int, expert: int) -> int:
        """Return the number of rows of an expert."""
        total = self._choices[routing].numel()
        if self._counts is None:
            return total
        unit = self._batch if self._is_marker else 1
        share, rest = divmod(total // unit, self._counts[routing])
        if total % unit or (self._is_marker and not share):
            raise NotSharedError  # the idle experts would depend on the batch
        return unit * (share + (expert < rest))


def _column(count: int) -> torch.Tensor:
    return torch.arange(count).unsqueeze(1)


def _are_choices(value: torch.Tensor) -> bool:
    return value.dim() > 0 and value.dtype in (torch.int64, torch.int32)


def _nonzero(mode: Experts, args: Any, kwargs: Any) -> Any:
    found = mode.positions(args[0])
    return _columns(mode, found) if kwargs.get("as_tuple") else found


def _where(mode: Experts, args: Any, kwargs: Any) -> Any:
    if len(args) + len(kwargs) != 1:
        return None
    return _columns(mode, mode.positions(*args, **kwargs))


def _columns(mode: Experts, found: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with mode:
        return found.unbind(1)


def _getitem(mode: Experts, args: Any, kwargs: Any) -> Any:
    places = _places(mode, args[1])
    if places is None:
        return None
    with mode:
        return args[0][places]


def _setitem(mode: Experts, args: Any, kwargs: Any) -> Any:
    if not isinstance(args[2], torch.Tensor):
        return None  # the mask is filled without positions
    places = _places(mode, args[1])
    if places is None:
        return None
    args[0].index_put_(places, args[2])
    return ()


def _places(mode: Experts, index: Any) -> tuple[Any, ...] | None:
    """Return an index with positions instead of masks; None if it has no masks."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(_is_mask(part) for part in parts):
        return None
    places: list[Any] = []
    for part in parts:
        places += _columns(mode, mode.positions(part)) if _is_mask(part) else [part]
    return tuple(places)


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype is torch.bool and part.dim() > 0


_SELECTED: dict[str, Callable[[Experts, Any, Any], Any]] = {
    "nonzero": _nonzero,
    "argwhere": _nonzero,
    "where": _where,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
}
