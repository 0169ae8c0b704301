"""Members of families: balanced samples of a product of choices, and input sizes.

Pure Python with the same result in every version: the order comes from hashes and fixed strides,
never from the state of a random generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from dataset.families.family import InputTensor, Parameters, Scalar, Sizes

SQUARES = (128, 160, 192, 256, 288, 320, 384, 96, 448, 512)
"""Sides of images in addition to 224, which comes first in every image family."""


def spread(
    count: int, valid: Callable[[Parameters], bool] = lambda _: True, **axes: Sequence[Scalar]
) -> list[dict[str, Scalar]]:
    """Return `count` members of the product of the axes, spread evenly over it.

    Every axis has its own irrational step (an R-sequence, Roberts 2018), so any prefix covers
    each axis and each pair of axes evenly. Members that are not `valid` are skipped.

    Raises:
        ValueError: if the product has fewer valid members.
    """
    chosen: dict[tuple[Scalar, ...], dict[str, Scalar]] = {}
    steps = _steps(len(axes))
    for i in range(400 * count):
        if len(chosen) == count:
            return list(chosen.values())
        walked = zip(axes.values(), steps, strict=True)
        values = [axis[int((0.5 + i * step) % 1 * len(axis))] for axis, step in walked]
        member = dict(zip(axes, values, strict=True))
        if valid(member):
            chosen.setdefault(tuple(values), member)
    if len(chosen) == count:
        return list(chosen.values())
    raise ValueError(f"only {len(chosen)} of {count} members in {dict(axes)}")


def _steps(dimensions: int) -> list[float]:
    """Return powers of the root of x^(d+1) = x + 1, whose multiples fill d dimensions evenly."""
    root = 2.0
    for _ in range(60):
        root = (1 + root) ** (1 / (dimensions + 1))
    return [root ** -(k + 1) % 1 for k in range(dimensions)]


def number(member: Parameters) -> int:
    """Return a number that depends on the parameters alone."""
    return zlib.crc32(repr(sorted(member.items())).encode())


def rotate_choices(choices: Sequence[Sizes], member: Parameters, count: int) -> list[Sizes]:
    """Return `count` of the choices, starting at a different one for each member."""
    first = number(member)
    return [choices[(first + i) % len(choices)] for i in range(min(count, len(choices)))]


def image_sizes(member: Parameters, *, count: int = 4, multiple: int = 32) -> list[Sizes]:
    """Return (height, width) of images: 224 × 224 first, then others, one of them not square."""
    sides = [s for s in SQUARES if s % multiple == 0]
    others = rotate_choices([(s, s) for s in sides], member, count - 2)
    height, width = sides[number(member) % len(sides)], sides[number(member) // 7 % len(sides)]
    oblong = (height, width) if height != width else (height, height + 2 * multiple)
    base = 224 if 224 % multiple == 0 else 256
    return list(dict.fromkeys([(base, base), *others, oblong]))


def image(member: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return the input of an image network with three channels."""
    return (InputTensor("image", (int(member.get("channels", 3)), *sizes)),)


def numbers(text: str) -> list[int]:
    """Return the numbers of a text such as "2-2-6-2"."""
    return [int(part) for part in text.split("-")]
