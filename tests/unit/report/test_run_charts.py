"""Every type of a run in every back-end, several runs overlaid, hostile texts shown as text."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console

from dippm.base.printable import json_text
from dippm.errors import DippmError, UnknownNameError
from dippm.runs.store.parquet import write_samples
from dippm.runs.store.run_contents import gather
from dippm.runs.store.stored_run import RECORD, SAMPLES, StoredRun
from dippm.show.report.runs.catalogue import Entry, chosen, entries
from dippm.show.report.runs.charts import Bars, DrawnCharts, Heat, Line, Lines, Parallel
from dippm.show.report.runs.drawing import draw, labels
from dippm.show.report.runs.listing import details, runs_table, short_document, whole_document
from dippm.show.report.runs.picture import html_page, write_picture
from dippm.show.report.runs.text import csv_text, document, plain_text
from dippm.umlaut import Benchmark, BenchmarkSupervisor, CPUMetric, MemoryMetric, TimeMetric
from tests.run_folders import REASON, make_run

HOSTILE = "\x1b[31m<script>alert(1)</script>\u202e[red]$x$ =1+1"
SHAPES = {
    "tree.rss_mb": Lines,
    "time_s": Bars,
    "loss": Lines,
    "time_to_accuracy": Lines,
    "timed_time_to_accuracy": Lines,
    "confusion_matrix": Heat,
    "hyperparameters": Parallel,
}


def stored(root, **given) -> StoredRun:
    """A run as the store gives it, without one."""
    return stored_as_it_is(make_run(root / "spool", **given), root)


def stored_as_it_is(folder, root) -> StoredRun:
    gathered = gather(folder)
    start = gathered.recorded.start
    kept = root / start.uuid
    write_samples(gathered.columns, kept / SAMPLES)
    (kept / RECORD).write_text(json.dumps(gathered.document()))
    fetch = lambda path: found if (found := kept / path).exists() else None  # noqa: E731
    told = (start.uuid, start.name, start.experiment, gathered.end.status, start.at.wall_ns, 10.0)
    return StoredRun(*told, start.description, {"loss": 0.2}, "id", fetch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [stored(root, name="first"), stored(root, name="second", number=1)]


def drawn(runs, type_):
    return draw(runs, chosen(runs, [type_]))


def test_a_run_says_what_can_be_drawn(runs):
    assert {entry.type for entry in entries(runs[0])} == {*SHAPES, "tree.cpu_s", "tree.power_w"}
    assert chosen(runs, ["time_s"], ["forward"]) == [Entry("time_s", "forward", "bars")]
    series_too = chosen(runs, ["time_s", "tree.rss_mb"], ["forward"])
    assert {(entry.type, entry.description) for entry in series_too} == {
        ("time_s", "forward"),
        ("tree.rss_mb", ""),
    }
    with pytest.raises(UnknownNameError):
        chosen(runs, ["tree.rss"])
    with pytest.raises(UnknownNameError):
        chosen(runs, [], ["nothing"])


def test_bars_of_calls_are_their_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("DIPPM_ATTACH", "no")
    benchmark = Benchmark(tmp_path / "runs.db")
    metrics = [TimeMetric("how long"), MemoryMetric("held", 0.01), CPUMetric("use", 0.01)]

    @BenchmarkSupervisor(metrics, benchmark)
    def hold():
        held = bytearray(100 << 20)
        folder, before = benchmark.folder, 0
        while before < 3:  # until the sampler has seen it
            now = sum(file.stat().st_size for file in folder.glob("samples-*"))
            before, hold.size = before + (now > hold.size), now
        return len(held)

    hold.size = 0
    hold()
    hold()
    benchmark.close()
    run = stored_as_it_is(benchmark.folder, tmp_path)
    offered = {entry.type for entry in entries(run) if entry.shape == "bars"}
    assert offered == {"time_s", "tree.rss_mb", "tree.cpu_percent"}
    for type_, kind in (("time_s", "time"), ("tree.rss_mb", "memory"), ("tree.cpu_percent", "cpu")):
        (bar,) = draw([run], chosen([run], [type_], ["hold"])).charts[-1].bars
        rows = [row.value for row in benchmark.rows() if row.measure_type == kind]
        assert (bar.low, bar.high, bar.n) == pytest.approx((min(rows), max(rows), 2))


def test_a_tag_that_anybody_set_is_no_description(tmp_path):
    for odd in ("{", "[]", "7", '{"forward": 7}', '{"forward": {"time_s": {"name": 7}}}'):
        run = stored(tmp_path, tags={"umlaut.descriptions": odd})
        assert Entry("time_s", "forward", "bars") in entries(run)


@pytest.mark.parametrize("type_", SHAPES)
def test_every_type_has_its_chart_with_all_runs(runs, type_):
    charts = drawn(runs, type_).charts
    assert {type(chart) for chart in charts} == {SHAPES[type_]}
    assert "first" in plain_text(drawn(runs, type_))
    assert "second" in plain_text(drawn(runs, type_))


@pytest.mark.parametrize("type_", SHAPES)
def test_every_type_as_text(runs, type_):
    text = plain_text(drawn(runs, type_))
    wanted = {
        "tree.rss_mb": "█",
        "time_s": "0.5000 (0.5000 – 0.5000, n = 3)",
        "confusion_matrix": "cat  dog",
        "hyperparameters": "lr  depth  target",
        "timed_time_to_accuracy": "elapsed time (s): 4.200 to 4.200",
    }
    assert wanted.get(type_, "epoch or step") in text


@pytest.mark.parametrize("type_", SHAPES)
def test_every_type_as_csv(runs, type_):
    rows = list(csv.DictReader(io.StringIO(csv_text(drawn(runs, type_)))))
    assert {row["run"] for row in rows} == {"first", "second"}
    first = [float(row["value"]) for row in rows if row["run"] == "first" and row["value"]]
    wanted = {
        "time_s": [0.5],
        "loss": [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 3, 2, 1.5],
        "time_to_accuracy": [0.5, 0.7, 0.9],
        "timed_time_to_accuracy": [0.9],
        "confusion_matrix": [5, 1, 2, 7],
        "hyperparameters": [0.1, 3, 0.8],
    }
    if type_ in wanted:
        assert first == wanted[type_]
    else:
        assert len(first) == 100


@pytest.mark.parametrize("type_", SHAPES)
def test_every_type_as_json(runs, type_):
    found = json.loads(json_text(document(drawn(runs, type_))))
    assert found["charts"][0]["kind"] == SHAPES[type_].__name__.lower()
    assert found["charts"][0]["title"]


@pytest.mark.parametrize("type_", SHAPES)
def test_every_type_by_plotly(runs, type_):
    page = html_page(drawn(runs, type_), "Runs")
    kind = {Lines: "scatter", Bars: "bar", Heat: "heatmap", Parallel: "parcoords"}[SHAPES[type_]]
    assert f'"type":"{kind}"' in page
    assert "first" in page
    assert "second" in page


@pytest.mark.parametrize("type_", SHAPES)
@pytest.mark.parametrize("end", [".png", ".svg", ".pdf"])
def test_every_type_by_matplotlib(runs, type_, end, tmp_path):
    path = tmp_path / f"runs{end}"
    write_picture(drawn(runs, type_), path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    assert path.stat().st_size > 4000


def test_what_is_absent_is_said_in_every_back_end(runs, tmp_path):
    found = drawn(runs, "tree.power_w")
    assert found.charts == ()
    assert plain_text(found).count(REASON) == 2
    assert csv_text(found).count(REASON) == 2
    assert [row["reason"] for row in document(found)["absent"]] == [REASON] * 2
    assert html_page(found, "Runs").count(REASON) == 2
    write_picture(found, tmp_path / "runs.svg")


def test_hostile_texts_are_shown_as_text(tmp_path):
    bad = stored(tmp_path, name=HOSTILE, description=HOSTILE, tags={HOSTILE: HOSTILE})
    every = draw([bad], chosen([bad]))
    page = html_page(every, HOSTILE)
    assert "<script>alert(1)" not in page
    assert "\x1b" not in page
    for text in (plain_text(every), json_text(document(every))):
        assert text.replace("\n", "").isprintable()
    write_picture(every, tmp_path / "runs.png")
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=False)
    for part in (runs_table([bad]), *details(bad)):
        console.print(part)
    assert "\x1b" not in out.getvalue()
    assert r"\x1b[31m<script>" in out.getvalue()
    assert "[red]" in out.getvalue()


def test_no_cell_is_a_formula(tmp_path):
    bad = stored(tmp_path, name="=1+1")
    rows = list(csv.DictReader(io.StringIO(csv_text(draw([bad], chosen([bad], ["loss"]))))))
    assert {row["run"] for row in rows} == {"'=1+1"}
    absent = csv_text(DrawnCharts((), (("=1+1", "loss", "@why"),)))
    assert absent.splitlines()[1] == ",loss,'=1+1,,,,,,,,,'@why"


def test_documents_of_runs_are_json(runs):
    assert json.loads(json_text(short_document(runs[0])))["metrics"] == {"loss": 0.2}
    whole = json.loads(json_text(whole_document(runs[0])))
    assert len(whole["spans"]) == 4
    assert whole["comparison"] is None


def test_runs_of_one_name_are_told_apart(tmp_path):
    both = [stored(tmp_path), stored(tmp_path)]
    assert len(set(labels(both))) == 2


def test_a_thinned_line_keeps_its_peaks_and_gaps():
    y = np.zeros(100_000)
    y[51_234], y[60_000], y[70_000:80_000] = 9, -9, np.nan
    thin = Line("a", "a", np.arange(100_000.0), y).thinned(2000)
    assert len(thin.y) <= 2000
    assert (np.nanmax(thin.y), np.nanmin(thin.y)) == (9, -9)
    assert np.isnan(thin.y).any()


def test_a_picture_that_cannot_be_written_is_said(runs, tmp_path):
    with pytest.raises(DippmError, match="no picture"):
        write_picture(drawn(runs, "loss"), tmp_path / "runs.txt")
    with pytest.raises(DippmError, match="cannot write"):
        write_picture(drawn(runs, "loss"), tmp_path / "none" / "runs.png")
