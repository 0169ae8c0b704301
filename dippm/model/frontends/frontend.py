"""`Frontend`: the interface that turns a framework's model into a `RawGraph`.

To add a framework: write a module with `NAME`, `accepts` and `load`, list it in `registry.py` or
register it under the entry point group "dippm.frontends". `accepts` runs in the caller and must be
cheap and harmless; `load` runs inside the conversion worker, whose sandbox has no network, starts
no programs and writes into the folder TMPDIR only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from dippm.base.written import decimal_number, whole_number
from dippm.errors import ConversionError, InputShapeError
from dippm.model.relax.raw_graph import InputValue, RawGraph

MARKER_BATCHES = (1009, 1013, 1019, 1021, 1031)
"""Primes that stand for the batch during a conversion: every size that the prime divides scales
with the batch. The first that divides no size of the inputs and parameters is used."""

MAX_SIZE = 1 << 24
FORMS = (
    'Give the sizes without the batch: "3,224,224", or by name: "input_ids=128;mask=128". N marks '
    'a batch that is not first ("80,N,512"); "fixed:2,300" has none; "value:16000" is a number, '
    '"value:1,3,640,640" a list of them; "bool:12", "int:128", "float:80" say what an input holds.'
)
KINDS = ("bool", "int", "float")
"""Kinds of input contents: truth values, whole numbers, numbers of the model's type."""
_LARGEST = 2**63
_DEEPEST = 8
MAX_VALUES = 1024
"""Maximum count of numbers in the value of one input: meant for sizes and axes, not data."""

