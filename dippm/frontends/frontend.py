"""`Frontend`: how a framework's model becomes a `RawGraph`.

To add a framework: write a module with `NAME`, `accepts` and `load`, list it in `registry.py` or
register it under the entry point group "dippm.frontends". `accepts` runs in the caller and must be
cheap and harmless; `load` runs inside the conversion worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dippm.errors import ConversionError, InputShapeError
from dippm.relax.raw_graph import RawGraph

MARKER_BATCHES = (1009, 1013, 1019, 1021, 1031)
"""Primes that stand for "the batch" during a conversion: any size that one divides scales with
the batch. The first that divides no size of the input and of the parameters is taken."""

MAX_SIZE = 1 << 24
FORMS = 'Give the sizes without the batch: "3,224,224", or by name: "input_ids=128;mask=128".'

InputText = str | Iterable[int] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Shapes of the user inputs, without the batch.

    Attributes:
        shapes: by input name; the key "" stands for the only (or first) input. Empty if the
            model's own shapes shall be used. An empty shape is one number per sample.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, given: InputText | InputSpec) -> InputSpec:
        """Read what a user may write for `input=`.

        Args:
            given: "3,224,224" (also "3x224x224"), a sequence of sizes, a mapping from input names
                to either of them, its text form "input_ids=128;mask=128", or None for the model's
                own shapes. The batch is never part of it.

        Raises:
            InputShapeError: if it is none of these, or a size is not a positive whole number.
        """
        if isinstance(given, InputSpec):
            return given
        if given is None:
            return cls({})
        if isinstance(given, str) and "=" in given:
            given = _named(given)
        if isinstance(given, Mapping):
            return cls({str(name): _shape(shape, str(name)) for name, shape in given.items()})
        return cls({"": _shape(given)})

    def key(self) -> str:
        """Return a text that is equal for equal specifications, for caches."""
        return json.dumps({name: list(shape) for name, shape in sorted(self.shapes.items())})

    def __str__(self) -> str:
        texts = {n: ",".join(map(str, shape)) for n, shape in self.shapes.items()}
        return ";".join(f"{n}={text}" if n else text for n, text in texts.items())


def marker_batch(sizes: Iterable[int], candidates: Iterable[int] = MARKER_BATCHES) -> int:
    """Return the first marker that divides none of the sizes of inputs and parameters.

    Raises:
        ConversionError: if every marker divides some size.
    """
    taken = {size for size in sizes if size > 0}
    for marker in candidates:
        if not any(size % marker == 0 for size in taken):
            return marker
    raise ConversionError(
        "every marker batch divides some size of this model",
        "Change an input size by one, or report the model.",
    )


class Frontend(Protocol):
    """One framework; in practice a module with these names.

    `NAME` is what `framework=` says and what error messages print.
    """

    NAME: str

    def accepts(self, path: Path) -> bool:
        """Return whether this file is of this framework, by content rather than by suffix."""
        ...

    def load(self, path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
        """Convert a file.

        Raises:
            ModelFileError: one of its subclasses, with the next step in `hint`.
        """
        ...


def _named(text: str) -> dict[str, str]:
    shapes: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, equals, shape = (p.strip() for p in part.partition("="))
        if not equals or not name:
            raise InputShapeError(f"input {text!r}: {part!r} is not name=sizes", FORMS)
        if name in shapes:
            raise InputShapeError(f"input {text!r} names {name!r} twice", FORMS)
        shapes[name] = shape
    return shapes


def _shape(given: Any, name: str = "") -> tuple[int, ...]:
    label = f"input {name}={given!r}" if name else f"input {given!r}"
    if isinstance(given, str):
        pieces = [p for p in re.split(r"[,x×*\s]+", given.strip("()[] \t")) if p]
        if not pieces and given.strip() not in ("()", "[]"):
            raise InputShapeError(f"{label} is empty", FORMS)
    elif isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
        pieces = list(given)
    elif isinstance(given, int) and not isinstance(given, bool):
        pieces = [given]
    else:
        raise InputShapeError(f"{label} is not a list of sizes", FORMS)
    return tuple(_size(piece, label) for piece in pieces)


def _size(piece: Any, label: str) -> int:
    try:
        number = int(piece)
        whole = not isinstance(piece, bool | float) or (piece == number and piece is not True)
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise InputShapeError(f"{label}: {piece!r} is not a whole number", FORMS)
    if not 1 <= number <= MAX_SIZE:
        raise InputShapeError(
            f"{label}: size {number} is not between 1 and {MAX_SIZE:,}",
            FORMS + " Dynamic sizes need a number here.",
        )
    return number
