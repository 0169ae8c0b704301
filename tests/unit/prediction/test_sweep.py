"""Sweeps over batch sizes and power limits."""

from __future__ import annotations

import json
import math
import re

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.power_sweep import limits_of
from dippm.errors import ConditionsError
from dippm.estimate.models.power_limit import fitted
from dippm.show.report.sweep import bar
from tests.browser import NEEDS_CHROMIUM, browse


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory):
    """Channels enough for memory, time and power to grow with the batch."""
    import torch

    path = tmp_path_factory.mktemp("wide") / "wide.pt"
    layers = [torch.nn.Conv2d(3, 256, 3, padding=1), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(256, 256, 3, padding=1), torch.nn.ReLU()] * 4
    torch.save(torch.nn.Sequential(*layers), path)
    return path


def test_a_sweep_is_the_predictions_and_the_largest_batches(wide_file):
    found = dippm.sweep(wide_file, batch="1:64", input="3,128,128")
    assert [p.conditions.batch for p in found.predictions] == [1, 2, 4, 8, 16, 32, 64]
    one = dippm.predict(wide_file, batch=16, input="3,128,128")
    row = found.rows()[4]
    assert row["latency_ms"] == one.latency_ms
    assert row["samples_per_s"] == pytest.approx(16e3 / one.latency_ms)
    assert [place.name for place in found.places] == [
        "A100-40GB", "1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"
    ]  # fmt: skip
    for place in found.places:
        batch = place.largest_batch
        mig = None if place.name == "A100-40GB" else place.name
        inside, outside = (
            dippm.predict(wide_file, batch=b, input="3,128,128", mig=mig).memory_bound_mb
            for b in (batch, batch + 1)
        )
        assert inside <= place.memory_mb < outside


def test_the_slice_that_predict_advises_is_the_one_that_holds_the_batch(wide_file):
    found = dippm.sweep(wide_file, batch="1:4096:256", input="3,128,128")
    for p in found.predictions:
        holds = [q for q in found.places[1:] if p.conditions.batch <= (q.largest_batch or 0)]
        assert (p.mig and p.mig.name) == (holds[0].name if holds else None)
    assert {p.mig is None for p in found.predictions} == {True, False}
    fits = [row["fits"] for row in found.rows()]
    assert fits == sorted(fits, reverse=True)


def test_every_command_has_the_same_largest_batch_and_the_same_slice(wide_file):
    """What a slice must hold is the 99 % bound of the whole GPU, whose context is larger."""
    sweep = dippm.sweep(wide_file, batch=[8], input="3,128,128")
    slices = dippm.smallest_slice(wide_file, batch=8, input="3,128,128")
    places = {place.name: place.largest_batch for place in sweep.places}
    rows = {c.mig.name if c.mig else c.device.name: c.largest_batch for c in slices.contenders}
    assert places == rows
    assert places["1g.10gb"] >= places["2g.10gb"] > places["1g.5gb"]
    for batch in (places["1g.5gb"], places["1g.5gb"] + 1):
        asked = {"batch": batch, "input": "3,128,128"}
        p = dippm.predict(wide_file, **asked)
        best = dippm.smallest_slice(wide_file, **asked).best
        assert p.mig == best.mig
        assert p.memory_bound_mb == best.memory_bound_mb
        assert p.memory_mb > best.prediction.memory_mb
    assert dippm.predict(wide_file, batch=places["1g.5gb"], input="3,128,128").mig.name == "1g.5gb"


def test_a_sweep_of_a_slice_is_about_the_slice(wide_file):
    found = dippm.sweep(wide_file, batch=[1], input="3,128,128", mig="3G.20GB")
    (place,) = found.places
    assert place.name == "A100-40GB 3g.20gb"
    assert place.memory_mb == 19968


