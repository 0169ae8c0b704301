"""Some cases of a wide test run in `make test`, the others in a part of `make nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], others: pytest.MarkDecorator, *, every: int = 4) -> list[Any]:
    """Return all cases; those that are no `every`-th one have the mark of a nightly part.

    Args:
        cases: what `pytest.mark.parametrize` takes: a tuple for several arguments.
        others: the mark of a nightly part.
        every: distance of the cases that stay, from the first one on.
    """
    return [
        case
        if place % every == 0
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=others)
        for place, case in enumerate(cases)
    ]
