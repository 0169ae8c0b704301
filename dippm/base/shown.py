"""`Shown`: an answer that prints as a table, and shows one in a notebook."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Shown:
    """Base of answers whose table `dippm.show.report.answers` makes.

    That module is found by its name when an answer is printed: it lies above all answers, which
    import nothing of it.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return str(_report().text(self))

    def _repr_html_(self) -> str:
        return str(_report().markup(self))


def _report() -> Any:
    return import_module("dippm.show.report.answers")