def test_the_command_in_every_form(wide_file, tmp_path):
    words = ["sweep", wide_file, "--input", "3,64,64", "--batch", "1:8192", "--device", "T4"]
    answer = run(*words, "--html", tmp_path / "out.html")
    assert answer.exit_code == 0, answer.output
    assert "wide.pt · T4 · fp32 · eager" in answer.stdout
    assert "largest batch that fits T4 at 99 %:" in answer.stdout
    assert "█" in answer.stdout
    page = (tmp_path / "out.html").read_text()
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page
    assert "samples per second" in page
    assert "90 % interval" in page
    document = json.loads(run(*words, "--json").stdout)
    assert document["places"][0]["name"] == "T4"
    assert [row["batch"] for row in document["batches"]] == [2**n for n in range(14)]
    assert document["batches"][-1]["fits"] is False
    assert any("may run out of memory" in warning for warning in document["warnings"])


def test_the_plot_shows_bands_capacities_and_what_fits(wide_file):
    from dippm.show.report.sweep import batch_figure

    found = dippm.sweep(wide_file, batch="1:1024", input="3,128,128")
    figure = batch_figure(found)
    predicted = [trace for trace in figure.data if trace.name == "predicted"]
    assert [len(trace.x) for trace in predicted] == [11, 11, 11]
    assert list(predicted[0].y) == [p.latency_ms for p in found.predictions]
    bands = [trace for trace in figure.data if trace.name == "90 % interval"]
    assert all(len(trace.x) == 22 for trace in bands)
    for band, line in zip(bands, predicted, strict=True):
        high, low = band.y[:11], band.y[11:][::-1]
        assert all(a < b < c for a, b, c in zip(low, line.y, high, strict=True))
    lines = {trace.name: trace.y[0] for trace in figure.data if trace.mode == "lines+text"}
    assert lines == {
        "A100-40GB": 40960, "1g.5gb": 4864, "1g.10gb / 2g.10gb": 9856,
        "3g.20gb / 4g.20gb": 19968, "7g.40gb": 40192,
    }  # fmt: skip
    marks = {trace.y[0]: trace.x[0] for trace in figure.data if trace.mode == "markers"}
    assert marks[40960] == found.places[0].largest_batch


def test_a_sweep_on_a_cpu(onnx_file):
    found = dippm.sweep(onnx_file, batch="1:4", device="cpu")
    assert [place.name for place in found.places] == ["CPU-AMD-EPYC-2c"]
    assert found.predictions[0].provenance.kind == "pmgns"


def test_lower_limits_cost_time_and_save_power(wide_file):
    found = dippm.sweep_power(wide_file, limits_w="140:400:20", batch=32, input="3,128,128")
    free = found.prediction
    assert free.power_w > 250, "the model must load the GPU, or limits do nothing"
    latencies = [point.latency_ms for point in found.points]
    powers = [point.power_w for point in found.points]
    assert latencies == sorted(latencies, reverse=True)
    assert powers == sorted(powers)
    last = found.points[-1]
    assert (last.latency_ms, last.power_w, last.estimated) == (free.latency_ms, free.power_w, False)
    assert found.thriftiest.energy_j < last.energy_j
    for point in found.points:
        assert point.power_w <= point.limit_w
        assert point.energy_j == pytest.approx(point.power_w * point.latency_ms / 1e3)
        for target, interval in point.intervals.items():
            assert interval.low < getattr(point, target) <= interval.high
    assert found.points[0].estimated
    width = [math.log(p.intervals["latency_ms"].high / p.latency_ms) for p in found.points]
    assert width[0] > width[-2] > width[-1]
    assert any("estimated" in warning for warning in found.warnings)


def test_light_work_is_not_slowed(onnx_file):
    found = dippm.sweep_power(onnx_file, limits_w=[300, 400])
    assert found.prediction.power_w < 200
    low, high = found.points
    assert low.latency_ms == pytest.approx(high.latency_ms, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limits_w": "100"}, "100 W"),
        ({"limits_w": 401}, "401 W"),
        ({"limits_w": 300, "mig": "3g.20gb"}, "power"),
        ({"limits_w": 300, "device": "cpu"}, "power"),
        ({"limits_w": "much"}, "much"),
    ],
)
def test_limits_that_cannot_be_answered(onnx_file, arguments, words):
    with pytest.raises(ConditionsError, match=words) as caught:
        dippm.sweep_power(onnx_file, **arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("250", (250,)),
        ("150, 200", (150, 200)),
        ("100:175", (100, 125, 150, 175)),
        ("100:220:50", (100, 150, 200, 220)),
    ],
)
def test_limits(text, limits):
    assert limits_of(text) == limits


