"""Every model of keras.applications, as each kind of file that Keras writes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.zoo.case import Case
from tests.zoo.written import cases_of

KINDS = {"keras": "model.keras", "h5": "model.h5", "savedmodel": "folder"}


def cases() -> Iterator[Case]:
    """Yield one case for each name and kind."""
    return cases_of("tests.zoo.keras_writer", KINDS)
