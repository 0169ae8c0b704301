"""`Session`: a loaded file with its inputs; `Argument`: the description of one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dippm.errors import InputShapeError
from dippm.model.frontends import InputSpec
from dippm.model.frontends.frontend import FORMS


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model, ready to run.

    Attributes:
        run: one forward pass, finished when it returns.
        framework: name and version, for provenance.
    """

    run: Callable[[], object]
    framework: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One input of a model.

    Attributes:
        name: name in the file.
        shape: shape with the batch; None where a size is open.
        dtype: numpy's name of the type.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


def random_feeds(arguments: Sequence[Argument], inputs: InputSpec, batch: int) -> dict[str, Any]:
    """Return random arrays by input name: normal numbers, or integers 0 and 1.

    Raises:
        InputShapeError: if a name is unknown, a size is missing, or the batch is fixed otherwise.
    """
    names = [argument.name for argument in arguments]
    shapes = {names[0] if name == "" else name: s for name, s in inputs.shapes.items()}
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise InputShapeError(
            f"the model has no input {unknown[0]!r}", f"Its inputs: {', '.join(names)}. {FORMS}"
        )
    return {a.name: _array(a, shapes.get(a.name), batch) for a in arguments}


def _array(argument: Argument, shape: tuple[int, ...] | None, batch: int) -> Any:
    import numpy as np

    own = shape if shape is not None else argument.shape[1:]
    sizes = (batch, *(size for size in own if size is not None))
    if len(sizes) <= len(own):
        raise InputShapeError(f"input {argument.name!r} has open sizes {argument.shape[1:]}", FORMS)
    fixed = argument.shape[0] if argument.shape else None
    if fixed is not None and fixed != batch:
        raise InputShapeError(
            f"the file fixes the batch of {argument.name!r} at {fixed}", f"Give batch={fixed}."
        )
    kind = np.dtype(argument.dtype)
    generator = np.random.default_rng(0)
    if kind.kind == "f":
        return generator.standard_normal(sizes).astype(kind)
    return generator.integers(0, 2, sizes).astype(kind)