@pytest.mark.parametrize("text", ["", "a", "200:100", "1:2:3:4", "100:200:0", "0:100000:1"])
def test_wrong_limits_are_refused(text):
    with pytest.raises(ConditionsError):
        limits_of(text)


def test_the_law_fits_what_was_measured():
    """ResNet-50 and BERT-base on a V100 and an A40 (Zeus, NSDI 2023): limit, power, time ratio."""
    law = fitted().law
    for highest, power, limit, ratio in [
        (250, 220, 200, 1.05), (250, 220, 150, 1.18), (250, 220, 125, 1.43), (300, 268, 200, 1.11),
        (300, 168, 200, 1.09), (250, 39, 100, 1.0),
    ]:  # fmt: skip
        assert math.exp(law.log_slowdown(limit, power, highest)) == pytest.approx(ratio, rel=0.12)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.29, 0.31, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("highest", [70, 300, 1000])
def test_the_law_is_monotone_for_any_board(share, highest):
    law, power = fitted().law, share * highest
    limits = [highest * (0.33 + 0.67 * n / 50) for n in range(51)]
    slow = [float(law.log_slowdown(limit, power, highest)) for limit in limits]
    drawn = [float(law.log_power_ratio(limit, power)) for limit in limits]
    assert slow == sorted(slow, reverse=True)
    assert drawn == sorted(drawn)
    assert all(0 <= value < 3 for value in slow)
    assert all(-1.2 < value <= 0 for value in drawn)


def test_the_law_states_its_errors():
    first, last = fitted().bands
    assert 0 < first.time_log_error < last.time_log_error
    assert fitted().band(0.9) is first
    assert fitted().band(0.4) is last
    assert fitted().band(0.2) is None


def test_power_limits_on_the_command_line(wide_file, tmp_path):
    words = ["sweep", wide_file, "-i", "3,128,128", "-b", "32", "--power-limit", "150:400:50"]
    answer = run(*words, "--html", tmp_path / "out.html")
    assert answer.exit_code == 0, answer.output
    assert "estimated" in answer.stdout
    assert "least energy" in answer.stdout
    assert "Plotly.newPlot" in (tmp_path / "out.html").read_text()
    document = json.loads(run(*words, "--json").stdout)
    assert [point["limit_w"] for point in document["limits"]] == [150, 200, 250, 300, 350, 400]
    assert run("sweep", wide_file, "--power-limit", "200", "-b", "1:8").exit_code == 2


def test_bars_have_their_length():
    assert bar(0, 10) == ""
    assert bar(10, 10) == "█" * 16
    assert len(bar(5, 10)) == 8
    assert bar(1, 0) == ""


def test_bars_on_a_terminal_of_ascii():
    from dippm.base.printable import PLAIN

    assert bar(5, 10).encode("ascii", PLAIN) == b"########"
    assert {len(bar(n, 128).encode("ascii", PLAIN)) - len(bar(n, 128)) for n in range(129)} == {0}


@pytest.mark.browser
@NEEDS_CHROMIUM
@pytest.mark.parametrize("asked", ["--batch 1:64", "--batch 32 --power-limit 150:400:50"])
def test_a_browser_draws_the_page_without_errors(wide_file, tmp_path, asked):
    page = tmp_path / "out.html"
    answer = run("sweep", wide_file, "-i", "3,64,64", *asked.split(), "--html", page)
    assert answer.exit_code == 0, answer.output
    drawn, console = browse(page, tmp_path)
    assert re.search(r'<div id="sweep"[^>]*js-plotly-plot', drawn)
    assert all(f'class="subplot {name}"' in drawn for name in ("xy", "x2y2", "x3y3"))
    assert "CONSOLE" not in console, console
