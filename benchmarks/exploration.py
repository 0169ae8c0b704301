"""How many designs a search answers per minute, and against `dippm.predict` one by one.

    python -m benchmarks.exploration [--designs 200] [--alone 8] [--family resnet] [--storage URL]

Two searches of one family at 224 x 224. "architectures" varies nothing but the architecture, so
that nearly each design costs a conversion: the worst case. "whole" has batches, precisions and
slices too, which share conversions: the usual case. Before, between and after them some designs of
the first are predicted one by one in this process, so that a change of the machine's load meets
both sides; the ratio is of medians. The last lines are a cost model on paper for a million designs:
processor time over cores, and what the driver spends on each design by itself, which is what a
cluster cannot divide.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import tempfile
import time
from typing import Any

import dippm
from dataset.families.searched import architecture
from dippm.decide.exploration import Architecture, Exploration, Ints, Space, explore, weights_proxy
from dippm.decide.exploration.evaluation import DesignOutcome, Evaluator
from dippm.decide.exploration.study import Study
from dippm.model.frontends.worker import POOL

FIXED: dict[str, dict[str, Any]] = {"mobilenet": {"version": 2}, "resnet": {"block": "bottleneck"}}
WANTED, GOAL_S = 1000, 600.0
GOALS = ["latency_ms", "throughput", weights_proxy()]
MILLION = 1_000_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--designs", type=int, default=200, help="of each search")
    parser.add_argument("--alone", type=int, default=8, help="one by one, each of three times")
    parser.add_argument("--family", default="resnet", choices=sorted(FIXED))
    parser.add_argument("--workers", type=int, help="one for each core")
    parser.add_argument("--storage", help="a new SQLite file if not given")
    options = parser.parse_args()
    load_1, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"{platform.machine()}, {cores} cores, load {load_1:.1f} before the run")
    family = architecture(options.family, (224, 224), **FIXED[options.family])
    spaces = {
        "architectures": Space(family, device="A100"),
        "whole": Space(
            family,
            device="A100",
            batch=Ints(1, 256, log=True),
            precision=["fp32", "fp16", "bf16"],
            mig=[None, "1g.5gb", "2g.10gb", "3g.20gb"],
        ),
    }
    warm_up(family)
    alone: list[tuple[float, float]] = []
    rates: dict[str, float] = {}
    costs: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, space in spaces.items():
            alone += one_by_one(spaces["architectures"], options.alone, len(alone))
            storage = options.storage or f"sqlite:///{folder}/{name}.db"
            start, cpu = time.perf_counter(), cpu_s()
            found = explore(
                space,
                GOALS,
                trials=options.designs,
                storage=storage,
                name=name,
                workers=options.workers,
            )
            each_s = (time.perf_counter() - start) / len(found.tried)
            each_cpu_s = (cpu_s() - cpu) / len(found.tried)
            rates[name], costs[name] = 1 / each_s, each_cpu_s
            report(name, found, each_s, each_cpu_s)
        alone += one_by_one(spaces["architectures"], options.alone, len(alone))
        sqlite_s = driver_cost_s(spaces["whole"], f"sqlite:///{folder}/driver.db", options.designs)
        memory_s = driver_cost_s(spaces["whole"], None, options.designs)
    walls, cpus = [wall for wall, _ in alone], [cpu for _, cpu in alone]
    wall_s, each_cpu_s = statistics.median(walls), statistics.median(cpus)
    spread = f"{min(walls):.3f} to {max(walls):.3f}, n {len(alone)}"
    print(f"one by one: {wall_s:.3f} s each ({spread}), {each_cpu_s:.3f} s of a processor")
    for name, rate in rates.items():
        by_cpu = each_cpu_s / costs[name]
        print(f"{name}: {rate * wall_s:.1f} times as many as one by one, {by_cpu:.1f} by processor")
    print(
        f"the driver alone, of a processor: {1e3 * sqlite_s:.2f} ms a design in SQLite, "
        f"{1e3 * memory_s:.2f} ms without a storage"
    )
    for name, cost_s in costs.items():
        each = [(n, MILLION * cost_s / n / 3600) for n in (2, 64, 512)]
        listed = ", ".join(f"{hours:.1f} h on {n:,} cores" for n, hours in each)
        print(
            f"a million of {name}, on paper: {listed}; one driver keeps {cost_s / sqlite_s:.0f} "
            f"cores busy with SQLite, {cost_s / memory_s:,.0f} without a storage"
        )


def warm_up(family: Architecture) -> None:
    """Import and load everything, as a session that explores has it."""
    space = Space(family, device="A100")
    one_by_one(space, 1, 0)


def cpu_s() -> float:
    """Return the processor time of this process and of those that it has ended."""
    return sum(os.times()[:4])


def largest_mb() -> float:
    """Return the most memory in MiB that any process held which this one started and ended.

    What a worker shares with this process counts in each.
    """
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def one_by_one(space: Space, count: int, skip: int) -> list[tuple[float, float]]:
    """Return wall and processor time of building and predicting each of some designs by itself."""
    from random import Random

    from dippm.decide.exploration.study import every_design

    chosen = list(every_design(space))
    Random(0).shuffle(chosen)
    times = []
    for labels in chosen[skip : skip + count]:
        design = space.design(labels)
        start, cpu = time.perf_counter(), time.process_time()
        module = space.architectures[design.architecture].build(design)
        dippm.predict(module, input=space.input_of(design), device="A100")
        wall_s = time.perf_counter() - start
        times.append((wall_s, time.process_time() - cpu + POOL.cpu_s))
    return times


def report(name: str, found: Exploration, each_s: float, each_cpu_s: float) -> None:
    """Print one search."""
    converted = [t.outcome.convert_s for t in found.tried if t.outcome.convert_s]
    predicted = [t.outcome.predict_s for t in found.predicted]
    verdict = "met" if each_s * WANTED <= GOAL_S else "MISSED"
    print(
        f"{name}: {found.title}; {60 / each_s:.0f} a minute, {each_s:.3f} s each, "
        f"{each_cpu_s:.3f} s of a processor, "
        f"{len(converted)} conversions of {statistics.median(converted):.2f} s, "
        f"predictions of {statistics.median(predicted):.3f} s; "
        f"{WANTED:,} in {each_s * WANTED / 60:.1f} min, goal {GOAL_S / 60:.0f} min: {verdict}; "
        f"the largest process so far held {largest_mb():,.0f} MB"
    )


def driver_cost_s(space: Space, storage: str | None, designs: int) -> float:
    """Return the processor time of asking for a design and keeping it, without any conversion."""
    from dippm.decide.exploration.evaluation import SearchQuestion, Task
    from dippm.decide.exploration.objectives import objectives_of
    from dippm.decide.exploration.study import every_design

    question = SearchQuestion(space, objectives_of(GOALS), (), dippm.load(device="A100"))
    (outcome,) = Evaluator(question).evaluate(Task({0: next(every_design(space))})).values()
    assert isinstance(outcome, DesignOutcome)
    study = Study(
        question,
        storage=storage,
        name="driver",
        sampler="nsga2",
        trials=designs,
        seed=0,
        take_over=False,
    )
    start = time.process_time()
    for _ in range(designs // 16):
        for number in study.ask(16):
            study.tell(number, outcome)
    return (time.process_time() - start) / (designs // 16 * 16)


if __name__ == "__main__":
    main()
