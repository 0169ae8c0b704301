"""Ordered times: each point asks the law once, and one answer does not depend on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dippm import pretrained
from dippm.conditions import Conditions
from dippm.devices import find
from dippm.features.kernel_graph import KernelGraph
from dippm.features.kernel_table import KernelTable
from dippm.models.kernel_law import Place
from dippm.models.kernel_network import ROUNDS
from dippm.models.law_kernels import LawKernels
from dippm.models.ordered_times import OrderedTimes
from tests.unit.prediction.test_physics import dense


class Counting:
    """A law that counts what it is asked."""

    def __init__(self, law: Any) -> None:
        self.law, self.asked = law, Counter[tuple[Any, ...]]()

    def times(self, kernels: LawKernels, batch: int, places: Sequence[Place]) -> Any:
        for place in places:
            c = place.conditions
            self.asked[id(kernels), c.device.name, c.mig, place.ieee] += 1
        return self.law.times(kernels, batch, places)


@pytest.fixture(scope="module")
def law() -> Counting:
    return Counting(pretrained.load().predictor.law)


def ordered(law: Counting) -> OrderedTimes:
    graph, held = dense(), {}

    def kernels_of(c: Conditions) -> LawKernels:
        if c.precision not in held:
            table = KernelTable.of(graph, c.precision)
            held[c.precision] = LawKernels.of(KernelGraph.of(table, ROUNDS))
        return held[c.precision]

    return OrderedTimes(law, pretrained.load().predictor.order, kernels_of, 8)


def test_no_point_is_evaluated_twice(law: Counting) -> None:
    law.asked.clear()
    times = ordered(law)
    times.at(Conditions(find("A30"), 8, "fp16"))
    assert len(law.asked) > 20
    assert set(law.asked.values()) == {1}
    times.at(Conditions(find("A30"), 8, "amp"))
    assert set(law.asked.values()) == {1}


@pytest.mark.parametrize("name", ["A30", "B200", "T4"])
def test_many_places_at_once_are_each_what_they_are_alone(law: Counting, name: str) -> None:
    shared = ordered(law)
    for precision in ("fp16", "amp", "fp32"):
        c = Conditions(find(name), 8, precision)
        alone = ordered(law).at(c)
        assert np.allclose(shared.at(c).kernel_ms, alone.kernel_ms, rtol=1e-6)
        assert alone.device_ms == pytest.approx(float(alone.kernel_ms.sum()))
