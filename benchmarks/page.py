"""How long the page of runs takes: a table of 10,000 runs, charts of 1,000, 100,000,000 samples.

    python -m benchmarks.page [--runs 1000] [--samples 1000] [--stored 20] [--listed 10000]
                              [--many 100000000] [--watched-s 30]

The table is that of a store which gives its runs from memory; what reading as many of MLflow takes,
in the background, comes after it. `--many` samples are those of 1,000 runs, made in memory: the
server's work alone. `--watched-s` counts what a page costs on which a run that goes on is drawn.

The runs are folders in a spool, read by the page's own library. Drawing is what a visitor waits for
who ticks a stream, in headless Chromium where there is one: the request, the server's work, and
plotly's, until the lines are there; and again for a stretch that was zoomed into, where every
sample is drawn. Reading comes before it, once for each run, and the page draws what it has
meanwhile. From a store of MLflow, reading a run takes longer: `--stored` of them say how long.
Seconds of the processor are what an idle machine would take; the others depend on who else works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

MOST_S = 0.5
STREAM = "tree.rss_mb"
PATIENCE_S = 600
WAITED = """new Promise((done, failed) => {
  const began = performance.now();
  const seen = %s;
  const before = seen();
  %s;
  (function look() {
    const took = (performance.now() - began) / 1000;
    if (seen() !== before) done(took);
    else if (took > 60) failed('nothing has changed');
    else requestAnimationFrame(look);
  })();
})"""
CHART = "(o => () => o.data)(document.querySelector('.chart .js-plotly-plot'))"
"""Plotly sets the data and draws in one go, so the next frame with new data has it drawn."""
TABLE = "() => document.querySelector('#runs table')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--stored", type=int, default=20)
    parser.add_argument("--listed", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100_000_000)
    parser.add_argument("--watched-s", type=float, default=30.0)
    given = parser.parse_args()
    if given.listed:
        with tempfile.TemporaryDirectory() as place:
            list_many(Path(place), given.listed)
        with tempfile.TemporaryDirectory() as place:
            list_stored(Path(place), given.listed)
    if given.many:
        view_many(given.many)
    if given.watched_s:
        with tempfile.TemporaryDirectory() as place:
            watch(Path(place), given.watched_s)
    if not given.runs:
        return
    with tempfile.TemporaryDirectory() as place:
        draw(Path(place), given.runs, given.samples)
    if given.stored:
        with tempfile.TemporaryDirectory() as place:
            read_stored(Path(place), given.stored, given.samples)


def draw(place: Path, runs: int, samples: int) -> None:
    """Draw many runs, on the server alone and in a browser."""
    from dippm.show.ui.exploration import ChartSelection, ChartView
    from dippm.show.ui.figure import figure_of
    from dippm.show.ui.library import Library
    from dippm.show.ui.view import view
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
            exploration = ChartSelection(smoothing=smoothing)
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


@contextlib.contextmanager
def opened_page(library, place: Path):
    """Serve the page of a library; give a tab of a browser, and the page's address."""
    from dippm.show.ui.serving import ServedPage
    from tests.chromium import chromium

    served = ServedPage(library, "127.0.0.1", 0)
    threading.Thread(target=served.answer, daemon=True).start()
    with contextlib.closing(served), chromium(place) as tab:
        tab.size(1280, 900)
        tab.call("Performance.enable", timeDomain="threadTicks")
        yield tab, served.address


def has_browser() -> bool:
    from tests.browser import CHROMIUM

    if CHROMIUM is None:
        print("no chromium is installed: what a visitor waits for was not timed")
    return CHROMIUM is not None


def time_steps(tab, done: str, seen: str, steps: dict[str, str]) -> None:
    """Say how long a visitor waits after each step until something else is seen."""
    for what, step in steps.items():
        began = cpu_s(tab)
        took_s = tab.run(WAITED % (seen, step))
        cpu = cpu_s(tab) - began
        print(f"{done}, {what}: {took_s:.3f} s, {cpu:.3f} s of the processor (at most {MOST_S})")


def browse(library, place: Path, runs: int) -> None:
    """Say how long a visitor waits."""
    if not has_browser():
        return
    with opened_page(library, place) as (tab, address):
        tab.open(f"{address}#view=charts&stream={STREAM}")
        tab.wait("document.querySelectorAll('#runs tbody tr').length > 0")
        tab.click("#select-all")
        tab.wait(f"document.querySelector('#runs-note').innerText.includes('{runs:,} selected')")
        tab.wait("document.querySelectorAll('.scatterlayer .trace').length > 0")
        time_steps(tab, "drawn", CHART, STEPS)


