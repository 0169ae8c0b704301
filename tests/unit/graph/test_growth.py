"""The work of `build` grows with the model and no faster; counted in lines, not in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.unit.graph.growth import MODELS, lines_of_build


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """A process in which torch has traced nothing, see `growth`."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("model", MODELS)
def test_four_times_the_operators_take_four_times_the_calls(
    fresh: ProcessPoolExecutor, model: str
) -> None:
    few, many = (fresh.submit(lines_of_build, model, count).result() for count in (200, 800))
    assert many < 5 * few
