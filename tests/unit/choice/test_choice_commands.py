"""`dippm choose` and `dippm mig` in every form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from tests.browser import NEEDS_CHROMIUM, browse

PRICES = Path(__file__).resolve().parents[3] / "examples" / "prices.toml"
ASKED = ("-i", "3,128,128", "-b", "32", "--devices", "A100,T4,H100")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_ranking_in_a_terminal(wide_file):
    answer = run("choose", wide_file, *ASKED, "--top", 4)
    assert answer.exit_code == 0, answer.output
    assert "wide.pt · batch 32 · fp32 · eager · by latency" in answer.stdout
    lines = answer.stdout.splitlines()
    first = next(line for line in lines if line.strip().startswith("1 "))
    assert "H100-SXM-80GB" in first
    assert "%" in first
    assert "best          H100-SXM-80GB: the first with a probability of" in answer.stdout
    assert "most frugal" in answer.stdout
    assert "and 11 more" in answer.stdout


def test_the_document_is_the_choice(wide_file):
    answer = run("choose", wide_file, *ASKED, "--json", "--by", "cost", "--prices", PRICES)
    document = json.loads(answer.stdout)
    choice = dippm.choose(
        wide_file, input="3,128,128", batch=32, devices=["A100", "T4", "H100"], by="cost",
        prices=PRICES,
    )  # fmt: skip
    assert document.pop("schema") == "dippm.choose/1"
    assert document == json.loads(json.dumps(choice.to_dict()))
    assert document["currency"] == "EUR"
    assert document["rows"][0]["cost_per_million_low"] < document["rows"][0]["cost_per_million"]


def test_nothing_feasible_loses_nothing(wide_file, tmp_path):
    words = ("choose", wide_file, *ASKED, "--slo-ms", "0.01")
    page = tmp_path / "out.html"
    answer = run(*words, "--html", page)
    assert answer.exit_code == 1
    assert "H100-SXM-80GB" in answer.stdout
    assert "takes up to" in answer.stdout
    assert "nothing meets slo_ms=0.01" in answer.stderr
    assert "--slo-ms " in answer.stderr
    assert "Plotly.newPlot" in page.read_text()
    failed = run(*words, "--json")
    assert failed.exit_code == 1
    document = json.loads(failed.stdout)
    assert document["error"]["type"] == "NothingFeasibleError"
    assert document["best"] is None
    assert len(document["rows"]) == 15
    assert all(row["reason"] for row in document["rows"])


def test_an_unknown_device_of_prices(wide_file, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text("[per_hour]\n'A100-81GB' = 1\n")
    answer = run("choose", wide_file, *ASKED, "--prices", prices)
    assert answer.exit_code == 1
    assert "prices.toml: unknown device 'A100-81GB'" in answer.stderr
    assert "A100-80GB" in answer.stderr
    document = json.loads(run("choose", wide_file, "--prices", prices, "--json").stdout)
    assert document["error"]["type"] == "PriceError"


def test_a_wrong_limit_is_told_in_words_of_the_command_line(wide_file):
    answer = run("choose", wide_file, "--slo-ms", "-1")
    assert answer.exit_code == 1
    assert "--slo-ms 20" in answer.stderr


def test_the_cost_of_a_step_and_an_epoch(wide_file):
    words = ("--prices", PRICES, "--dataset-size", 50_000, "--by", "cost")
    answer = run("choose", wide_file, *ASKED, *words)
    assert answer.exit_code == 0, answer.output
    assert "cost per million (EUR)" in answer.stdout
    assert re.search(
        r"a million batches on .* cost [\d.,]+ EUR, the data set [\d.,]+ EUR", answer.stdout
    )
    assert "latency and cost, none better in both:" in answer.stdout


def test_the_smallest_slice(wide_file, tmp_path):
    words = ("mig", wide_file, "-i", "3,128,128", "-b", "32", "--device", "A100-80GB")
    free = json.loads(run(*words, "--json").stdout)
    assert free["best"] == "A100-80GB 1g.10gb"
    highs = {row["slice"]: row["latency_ms_high"] for row in free["rows"]}
    slo_ms = f"{1.01 * highs['3g.40gb']:.4f}"
    answer = run(*words, "--slo-ms", slo_ms, "--html", tmp_path / "out.html")
    assert answer.exit_code == 0, answer.output
    assert "take 3g.40gb of A100-80GB, 2 fit side by side" in answer.stdout
    assert "1 compute slice then idles" in answer.stderr
    verdicts = {
        line.split()[0]: line
        for line in answer.stdout.splitlines()
        if re.match(r" (\dg\.|whole)", line)
    }
    assert set(verdicts) == {
        "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "whole"
    }  # fmt: skip
    assert "takes up to" in verdicts["1g.10gb"]
    assert "smallest that will do" in verdicts["3g.40gb"]
    assert "will do" in verdicts["7g.80gb"]
    assert (tmp_path / "out.html").exists()


def test_no_slice_and_not_even_the_gpu(wide_file):
    answer = run("mig", wide_file, "-i", "3,128,128", "-b", "32", "--slo-ms", "0.01")
    assert answer.exit_code == 1
    assert "1g.5gb" in answer.stdout
    assert "nothing meets slo_ms=0.01" in answer.stderr
    assert run("mig", wide_file, "--device", "T4").exit_code == 1


def test_the_plot_has_the_front_and_every_place(wide_file):
    from dippm.show.report.choice import front_figure

    choice = dippm.choose(
        wide_file, devices=["A100", "T4", "H100"], batch=32, input="3,128,128", slo_ms=60,
        prices=PRICES,
    )  # fmt: skip
    figure = front_figure(choice)
    traces = {trace.name: trace for trace in figure.data}
    assert {"front", "no choice"} <= set(traces) <= {"front", "beaten in both", "no choice"}
    named = ", ".join(filter(None, traces["front"].text)).split(", ")
    assert sorted(named) == sorted(c.name for c in choice.front)
    assert list(traces["front"].x) == sorted(traces["front"].x)
    assert list(traces["front"].y) == sorted(traces["front"].y, reverse=True)
    assert sum(len(trace.x) for trace in figure.data) == len(choice.contenders)
    assert figure.layout.yaxis.title.text == "cost per million (EUR)"
    first = choice.front[0].prediction
    assert traces["front"].error_x.array[0] == pytest.approx(
        first.intervals["latency_ms"].high - first.latency_ms
    )


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_browser_draws_the_page_without_errors(wide_file, tmp_path):
    page = tmp_path / "out.html"
    answer = run("choose", wide_file, *ASKED, "--slo-ms", "60", "--html", page)
    assert answer.exit_code == 0, answer.output
    assert 'src="http' not in page.read_text()
    drawn, console = browse(page, tmp_path)
    assert re.search(r'<div id="choice"[^>]*js-plotly-plot', drawn)
    assert 'class="subplot xy"' in drawn
    assert "CONSOLE" not in console, console