def cpu_s(tab) -> float:
    """Return seconds of the processor so far: of the page in the browser, and of the server."""
    metrics = {o["name"]: o["value"] for o in tab.call("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"] + time.process_time()


def both(took: list[tuple[float, float]]) -> str:
    """Return medians of times by the clock and by the processor."""
    clock_s, processor_s = (statistics.median(times) for times in zip(*took, strict=True))
    return f"{clock_s:.3f} s, {processor_s:.3f} s of the processor"


TURN = """(o => {{ o.value = '{1}'; o.dispatchEvent(new Event('change')); }})(
  document.querySelector('#{0}'))"""
STEPS = {
    "all runs": TURN.format("alignment", "workload"),
    "all runs again": TURN.format("alignment", "run"),
    "zoomed in": "document.querySelector('.chart button[data-step=in]').click()",
    "mean and range": TURN.format("grouping", "merged"),
}
LISTS = {
    "sorted": "document.querySelector(\"#runs button[data-sort='metric: loss']\").click()",
    "grouped": TURN.format("by", "workload"),
    "of one status": TURN.format("status", "failed"),
    "of all again": TURN.format("status", ""),
}


class _InMemory:
    """A store that has its runs at hand."""

    def __init__(self, runs: int, file: Path) -> None:
        from dippm.runs.store.location import locate_store
        from dippm.runs.store.stored_run import StoredRun

        self.place = locate_store(str(file))
        summaries = {f"tree.q{n}.{k}": n / 3 for n in range(10) for k in ("mean", "max", "p95")}
        self._runs = [
            StoredRun(
                f"{number:032x}", f"run {number}", "sweep", "failed" if number % 50 == 0 else
                "finished", 10**18 + number * 10**9, number % 77 / 7, "", summaries |
                {"loss": number % 997 / 100}, "id", lambda _: None, f"w{number % 100}",
                f"run {number}", {"lr": str(number % 7 / 10), "seed": str(number)},
            )
            for number in range(runs)
        ]  # fmt: skip

    def runs(self, limit: int) -> list:
        return self._runs[:limit]


def list_many(place: Path, runs: int) -> None:
    """Say how long a visitor waits for a table of many runs."""
    from dippm.show.ui.library import Library
    from dippm.show.ui.page.lists import _Columns, _table_content
    from dippm.show.ui.page.visits import Filters

    store = _InMemory(runs, place / "runs.db")
    library = Library(str(place / "runs.db"), place / "spool", opener=lambda _: store)
    library.start()
    wait_for(lambda: len(library.runs()) == runs)
    columns = _Columns()
    for what, filters in (
        ("first", Filters()),
        ("sorted", Filters(sort="-metric: loss")),
        ("grouped", Filters(sort="metric: loss", by="workload")),
        ("searched", Filters(search="run 99", condition="loss < 3")),
    ):
        began = time.perf_counter(), time.thread_time()
        size = len(json.dumps(_table_content(library, filters, columns)))
        took = [(time.perf_counter() - began[0], time.thread_time() - began[1])]
        print(f"server, {runs:,} runs {what}: {both(took)}; {size / 1e6:.2f} MB")
    if has_browser():
        with opened_page(library, place) as (tab, address):
            tab.open(address)
            tab.wait("document.querySelectorAll('#runs tbody tr').length == 100")
            time_steps(tab, "listed", TABLE, LISTS)
    library.close()


def list_stored(place: Path, runs: int) -> None:
    """Say how long the runs of a real store of MLflow take until they can be listed."""
    from dataclasses import replace

    from dippm.runs.store.run_contents import gather
    from dippm.runs.store.runs import open_store
    from dippm.show.ui.library import Library
    from tests.run_folders import make_run

    file = str(place / "runs.db")
    store, made = open_store(file), gather(make_run(place / "made", ticks=300))
    with store._runs.transaction():  # as attaching does it, but for samples, which no list reads
        for number in range(runs):
            start = made.recorded.start
            at = start.at._replace(wall_ns=start.at.wall_ns + number * 10**9)
            start = start._replace(uuid=f"{number:032x}", name=f"run {number}", at=at)
            run = replace(made, recorded=made.recorded._replace(start=start))
            store._log(run, store._create(start))
    library = Library(file, place / "spool")
    began = time.perf_counter(), time.process_time()
    library.start()
    for what, there in (("the newest", 1), ("all", runs)):
        wait_for(lambda there=there: len(library.runs()) >= there)
        took = [(time.perf_counter() - began[0], time.process_time() - began[1])]
        print(f"server, a store of {runs:,} runs opened, {what}: {both(took)} (at most {MOST_S})")
    library.close()


def view_many(samples: int, runs: int = 1000) -> None:
    """Say what the server computes for a chart of very many samples, and in how much memory."""
    import resource

    import numpy as np

    from dippm.runs.store.columns import Column
    from dippm.runs.store.record import Moment, Start
    from dippm.show.ui.exploration import ChartSelection, ChartView
    from dippm.show.ui.figure import figure_of
    from dippm.show.ui.opened import OpenedRun
    from dippm.show.ui.selection import ListedRun
    from dippm.show.ui.streams import streams
    from dippm.show.ui.view import view

    chance = np.random.default_rng(0)
    each = samples // runs
    listed, opened = [], {}
    for number in range(runs):
        uuid = f"{number:032x}"
        times = np.arange(each, dtype=np.int64) * 10_000_000
        column = Column(STREAM, "MB", "tree", False, times, chance.normal(size=each), ())
        start = Start(uuid, f"run {number}", "sweep", Moment(0, 10**18))
        opened[uuid] = OpenedRun(start, (), streams(start, (), (), [column]))
        listed.append(
            ListedRun(uuid, f"run {number}", "sweep", f"w{number % 10}", "finished", 10**18, 1)
        )
    whole, part = ChartView(stream=STREAM), ChartView(stream=STREAM, x=(1.0, 2.0))
    for what, wanted, given in (
        ("first", whole, ChartSelection()),
        ("again", whole, ChartSelection()),
        ("zoomed in", part, ChartSelection()),
        ("smoothed", whole, ChartSelection(smoothing=60)),
        ("mean and range", whole, ChartSelection(grouping="merged")),
    ):
        began = time.perf_counter(), time.thread_time()
        size = len(json.dumps(figure_of(view(listed, opened, given, wanted), wanted, "light")))
        took = [(time.perf_counter() - began[0], time.thread_time() - began[1])]
        print(f"server, {samples:,} samples {what}: {both(took)}; {size / 1e6:.1f} MB")
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory with them: {peak_gb:.2f} GiB")


def watch(place: Path, seconds: float) -> None:
    """Say what it costs to watch a run that goes on: a value and ten readings each second."""
    from dippm.runs.store.folder import RunFolder
    from dippm.runs.store.record import Value
    from dippm.show.ui.library import Library
    from tests.page_runs import make_training
    from tests.run_folders import START_NS

    if not has_browser():
        return
    folder = make_training(place / "spool", name="live", workload="w", ticks=3000, ended=False)
    library = Library(str(place / "runs.db"), place / "spool")
    library.start()
    wait_for(lambda: len(library.runs()) == 1)
    with opened_page(library, place) as (tab, address):
        uuid = library.runs()[0].uuid
        streams = f"stream={STREAM}&stream=told:%20loss"
        for is_live in (False, True):
            tab.open("about:blank")
            tab.open(f"{address}#view=charts&runs={uuid}&{streams}")
            tab.wait("document.querySelectorAll('.scatterlayer .trace').length == 2")
            began, until, step = cpu_s(tab), time.monotonic() + seconds, 1000
            while time.monotonic() < until:
                if is_live:
                    writer = RunFolder(folder)
                    writer.value(Value("loss", "metric", 0.1, START_NS + step * 10**9, step=step))
                    writer.close()
                    step += 1
                time.sleep(1)
            share = (cpu_s(tab) - began) / seconds
            what = "that goes on" if is_live else "that stands still"
            print(
                f"watched, a run {what}: {100 * share:.1f} % of a core, browser and server together"
            )
    library.close()


def read_stored(place: Path, runs: int, samples: int) -> None:
    """Say how long runs take that come from a store of MLflow."""
    from dippm.runs.store.runs import open_store
    from dippm.show.ui.opened import opened_of_store
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
