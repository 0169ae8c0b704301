"""From runs and settings to a chart, and from there to plotly's figure and to files."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the page needs the extra ui")

from dippm.show.report.runs.charts import DrawnCharts
from dippm.show.report.runs.picture import write_picture
from dippm.show.report.runs.text import csv_text, document
from dippm.show.ui.exploration import ChartSelection, ChartView
from dippm.show.ui.figure import figure_of
from dippm.show.ui.opened import expected
from dippm.show.ui.streams import listed_streams
from dippm.show.ui.view import MOST_POINTS, MOST_STRETCHES, view, workload_key
from tests.page_runs import HOSTILE, PREDICTION
from tests.unit.ui.runs_in_memory import call, column, listed, opened, told

RSS = ChartView(stream="tree.rss_mb")


def two(**given):
    runs = [listed("a", group="w"), listed("b", group="w", after_s=2.0)]
    held = {
        "a": opened("a", column("tree.rss_mb", [100.0] * 50), **given),
        "b": opened("b", column("tree.rss_mb", [200.0] * 50), after_s=2.0, **given),
    }
    return runs, held


def test_each_run_is_a_line_over_its_own_time():
    found = view(*two(), ChartSelection(), RSS)
    assert [line.name for line in found.chart.lines] == ["a", "b"]
    assert [float(line.x[0]) for line in found.chart.lines] == [0.0, 0.0]
    assert found.chart.y_label == "tree.rss_mb (MB)"


def test_alignment_moves_the_lines():
    aligned = view(*two(), ChartSelection(alignment="workload"), RSS)
    assert [float(line.x[0]) for line in aligned.chart.lines] == [0.0, 2.0]
    assert view(*two(), ChartSelection(alignment="clock"), RSS).clock


def test_a_workload_is_one_line_with_its_range():
    (line,) = view(*two(), ChartSelection(grouping="merged"), RSS).chart.lines
    assert (line.name, line.n) == ("w", 2)
    np.testing.assert_allclose(line.y, 150)
    np.testing.assert_allclose((line.low[0], line.high[0]), (100, 200))


def test_hidden_lines_are_not_drawn_and_the_others_keep_their_colour():
    found = view(*two(), ChartSelection(hidden=("a",)), RSS)
    assert [line.name for line in found.chart.lines] == ["b"]
    assert found.colours == (1,)
    runs, held = two()
    key = workload_key(runs[0])
    none = view(runs, held, ChartSelection(hidden=(key,), grouping="merged"), RSS)
    assert none.chart.lines == ()


def test_smoothing_is_of_every_sample_and_not_of_those_drawn():
    values = np.random.default_rng(1).normal(size=20_000)
    runs, held = [listed("a")], {"a": opened("a", column("tree.rss_mb", values))}
    (line,) = view(runs, held, ChartSelection(smoothing=99), RSS).chart.lines
    assert len(line.x) < 5000
    assert np.abs(line.y[-100:]).max() < 0.5


def test_zooming_in_gives_every_sample():
    values = np.arange(100_000.0)
    runs, held = [listed("a")], {"a": opened("a", column("tree.rss_mb", values))}
    (whole,) = view(runs, held, ChartSelection(), RSS).chart.lines
    assert len(whole.x) <= 4000
    (part,) = view(
        runs, held, ChartSelection(), ChartView(stream=RSS.stream, x=(50, 60))
    ).chart.lines
    assert part.x.tolist() == pytest.approx(np.arange(499, 602) / 10)
    (file,) = view(runs, held, ChartSelection(), RSS, whole=True).chart.lines
    assert len(file.x) == 100_000


def test_many_runs_share_the_points_of_a_chart():
    runs = [listed(f"r{n}") for n in range(300)]
    series = column("tree.rss_mb", np.random.default_rng(2).normal(size=1000))
    found = view(runs, {run.uuid: opened(run.uuid, series) for run in runs}, ChartSelection(), RSS)
    assert found.points == 300_000
    assert sum(len(line.x) for line in found.chart.lines) <= MOST_POINTS
    assert all(line.y.max() == series.values.max() for line in found.chart.lines)
    figure = figure_of(found, RSS, "light")
    assert len(figure["data"]) == 10


def test_counters_are_drawn_as_their_growth():
    series = column("tree.cpu_s", np.arange(10) / 5, unit="s", counter=True)
    runs, held = [listed("a")], {"a": opened("a", series)}
    wanted = ChartView(stream="tree.cpu_s")
    growth = view(runs, held, ChartSelection(), wanted).chart
    np.testing.assert_allclose(growth.lines[0].y, 2.0)
    assert growth.y_label == "tree.cpu_s growth (s/s)"
    raw = view(runs, held, ChartSelection(rates=False), wanted).chart
    assert raw.lines[0].y[-1] == pytest.approx(1.8)


def test_what_is_absent_says_why():
    gone = column("tree.power_w", [np.nan] * 4, reasons=[(0, "no sensor")])
    runs, held = [listed("a"), listed("b")], {"a": opened("a", gone), "b": opened("b")}
    found = view(runs, held, ChartSelection(), ChartView(stream="tree.power_w"))
    assert found.absent == (("a", "no sensor"), ("b", "it has no such stream"))


@pytest.mark.parametrize(("values", "said"), [([np.nan, 1, 2], False), ([1, np.nan, 2], True)])
def test_that_a_mean_needs_half_a_second_is_not_said(values, said):
    late = column("tree.cpu_percent", values, hz=2, reasons=[(0, "read again")])
    runs, held = [listed("a")], {"a": opened("a", late)}
    found = view(runs, held, ChartSelection(), ChartView(stream="tree.cpu_percent"))
    assert found.absent == ((("a", "read again"),) if said else ())


def test_runs_that_are_not_read_yet_are_left_out():
    runs, held = two()
    del held["a"]
    assert [line.name for line in view(runs, held, ChartSelection(), RSS).chart.lines] == ["b"]


CALLS = [call(n, n, n + 0.3) for n in range(20)]


def test_calls_and_what_was_told_are_streams():
    values = [told("loss", 2.0, 1.0), told("loss", 1.0, 0.5), told("text", "x", 1)]
    run = opened("a", spans=CALLS, values=values)
    assert list(run.streams) == ["told: loss", "calls: forward"]
    assert run.streams["told: loss"].values.tolist() == [1.0, 2.0]
    np.testing.assert_allclose(run.streams["calls: forward"].values, 300)
    metrics = {"tree.rss_mb.max": 1, "loss": 2, "comparison/latency_ms/measured": 3}
    assert listed_streams(metrics) == ["tree.rss_mb", "told: loss"]


def test_the_prediction_stands_beside_what_was_measured():
    runs, held = two(spans=CALLS, prediction=PREDICTION)
    (memory,) = view(runs, held, ChartSelection(), RSS).chart.levels
    assert (memory.value, memory.low, memory.high, memory.coverage) == (900, 820, 990, 0.9)
    assert memory.run == "2 runs"
    (latency,) = view(runs, held, ChartSelection(), ChartView(stream="calls: forward")).chart.levels
    assert latency.value == 310
    assert view(runs, held, ChartSelection(prediction=False), RSS).chart.levels == ()


def test_only_what_was_predicted_is_held_against_a_stream():
    on_gpu = {**PREDICTION, "conditions": {"device": "A100"}, "power_w": 250.0}
    run = opened("a", spans=CALLS, prediction=on_gpu)
    assert expected(run, "tree.rss_mb", rates=True) is None
    assert expected(run, "nvml_processes.tree_memory_mb", rates=True).target == "memory_mb"
    assert expected(run, "nvml:1.energy_j", rates=True) == ("power_w", 250.0, None, None, None)
    assert expected(run, "nvml.energy_j", rates=False) is None
    assert expected(run, "calls: backward", rates=True) is None
    assert expected(opened("b"), "calls: forward", rates=True) is None


def test_spans_are_drawn_behind_the_stream_the_longest_if_they_are_many():
    runs, held = two(spans=CALLS)
    assert view(runs, held, ChartSelection(), RSS).chart.stretches == ()
    stretches = view(runs, held, ChartSelection(spans=True), RSS).chart.stretches
    assert len(stretches) == 40
    seen = view(runs, held, ChartSelection(spans=True), ChartView(stream=RSS.stream, x=(0, 2.1)))
    assert len(seen.chart.stretches) == 6
    many, _ = [call(n, n, n + 0.1) for n in range(MOST_STRETCHES)], None
    runs, held = two(spans=[*many, call(9999, 0, 400, "epoch")])
    found = view(runs, held, ChartSelection(spans=True), RSS)
    assert len(found.chart.stretches) == MOST_STRETCHES
    assert {"epoch"} < {stretch.name for stretch in found.chart.stretches}
    assert "zoom in" in found.remarks[0]


def decoded(array):
    return np.frombuffer(base64.b64decode(array["bdata"]), dtype="<f8")


def test_the_figure_holds_the_numbers_and_the_axes():
    wanted = ChartView(stream=RSS.stream, log=True, x=(1, 2), y=(0, 3))
    figure = figure_of(view(*two(), ChartSelection(alignment="clock"), wanted), wanted, "dark")
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert figure["layout"]["yaxis"]["range"] == [0, 3]
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert figure["layout"]["xaxis"]["range"] == [1000, 2000]
    assert json.dumps(figure)


def test_the_figure_draws_mean_range_spans_and_prediction():
    runs, held = two(spans=CALLS, prediction=PREDICTION)
    exploration = ChartSelection(grouping="merged", spans=True)
    figure = figure_of(view(runs, held, exploration, RSS), RSS, "light")
    low, high, mean, spans = figure["data"]
    assert high["fill"] == "tonexty"
    assert decoded(low["y"])[0] == 100
    assert decoded(mean["y"])[0] == 150
    kinds = [shape["type"] for shape in figure["layout"]["shapes"]]
    assert kinds.count("line") == kinds.count("rect") == 1
    assert (spans["type"], spans["text"], len(spans["x"])) == ("bar", "forward", 40)
    assert figure["layout"]["yaxis2"]["ticktext"] == ["a", "b"]
    assert "predicted 900" in figure["layout"]["annotations"][0]["text"]


def test_what_was_predicted_stands_right_on_a_logarithmic_axis():
    runs, held = two(spans=CALLS, prediction=PREDICTION)
    wanted = ChartView(stream=RSS.stream, log=True)
    layout = figure_of(view(runs, held, ChartSelection(), wanted), wanted, "light")["layout"]
    assert layout["annotations"][0]["y"] == pytest.approx(np.log10(900))
    (line,) = [shape for shape in layout["shapes"] if shape["type"] == "line"]
    assert line["y0"] == 900


def test_hostile_names_reach_plotly_as_text():
    runs = [listed("a", name=HOSTILE)]
    held = {"a": opened("a", column(f"tree.{HOSTILE}", [1.0, 2.0]))}
    wanted = ChartView(stream=f"tree.{HOSTILE}")
    text = json.dumps(figure_of(view(runs, held, ChartSelection(), wanted), wanted, "light"))
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "<img" not in text


def test_a_chart_is_taken_along_with_range_and_prediction(tmp_path):
    runs, held = two(spans=CALLS, prediction=PREDICTION)
    exploration = ChartSelection(grouping="merged", spans=True)
    drawn = DrawnCharts((view(runs, held, exploration, RSS, whole=True).chart,))
    rows = csv_text(drawn).splitlines()
    assert rows[1].startswith("lines,tree.rss_mb,w,w,")
    assert rows[1].endswith(",150.0,100.0,200.0,2,MB,a b,")
    assert rows[-1] == "lines,tree.rss_mb,2 runs,predicted,,900.0,820.0,990.0,,MB,,"
    chart = document(drawn)["charts"][0]
    assert chart["levels"][0]["coverage"] == 0.9
    assert len(chart["stretches"]) == 40
    assert chart["lines"][0]["n"] == 2
    assert chart["lines"][0]["uuids"] == ["a", "b"]
    assert chart["unit"] == "MB"
    for name in ("chart.pdf", "chart.svg"):
        write_picture(drawn, tmp_path / name)
    assert (tmp_path / "chart.pdf").read_bytes().startswith(b"%PDF")
    assert "predicted" in (tmp_path / "chart.svg").read_text()


def test_all_charts_have_the_axis_of_all_that_was_recorded():
    runs, held = two(spans=CALLS)
    memory = view(runs, held, ChartSelection(), RSS)
    calls = view(runs, held, ChartSelection(), ChartView(stream="calls: forward"))
    assert memory.extent == calls.extent == (0.0, 19.0)
    figure = figure_of(memory, RSS, "light")
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < 0 < 19 < high < 20
    hidden = ChartSelection(hidden=("a",), alignment="workload")
    assert view(runs, held, hidden, RSS).extent == (2.0, 21.0)


def test_what_was_told_is_drawn_over_its_steps_and_the_rest_says_that_it_has_none():
    values = [told("loss", 3.0 - n, n, step=10 * n) for n in range(3)]
    runs, held = [listed("a")], {"a": opened("a", column("tree.rss_mb", [1.0]), values=values)}
    by_step = ChartSelection(axis="step")
    found = view(runs, held, by_step, ChartView(stream="told: loss"))
    assert found.chart.lines[0].x.tolist() == [0, 10, 20]
    assert found.chart.x_label == "step"
    assert found.extent == (0, 20)
    assert "step %{x:,}" in figure_of(found, RSS, "light")["data"][0]["hovertemplate"]
    memory = view(runs, held, by_step, RSS)
    assert memory.chart.lines == ()
    assert "no steps" in memory.absent[0][1]


def test_a_run_that_failed_is_marked_at_its_last_value():
    runs, held = two()
    runs[0] = listed("a", group="w", status="failed")
    found = view(runs, held, ChartSelection(), RSS)
    assert found.endings == ("failed", "")
    cross = figure_of(found, RSS, "light")["data"][-1]
    assert (cross["marker"]["symbol"], cross["text"]) == ("x", ("a: failed",))
    merged = view(runs, held, ChartSelection(grouping="merged"), RSS)
    assert merged.endings == ("1 of 2 failed",)


def test_a_point_says_its_value_with_unit_its_time_and_its_run():
    figure = figure_of(view(*two(), ChartSelection(), RSS), RSS, "light")
    said = figure["data"][0]["hovertemplate"]
    assert said == "%{y:,.5~g} MB<br>%{x:,.4~g} s<extra>a</extra>"
    clock = ChartSelection(alignment="clock")
    assert "UTC" in figure_of(view(*two(), clock, RSS), RSS, "light")["data"][0]["hovertemplate"]


def test_spans_lie_in_lanes_below_what_is_around_them():
    epoch, step, inner = call(1, 0, 10, "epoch"), call(2, 1, 4, "step"), call(3, 2, 3, "copy")
    beside = call(4, 2.5, 6, "loader")
    spans = [epoch, step._replace(parent=1), inner._replace(parent=2), beside]
    run = opened("a", column("tree.rss_mb", [1.0, 2.0]), spans=spans)
    found = view([listed("a")], {"a": run}, ChartSelection(spans=True), RSS)
    lanes = {stretch.name: stretch.lane for stretch in found.chart.stretches}
    assert (lanes["epoch"], lanes["step"], lanes["copy"]) == (0, 1, 2)
    assert lanes["loader"] not in (0, 1)


def test_a_chart_without_a_value_says_so():
    gone = column("tree.power_w", [np.nan] * 4, reasons=[(0, "no sensor")])
    wanted = ChartView(stream="tree.power_w")
    found = view([listed("a")], {"a": opened("a", gone)}, ChartSelection(), wanted)
    assert (
        "nothing to draw" in figure_of(found, wanted, "light")["layout"]["annotations"][0]["text"]
    )
