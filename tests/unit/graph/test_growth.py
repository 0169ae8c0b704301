"""The work of `build` grows with the model and no faster; counted in lines, not in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from dippm.base.progress import listening
from dippm.estimate.features.kernels import launched
from tests.unit.graph.growth import MODELS, lines_of_build
from tests.unit.graph.sketch import BATCH, Sketch


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


def test_work_on_a_large_graph_tells_how_far_it_is() -> None:
    s = Sketch()
    x = s.input(BATCH, 8)
    for _ in range(1500):
        x = s.call("sigmoid", [x], BATCH, 8)
    heard: list[str] = []
    with listening(heard.append):
        launched(s.graph(x).at_batch(2), "fp32", "eager")
    told = {words.rstrip("0123456789,").removesuffix(" of ") for words in heard}
    told = {words.rstrip("0123456789,") for words in told}
    assert told == {"naming operator ", "rule ", "pricing operator ", "batch 2: operator ",
                    "kernels of operator "}  # fmt: skip
