"""What a TensorFlow or Keras model takes, against what the user asked for.

Shared by `keras` and `savedmodel`; loads no framework.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from dippm.errors import FrameworkNotInstalledError, InputShapeError
from dippm.frontends.frontend import InputSpec, marker_batch

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Declared:
    """One input as the model declares it.

    Attributes:
        name: what users call it.
        tensor: its name inside the model's graph.
        shape: sizes with the batch first; None where any size will do, None for any rank.
        dtype: TensorFlow's number of the dtype.
    """

    name: str
    tensor: str
    shape: Sizes | None
    dtype: int


@dataclass(frozen=True, slots=True)
class Bound:
    """Inputs with static shapes.

    Attributes:
        shapes: with the batch first, in the order of the declared inputs.
        batch: the marker, or the batch that the file fixes.
        batch_is_symbolic: whether `batch` is a marker.
    """

    shapes: tuple[tuple[int, ...], ...]
    batch: int
    batch_is_symbolic: bool


def import_tensorflow() -> ModuleType:
    """Import TensorFlow without its log lines and without a GPU.

    Raises:
        FrameworkNotInstalledError: if it is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    try:
        import tensorflow
    except ImportError as error:
        raise FrameworkNotInstalledError(
            f"this model needs TensorFlow, which cannot be imported: {error}",
            'pip install "dippm[tensorflow]"',
        ) from error
    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow  # type: ignore[no-any-return]


def bind(declared: Sequence[Declared], spec: InputSpec, weight_sizes: Sequence[int] = ()) -> Bound:
    """Give every input a static shape.

    Args:
        declared: the model's inputs.
        spec: what the user asked for, without the batch.
        weight_sizes: sizes that the marker batch must not divide.

    Raises:
        InputShapeError: if the request does not fit, or leaves a size open.
    """
    asked = _by_name(declared, spec)
    rests = [_sizes(one, asked.get(one.name), declared) for one in declared]
    fixed = {one.shape[0] for one in declared if one.shape and one.shape[0] is not None}
    if len(fixed) > 1:
        raise InputShapeError(
            f"the file fixes several batch sizes: {_listed(declared)}",
            "Export the model again with a dynamic batch.",
        )
    sizes = [size for rest in rests for size in rest]
    batch = next(iter(fixed), None) or marker_batch([*sizes, *weight_sizes])
    shapes = tuple(
        (batch, *rest) if one.shape is None or one.shape else ()
        for one, rest in zip(declared, rests, strict=True)
    )
    return Bound(shapes, batch, not fixed)


def _by_name(declared: Sequence[Declared], spec: InputSpec) -> dict[str, tuple[int, ...]]:
    names = [one.name for one in declared]
    asked = {name: tuple(shape) for name, shape in spec.shapes.items()}
    if "" in asked:
        asked = {**asked, names[0]: asked[""]}
        del asked[""]
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise InputShapeError(
            f"no input is called {', '.join(unknown)}; the model has {_listed(declared)}",
            _example(declared),
        )
    return asked


def _sizes(
    one: Declared, asked: tuple[int, ...] | None, declared: Sequence[Declared]
) -> tuple[int, ...]:
    """Return one input's sizes without the batch."""
    expected = None if one.shape is None else one.shape[1:]
    if asked is None:
        if expected is None or None in expected:
            raise InputShapeError(
                f"input {one.name} has no fixed size: {_text(one.shape)}; "
                f"the model takes {_listed(declared)}",
                _example(declared),
            )
        return tuple(size for size in expected if size is not None)
    if expected is None or _fits(asked, expected):
        return asked
    raise InputShapeError(
        f"input {one.name}: got {_text(asked)} without the batch, expected {_text(expected)}",
        _advice(asked, expected, declared),
    )


def _fits(asked: Sequence[int], expected: Sizes) -> bool:
    return len(asked) == len(expected) and all(
        size in (None, given) for given, size in zip(asked, expected, strict=True)
    )


def _advice(asked: tuple[int, ...], expected: Sizes, declared: Sequence[Declared]) -> str:
    last, first = (*asked[1:], *asked[:1]), (*asked[-1:], *asked[:-1])
    if _fits(last, expected):
        return f"This model wants channels last: give {_plain(last)}."
    if _fits(first, expected):
        return f"This model wants channels first: give {_plain(first)}."
    if _fits(asked[1:], expected):
        return f"Leave the batch out: give {_plain(asked[1:])}."
    return _example(declared)


def _example(declared: Sequence[Declared]) -> str:
    texts = [
        (one.name, _plain([size or 128 for size in (one.shape or (None, None))[1:]]))
        for one in declared
    ]
    if len(texts) == 1:
        return f'Give the sizes without the batch, for instance input="{texts[0][1]}".'
    return 'Name the inputs: input="' + ";".join(f"{n}={t}" for n, t in texts) + '".'


def _listed(declared: Sequence[Declared]) -> str:
    return ", ".join(f"{one.name} {_text(one.shape)}" for one in declared)


def _text(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "(any rank)"
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"


def _plain(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
