"""What a warm prediction costs, in processor time: models × GPUs × precisions.

Run: python -m benchmarks.conditions [--models torchvision:resnet50,...] [--runs 5]

A GPU that was not measured is predicted within the order of its neighbours, so it takes longer than
one that was. Each run of a condition asks for another batch, so that no answer is a stored one.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import dippm
from dippm.devices import Device, all_devices, find
from dippm.estimate.conditions import Conditions, supported_precisions
from dippm.model.graph import ModelGraph

MODELS = ("torchvision:resnet50", "torchvision:vit_b_16", "torchvision:swin_t")
FIRST_BATCH = 2
GOAL_MS = 5.0

Costs = dict[tuple[str, str], float]
"""Median of the processor time in ms, by GPU and precision."""


def main() -> None:
    """Print a table for each model, and the share of conditions within the goal."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--devices", default="")
    options.add_argument("--runs", type=int, default=5)
    asked = options.parse_args()
    devices = [find(name) for name in asked.devices.split(",") if name] or all_devices()
    print(f"{platform.machine()}, Python {platform.python_version()}, one processor's time in ms")
    predictor = dippm.load()
    found: list[float] = []
    for name in asked.models.split(","):
        costs = measured(predictor, dippm.read_graph(name), devices, asked.runs)
        show(name, costs)
        found += costs.values()
    print(summary("all models", found))


def measured(predictor: Any, graph: ModelGraph, devices: Sequence[Device], runs: int) -> Costs:
    """Return what a prediction costs under each condition, once its kernels are known."""
    costs: Costs = {}
    for device in devices:
        for precision in supported_precisions(device):
            times = []
            for run in range(1 + runs):  # the first works the kernels out
                conditions = Conditions(device=device, batch=FIRST_BATCH + run, precision=precision)
                start = time.process_time()
                predictor.predict_at(graph, conditions)
                times.append(1e3 * (time.process_time() - start))
            costs[device.name, precision] = median(times[1:])
    return costs


def show(name: str, costs: Costs) -> None:
    """Print the costs on each GPU, and in which conditions they lie within the goal."""
    precisions = list(dict.fromkeys(precision for _, precision in costs))
    print(f"\n{name:24}" + "".join(f"{precision:>10}" for precision in precisions))
    for device in dict.fromkeys(device for device, _ in costs):
        cells = [costs.get((device, precision)) for precision in precisions]
        row = "".join(f"{'-' if cell is None else format(cell, '.1f'):>10}" for cell in cells)
        print(f"{device:24}{row}")
    print(summary(name, list(costs.values())))


def summary(name: str, costs: Sequence[float]) -> str:
    """Return p50, worst and the share within the goal in one line."""
    share = sum(cost <= GOAL_MS for cost in costs) / len(costs)
    verdict = "met" if median(costs) <= GOAL_MS else "MISSED"
    return (
        f"{name}: {len(costs)} conditions, p50 {median(costs):.1f} ms, max {max(costs):.1f} ms, "
        f"{share:.0%} within {GOAL_MS:g} ms; goal p50 {GOAL_MS:g} ms {verdict}"
    )


if __name__ == "__main__":
    main()
