"""Every model of paddle.vision, in the present and in the former format of Paddle."""

from __future__ import annotations

from collections.abc import Iterator

from tests.zoo.case import Case
from tests.zoo.written import cases_of

KINDS = {"json": "present/model.json", "pdmodel": "former/model.pdmodel"}


def cases() -> Iterator[Case]:
    """Yield one case for each name and kind."""
    return cases_of("tests.zoo.paddle_writer", KINDS)
