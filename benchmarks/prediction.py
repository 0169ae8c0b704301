"""What a prediction costs here, on ResNet-50: cold command, warm call, and a grid.

Run: python -m benchmarks.prediction
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import dippm
from dippm.devices import find
from dippm.estimate.conditions import Conditions
from scripts.sample_models import resnet50_onnx

GRID_POINTS = 1000


def main() -> None:
    """Print one line per measurement."""
    model = resnet50_onnx()
    busy = f"load {os.getloadavg()[0]:.1f} before the run"
    python = platform.python_version()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {busy}, Python {python}")
    with tempfile.TemporaryDirectory() as folder:
        cold = [command_s(model, os.path.join(folder, str(run))) for run in range(5)]
        known = [command_s(model, os.path.join(folder, "0")) for _ in range(5)]
    report("dippm predict resnet50.onnx, nothing cached", cold, 6.0)
    report("the same file again, other batch", known, 6.0)

    predictor, graph = dippm.load(), dippm.read_graph(model)
    conditions = [Conditions(device=find("A100"), batch=batch) for batch in range(1, 201)]
    answer = iter(conditions)
    warm = seconds(lambda: predictor.predict_at(graph, next(answer)), runs=200)
    report("predictor.predict on a ready graph", warm, 0.005)

    points = 0

    def grid() -> None:
        nonlocal points
        slices = [None, *(profile.name for profile in find("A100").mig_profiles)]
        batches = range(1, GRID_POINTS // len(slices) + 2)
        table = predictor.predict_grid(graph, batches=batches, devices=["A100"], migs=slices)
        points = len(table)

    report(f"grid of {GRID_POINTS:,} points", seconds(grid, runs=3), 3.0)
    print(f"(the grid had {points:,} points)")


def command_s(model: os.PathLike[str], cache: str) -> float:
    """Return the wall time of one `dippm predict` with its own cache folder."""
    batch = "32" if not os.path.exists(cache) else "64"
    command = [sys.executable, "-m", "dippm", "predict", os.fspath(model), "--batch", batch]
    start = time.perf_counter()
    environment = {**os.environ, "DIPPM_CACHE_DIR": cache}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def seconds(call: Callable[[], object], *, runs: int) -> list[float]:
    """Return the wall time of each of `runs` calls."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def report(what: str, times: list[float], goal_s: float) -> None:
    """Print median, worst and goal."""
    p50, worst = statistics.median(times), max(times)
    verdict = "met" if p50 <= goal_s else "MISSED"
    print(f"{what:45} p50 {p50:8.4f} s  max {worst:8.4f} s  goal {goal_s:g} s  {verdict}")


if __name__ == "__main__":
    main()