InputText = str | Iterable[int] | Iterable[Iterable[int] | str] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Shapes of the user inputs, without the batch.

    Attributes:
        shapes: shape by input name; the key "" stands for the only (or first) input. Empty to use
            the model's own shapes. An empty shape is one number per sample.
        batch_axes: position of the batch in the complete shape, by input name; None for an input
            without a batch. Missing inputs have the batch first, unless the model itself says
            otherwise.
        values: contents by input name, for inputs whose sizes do not suffice: a number, or at most
            `MAX_VALUES` of them as nested sequences or an array, complete, with the batch if they
            have one. Such an input is in no other mapping.
        kinds: one of `KINDS` by input name. For missing inputs the file says it, or it is found by
            trial.

    Raises:
        InputShapeError: if a value is invalid.
    """

    shapes: Mapping[str, tuple[int, ...]]
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    values: Mapping[str, InputValue] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Convert values to plain numbers and tuples."""
        plain = {name: _plain_value(v, f"input {name}") for name, v in self.values.items()}
        object.__setattr__(self, "values", plain)

    @classmethod
    def parse(cls, given: InputText | InputSpec) -> InputSpec:
        """Parse the forms that a user may write for `input=`.

        Args:
            given: "3,224,224" (also "3x224x224"), a sequence of sizes, a mapping from input names
                to either of them, its text form "input_ids=128;mask=128", a list of either for
                several inputs in their order ([(712, 33), (33, 334)], which is "0=712,33;1=33,334"
                as text), or None for the model's own shapes. The batch is not part of it, but "N"
                may mark its position ("80,N,512"), "fixed:2,300" is an input without a batch, and
                "value:16000" is the number of a scalar input, "value:1,3,640,640" or
                "value:[[1,2],[3,4]]" the numbers of a small array. "bool:12", "int:128" or
                "float:80", as a sequence ("bool", 12), also states the kind of an input.

        Raises:
            InputShapeError: if it has another form, or a size is not a positive whole number.
        """
        if isinstance(given, InputSpec):
            return given
        if given is None:
            return cls({})
        _refuse_data(given)
        if isinstance(given, str) and "=" in given:
            given = _split_names(given)
        if _is_several(given):
            given = {str(place): one for place, one in enumerate(given)}
        if isinstance(given, Mapping):
            return cls._of({str(name): _input(text, str(name)) for name, text in given.items()})
        return cls._of({"": _input(given)})

    @classmethod
    def _of(cls, inputs: Mapping[str, _Input]) -> InputSpec:
        return cls(
            shapes={n: i.shape for n, i in inputs.items() if i.value is None},
            batch_axes={n: i.batch_axis for n, i in inputs.items() if i.names_batch},
            values={n: i.value for n, i in inputs.items() if i.value is not None},
            kinds={n: i.kind for n, i in inputs.items() if i.kind},
        )

    def in_order(self, names: Sequence[str]) -> InputSpec:
        """Return the specification with positional inputs renamed to these names.

        A name that is itself a number remains a name.
        """
        given = {*self.shapes, *self.batch_axes, *self.values, *self.kinds}
        places = {str(place): name for place, name in enumerate(names)}
        if not given or not given <= places.keys() or given & set(names):
            return self
        return InputSpec(
            {places[n]: shape for n, shape in self.shapes.items()},
            {places[n]: axis for n, axis in self.batch_axes.items()},
            {places[n]: value for n, value in self.values.items()},
            {places[n]: kind for n, kind in self.kinds.items()},
        )

    def full_shape(self, name: str, batch: int) -> tuple[int, ...]:
        """Return the complete shape of an input in `shapes` at a batch."""
        shape, axis = self.shapes[name], self.batch_axes.get(name, 0)
        return shape if axis is None else (*shape[:axis], batch, *shape[axis:])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data for `from_dict`."""
        kinds = {"kinds": dict(sorted(self.kinds.items()))} if self.kinds else {}
        return {
            "shapes": {name: list(shape) for name, shape in sorted(self.shapes.items())},
            "batch_axes": dict(sorted(self.batch_axes.items())),
            "values": dict(sorted(self.values.items())),
            **kinds,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> InputSpec:
        """Return the specification from the result of `to_dict`."""
        shapes = {name: tuple(shape) for name, shape in document["shapes"].items()}
        return cls(shapes, document["batch_axes"], document["values"], document.get("kinds", {}))

    def key(self) -> str:
        """Return a cache key: the same text for equal specifications."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        texts = {name: self._text(name) for name in self.shapes}
        texts |= {name: f"value:{_value_text(value)}" for name, value in self.values.items()}
        return ";".join(f"{n}={text}" if n else text for n, text in texts.items())

    def _text(self, name: str) -> str:
        sizes = [str(size) for size in self.shapes[name]]
        axis, kind = self.batch_axes.get(name, 0), self.kinds.get(name, "")
        prefix = f"{kind}:" if kind else ""
        if axis is None:
            return f"{prefix}fixed:" + ",".join(sizes)
        if name in self.batch_axes:
            sizes.insert(axis, "N")
        return prefix + ",".join(sizes)


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
    """The interface of a framework; in practice a module with these names.

    `NAME` is the value of `framework=` and the name in error messages.
    """

    NAME: str

    def accepts(self, path: Path) -> bool:
        """Return whether a file is of this framework, judged by content rather than suffix."""
        ...

    def load(self, path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
        """Convert a file.

        Raises:
            ModelFileError: one of its subclasses, with the next step in `hint`.
        """
        ...


def _refuse_data(given: Any) -> None:
    """Refuse tensors and arrays of data; a flat one of whole numbers may be sizes.

    Raises:
        InputShapeError: naming the sizes to give.
    """
    parts = given.items() if isinstance(given, Mapping) else [("", given)]
    parts = [*parts, *(enumerate(given) if isinstance(given, list | tuple) else ())]
    for name, part in parts:
        shape, dtype = getattr(part, "shape", None), str(getattr(part, "dtype", ""))
        if shape is None or (len(shape) < 2 and "int" in dtype):
            continue
        sizes = [str(size) for size in shape]
        label = "input" if name == "" else f"input {name}"
        example = ",".join(sizes[1:]) or "()" if sizes else "value:3"
        raise InputShapeError(
            f"{label} is a {type(part).__name__} of sizes ({', '.join(sizes)}), no list of sizes",
            f'Give the sizes without the batch, "{example}", and the batch as batch=; '
            "`dippm.fits(module, sample)` takes tensors.",
        )


def _is_several(given: Any) -> bool:
    """Return whether this is a list of inputs with sizes of their own, rather than of sizes."""
    if isinstance(given, str) or not isinstance(given, list | tuple):
        return False
    inner = [
        isinstance(one, list | tuple) or (isinstance(one, str) and ("," in one or ":" in one))
        for one in given
    ]
    return any(inner)


def _split_names(text: str) -> dict[str, str]:
    shapes: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, equals, shape = (p.strip() for p in part.partition("="))
        if not equals or not name:
            raise InputShapeError(f"input {text!r}: {part!r} is not name=sizes", FORMS)
        if name in shapes:
            raise InputShapeError(f"input {text!r} names {name!r} twice", FORMS)
        shapes[name] = shape
    return shapes


@dataclass(frozen=True, slots=True)
class _Input:
    """One parsed input."""

    shape: tuple[int, ...] = ()
    names_batch: bool = False
    batch_axis: int | None = None
    value: InputValue | None = None
    kind: str = ""


def _input(given: Any, name: str = "") -> _Input:
    label = f"input {name}={given!r}" if name else f"input {given!r}"
    if isinstance(given, str):
        prefix, colon, rest = given.strip().partition(":")
        if colon and prefix == "value":
            return _Input(value=_value(rest.strip(), label))
        if colon and prefix == "fixed":
            return _Input(_sizes(_pieces(rest, label), label), names_batch=True)
        if colon:
            return _parse_typed(prefix, rest.strip(), label)
    if isinstance(given, list | tuple) and _is_word(next(iter(given), 0)):
        return _parse_typed(given[0], given[1:], label)
    pieces = _pieces(given, label)
    marks = [i for i, piece in enumerate(pieces) if piece in ("N", "n")]
    if len(marks) > 1:
        raise InputShapeError(f"{label} names the batch twice", FORMS)
    sizes = _sizes([p for i, p in enumerate(pieces) if i not in marks], label)
    return _Input(sizes, bool(marks), marks[0] if marks else None)


def _is_word(piece: Any) -> bool:
    """Return whether this is a word and thus not a size; "N" marks the batch."""
    return isinstance(piece, str) and piece.isalpha() and piece not in ("N", "n")


def _parse_typed(kind: str, rest: Any, label: str) -> _Input:
    """Return an input whose kind was written before its sizes."""
    if kind not in KINDS:
        raise InputShapeError(
            f"{label}: {kind!r} is not a type of input: {', '.join(KINDS)}", FORMS
        )
    found = _input(rest) if rest not in ("", (), []) else _Input()
    if found.value is not None or found.kind:
        raise InputShapeError(f"{label}: only sizes may follow {kind!r}", FORMS)
    return replace(found, kind=kind)


def check_kinds(inputs: InputSpec, stated: Mapping[str, str]) -> None:
    """Refuse inputs whose requested kind contradicts the file.

    Args:
        inputs: the user's specification.
        stated: element types by input name, such as "int64", in the order of the file.

    Raises:
        InputShapeError: if they contradict each other.
    """
    for key, kind in inputs.kinds.items():
        name = key or next(iter(stated), "")
        dtype = stated.get(name, kind).lower().removeprefix("torch.")
        if kind not in dtype:
            raise InputShapeError(
                f"input {name!r} was given as {kind}, and the file states {dtype} for it",
                "Leave the type out: the file says what its inputs hold.",
            )


def _value(text: str, label: str) -> InputValue:
    if text.startswith("["):
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError):
            raise InputShapeError(f"{label}: {text!r} is not a list of numbers", FORMS) from None
        return _plain_value(rows, label)
    numbers = tuple(_number(piece.strip(), label) for piece in text.split(",") if piece.strip())
    return numbers if "," in text else _number(text, label)


