"""Ordered times: each point asks the law once, and one answer does not depend on the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_table import KernelGraph, KernelTable
from dippm.estimate.models.kernel_law import Place
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.ordered_times import OrderedTimes
from dippm.model.graph import ModelGraph
from tests.unit.prediction.test_physics import convolutional, dense


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

    return OrderedTimes(law, pretrained.load().predictor.monotonic_bounds, kernels_of, 8)


def test_no_point_is_evaluated_twice(law: Counting) -> None:
    law.asked.clear()
    times = ordered(law)
    times.at(Conditions(device=find("A30"), batch=8, precision="fp16"))
    assert len(law.asked) > 20
    assert set(law.asked.values()) == {1}
    times.at(Conditions(device=find("A30"), batch=8, precision="amp"))
    assert set(law.asked.values()) == {1}


@pytest.mark.parametrize("name", ["A30", "B200", "T4"])
def test_many_places_at_once_are_each_what_they_are_alone(law: Counting, name: str) -> None:
    shared = ordered(law)
    for precision in ("fp16", "amp", "fp32"):
        c = Conditions(device=find(name), batch=8, precision=precision)
        alone = ordered(law).at(c)
        assert np.allclose(shared.at(c).kernel_ms, alone.kernel_ms, rtol=1e-6)
        assert alone.device_ms == pytest.approx(float(alone.kernel_ms.sum()))


def narrow() -> ModelGraph:
    """Return many small products with activations between them, as experts have them."""
    batch = 1009
    b = GraphBuilder(batch=batch)
    x: Any = b.input((batch, 256))
    for _ in range(8):
        for taken, width in ((256, 1024), (1024, 256)):
            attributes = {"in_features": taken, "out_features": width}
            x = b.add("dense", [x], (batch, width), attributes=attributes, weights=width * taken)
            x = b.add("gelu", [x], (batch, width))
    return b.graph(batch_is_symbolic=True)


def device_ms(graph: ModelGraph, c: Conditions) -> dict[str, float]:
    of_class = pretrained.load().predictor.class_ms(graph, c)[0]
    return dict(zip(KERNEL_CLASSES, of_class.tolist(), strict=True))


def test_compiled_kernels_take_no_longer_than_eager_ones() -> None:
    for name, graph in (("narrow", narrow()), ("dense", dense())):
        for device, precision, batch in product(
            ("A100", "H100", "T4", "RTX-4090", "B200"), ("fp32", "fp16"), (1, 64, 1024)
        ):
            c = Conditions(device=find(device), batch=batch, precision=precision)
            eager, compiled = (
                sum(device_ms(graph, replace(c, mode=mode)).values())
                for mode in ("eager", "compiled")
            )
            assert compiled <= 1.0001 * eager, (name, device, precision, batch)


def test_convolutions_in_groups_may_take_longer_compiled(monkeypatch) -> None:
    """Of two mixers of large depthwise windows torch.compile was measured 2.4 times as slow."""
    graph, c = convolutional(), Conditions(device=find("RTX-4090"), batch=64, precision="amp")
    law = pretrained.load().predictor.law
    plain = type(law).times

    def slower_when_compiled(self: Any, kernels: Any, batch: int, places: Any) -> Any:
        found = plain(self, kernels, batch, places)
        slow = 10.0 if places[0].conditions.mode == "compiled" else 1.0
        return [
            replace(one, kernel_ms=slow * one.kernel_ms, device_ms=slow * one.device_ms)
            for one in found
        ]

    monkeypatch.setattr(type(law), "times", slower_when_compiled)
    eager, compiled = (device_ms(graph, replace(c, mode=mode)) for mode in ("eager", "compiled"))
    in_groups = [name for name, row in KERNEL_CLASSES.items() if row.slower_compiled]
    assert sum(compiled[k] for k in in_groups) > 5 * sum(eager[k] for k in in_groups) > 0
    others = [name for name in KERNEL_CLASSES if name not in in_groups]
    rest = [sum(of[k] for k in others) for of in (compiled, eager)]
    assert rest[0] == pytest.approx(rest[1])
