"""How long the page of runs takes to draw: 1,000 runs with 1,000,000 samples.

    python -m benchmarks.page [--runs 1000] [--samples 1000] [--stored 20]

The runs are folders in a spool, read by the page's own library. Drawing is what a visitor waits for
who ticks a stream, in headless Chromium where there is one: the request, the server's work, and
plotly's, until the lines are there; and again for a stretch that was zoomed into, where every
sample is drawn. Reading comes before it, once for each run, and the page draws what it has
meanwhile. From a store of MLflow, reading a run takes longer: `--stored` of them say how long.
Seconds of the processor are what an idle machine would take; the others depend on who else works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

MOST_S = 0.5
STREAM = "tree.rss_mb"
PATIENCE_S = 600
DRAWN = """new Promise((done, failed) => {
  const began = performance.now();
  const graph = document.querySelector('.chart .js-plotly-plot');
  const before = graph.data;
  %s;
  (function look() {
    const took = (performance.now() - began) / 1000;
    if (graph.data !== before) done(took);
    else if (took > 60) failed('nothing was drawn');
    else requestAnimationFrame(look);
  })();
})"""
"""Plotly sets the data and draws in one go, so the next frame with new data has it drawn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--stored", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        draw(Path(place), given.runs, given.samples)
    if given.stored:
        with tempfile.TemporaryDirectory() as place:
            read_stored(Path(place), given.stored, given.samples)


def draw(place: Path, runs: int, samples: int) -> None:
    """Draw many runs, on the server alone and in a browser."""
    from dippm.ui.exploration import ChartView, Exploration
    from dippm.ui.figure import figure_of
    from dippm.ui.library import Library
    from dippm.ui.view import view
    from tests.run_folders import make_run

    for number in range(runs):
        make_run(place / "spool", name=f"run {number}", ticks=samples, number=number)
    library = Library(str(place / "runs.db"), place / "spool")
    library.start()
    wait_for(lambda: len(library.runs()) == runs)
    listed = library.runs()
    began = time.perf_counter()
    wait_for(lambda: len(library.opened(run.uuid for run in listed)) == runs)
    print(f"{runs:,} runs read from their folders: {time.perf_counter() - began:.1f} s, once")
    opened = library.opened(run.uuid for run in listed)
    wanted, zoomed = ChartView(stream=STREAM), ChartView(stream=STREAM, x=(10.0, 11.0))
    for what, chart in (("all", wanted), ("zoomed in", zoomed)):
        for smoothing in (0, 60):
            exploration = Exploration(smoothing=smoothing)
            took = []
            for _ in range(5):
                began = time.perf_counter(), time.thread_time()
                found = view(listed, opened, exploration, chart)
                text = json.dumps(figure_of(found, chart, "light"))
                took.append((time.perf_counter() - began[0], time.thread_time() - began[1]))
            drawn = sum(len(line.x) for line in found.chart.lines)
            print(
                f"server, {what}, smoothing {smoothing} %: {both(took)}; "
                f"{drawn:,} of {found.points:,} points, {len(text) / 1e6:.1f} MB"
            )
    browse(library, place, runs)
    library.close()


def browse(library, place: Path, runs: int) -> None:
    """Say how long a visitor waits."""
    from dippm.ui.serving import Served
    from tests.browser import CHROMIUM
    from tests.chromium import chromium

    if CHROMIUM is None:
        print("no chromium is installed: drawing in a browser was not timed")
        return
    served = Served(library, "127.0.0.1", 0)
    threading.Thread(target=served.answer, daemon=True).start()
    with chromium(place) as tab:
        tab.size(1280, 900)
        tab.call("Performance.enable", timeDomain="threadTicks")
        tab.open(served.address)
        tab.click("#select-all")
        tab.wait(f"document.querySelector('#runs-note').innerText.includes('{runs:,} selected')")
        box = f'#streams input[value="{STREAM}"]'
        tab.wait(f"!!document.querySelector('{box}')")
        tab.click(box)
        tab.wait("document.querySelectorAll('.scatterlayer .trace').length > 0")
        for what, step in STEPS.items():
            began = cpu_s(tab)
            took_s = tab.run(DRAWN % step)
            cpu = cpu_s(tab) - began
            print(f"drawn, {what}: {took_s:.3f} s, {cpu:.3f} s of the processor (at most {MOST_S})")
    served.close()


def cpu_s(tab) -> float:
    """Return seconds of the processor so far: of the page in the browser, and of the server."""
    metrics = {o["name"]: o["value"] for o in tab.call("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"] + time.process_time()


def both(took: list[tuple[float, float]]) -> str:
    """Return medians of times by the clock and by the processor."""
    clock_s, processor_s = (statistics.median(times) for times in zip(*took, strict=True))
    return f"{clock_s:.3f} s, {processor_s:.3f} s of the processor"


STEPS = {
    "all runs": "document.querySelector('#alignment input[value=workload]').click()",
    "all runs again": "document.querySelector('#alignment input[value=run]').click()",
    "zoomed in": "document.querySelector('.chart button[title=\"Zoom in\"]').click()",
    "mean and range": "document.querySelector('#grouping input[value=merged]').click()",
}


def read_stored(place: Path, runs: int, samples: int) -> None:
    """Say how long runs take that come from a store of MLflow."""
    from dippm.store.runs import open_store
    from dippm.ui.opened import opened_of_store
    from tests.run_folders import make_run

    store = open_store(str(place / "runs.db"))
    for number in range(runs):
        store.attach(make_run(place / "made", ticks=samples, number=number))
    listed = store.runs(limit=runs)
    took = []
    for run in listed:
        began = time.perf_counter(), time.thread_time()
        opened_of_store(run)
        took.append((time.perf_counter() - began[0], time.thread_time() - began[1]))
    print(f"a run of {samples:,} ticks, read from a store of MLflow: {both(took)}")


def wait_for(condition) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the library read for too long")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