def _plain_value(given: Any, label: str) -> InputValue:
    """Return numbers as nested tuples.

    Raises:
        InputShapeError: if they are not finite, too many, or rows differ in length.
    """
    given = given.tolist() if hasattr(given, "tolist") else given
    left = [MAX_VALUES]

    def plain(part: Any, depth: int) -> tuple[InputValue, tuple[int, ...]]:
        if isinstance(part, list | tuple) and depth < _DEEPEST:
            rows = [plain(row, depth + 1) for row in part]
            if any(shape != rows[0][1] for _, shape in rows):
                raise InputShapeError(f"{label}: the rows of its value differ in length", FORMS)
            return tuple(row for row, _ in rows), (len(rows), *(rows[0][1] if rows else ()))
        if isinstance(part, int) and abs(part) >= _LARGEST:  # it may not fit a float
            raise InputShapeError(f"{label}: its value has a number of more than 64 bits", FORMS)
        if not isinstance(part, int | float) or not isfinite(part):
            raise InputShapeError(f"{label}: {str(part)[:80]!r} is not a finite number", FORMS)
        left[0] -= 1
        if left[0] < 0:
            raise InputShapeError(
                f"{label}: its value has more than {MAX_VALUES:,} numbers",
                "Values are for sizes and axes; for data give the sizes of the input alone.",
            )
        return part, ()

    return plain(given, 0)[0]


def _value_text(value: InputValue) -> str:
    if not isinstance(value, tuple):
        return str(value)
    is_plain_list = len(value) > 1 and not any(isinstance(v, tuple) for v in value)
    return ",".join(map(str, value)) if is_plain_list else json.dumps(value).replace(" ", "")


def _number(text: str, label: str) -> int | float:
    try:
        value = decimal_number(text)
    except ValueError:
        raise InputShapeError(f"{label}: {text!r} is not a number", FORMS) from None
    if not isfinite(value):
        raise InputShapeError(f"{label}: {text!r} is not a finite number", FORMS)
    return int(value) if value == int(value) else value


def _pieces(given: Any, label: str) -> list[Any]:
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
    return pieces


def _sizes(pieces: Iterable[Any], label: str) -> tuple[int, ...]:
    return tuple(_size(piece, label) for piece in pieces)


def _size(piece: Any, label: str) -> int:
    try:
        number = whole_number(piece) if isinstance(piece, str) else int(piece)
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
