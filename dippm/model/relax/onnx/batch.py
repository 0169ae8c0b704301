"""Which dimension of each input of an ONNX model is the batch.

The user's word comes first, then a name in the file ("batch", "N"), then what all inputs have in
common. What cannot be known is refused, for a graph with the wrong dimension as its batch is
silently wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from dippm.errors import InputShapeError
from dippm.model.relax.onnx.declared import DeclaredInput, Size, listed, where_batch

_OTHER_THINGS = """
    seq sequence len length time times step steps frame frames token tokens node nodes edge edges
    height width depth columns cols points channels features words chars boxes rois timesteps
    past
"""
_OTHER = frozenset(_OTHER_THINGS.split())


def is_batch_name(size: Size) -> bool:
    """Return whether the name of a dimension says that it is the batch."""
    folded = size.lower() if isinstance(size, str) else ""
    return "batch" in folded or folded in ("n", "b", "bs")


def batch_axes(
    declared: list[DeclaredInput],
    given: Mapping[str, int | None],
    values: Collection[str] = (),
) -> dict[str, int | None]:
    """Return the batch axis of each input, None for an input without one.

    Args:
        declared: all inputs, with ranks.
        given: what the user said.
        values: inputs that are one number, which the user gave.

    Raises:
        InputShapeError: if it cannot be known; the hint shows how to say it.
    """
    axes: dict[str, int | None] = dict.fromkeys(values)
    axes |= {d.name: given[d.name] for d in declared if d.name in given}
    rest = [d for d in declared if d.name not in axes]
    has_named = any(is_batch_name(size) for d in declared for size in d.sizes or ())
    for d in rest:
        named = [i for i, size in enumerate(d.sizes or ()) if is_batch_name(size)]
        axes[d.name] = named[0] if named else None
    silent = [d for d in rest if axes[d.name] is None and d.sizes]
    if has_named or any(axis is not None for axis in given.values()):
        for d in silent:
            is_nameless = d.sizes is not None and d.sizes[0] is None
            axes[d.name] = 0 if is_nameless and len(d.sizes or ()) > 1 else None
        return axes
    if not any(name in given for name in axes):
        axes |= _by_common_sense(silent)
    return axes


def _by_common_sense(declared: list[DeclaredInput]) -> dict[str, int | None]:
    """The first dimension is the batch where that is how all inputs look."""
    leaders = {d.name: (d.sizes or (None,))[0] for d in declared}
    for d in declared:
        if _says_otherwise(leaders[d.name]):
            raise _unknown(declared, f"its first dimension is called {leaders[d.name]!r}", d)
    is_open = {name: not isinstance(size, int) for name, size in leaders.items()}
    if any(is_open.values()):
        for d in declared:
            if not is_open[d.name] and any(not isinstance(size, int) for size in d.sizes or ()):
                raise _unknown(
                    declared, "other inputs leave their first dimension open, it another one", d
                )
        return {name: 0 if open_ else None for name, open_ in is_open.items()}
    wide = [d for d in declared if len(d.sizes or ()) > 1] or declared
    fixed = {leaders[d.name] for d in wide}
    for d in wide:
        if leaders[d.name] != 1 and any(not isinstance(size, int) for size in d.sizes or ()):
            raise _unknown(
                declared, f"it fixes its first dimension at {leaders[d.name]} and not the rest", d
            )
    batch = 1 if 1 in fixed else next(iter(fixed)) if len(fixed) == 1 else None
    return {name: 0 if size == batch else None for name, size in leaders.items()}


def _says_otherwise(size: Size) -> bool:
    if not isinstance(size, str):
        return False
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", size).lower())
    return any(word in _OTHER for word in words)


def _unknown(all_inputs: list[DeclaredInput], why: str, one: DeclaredInput) -> InputShapeError:
    return InputShapeError(
        f"the file does not say which dimension of input {one} is the batch: {why} "
        f"(inputs: {listed(all_inputs)})",
        where_batch(all_inputs),
    )
