from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dataset.collected.join import build
from dippm.cli.app import app
from dippm.errors import DippmError
from dippm.measure.collected.rows import Joined, collected, read_joined
from dippm.show.report.collected import predictions, summary
from dippm.show.report.collected.page import report_of, write_page
from tests import collected_rows
from tests.browser import NEEDS_CHROMIUM, browse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up set of an A100, so that a shipped checkpoint answers for it."""
    records = [
        row | {"device": "A100-40GB", "device_kind": "cuda"} for row in collected_rows.rows()
    ]
    return collected_rows.write(tmp_path_factory.mktemp("data") / "toy", records)


@pytest.fixture(scope="module")
def joined(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    graphs = tmp_path_factory.mktemp("graphs")
    collected_rows.write_graphs(graphs)
    out = tmp_path_factory.mktemp("joined")
    build(folder, graphs, out, workers=1)
    return out


@pytest.fixture(scope="module")
def page(folder: Path, joined: Path, checkpoint_folder: Path, tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("page") / "toy.html"
    write_page(path, report_of(folder, joined=joined, checkpoint=checkpoint_folder))
    return path


def test_every_row_is_counted_once(folder: Path) -> None:
    found = summary.summary(collected(folder), Joined())
    assert found["rows"] == len(collected_rows.rows())
    assert sum(found["counts"]["status"].values()) == found["rows"]
    assert found["rows_used"] + sum(found["left_out"].values()) == found["rows"]
    covered = sum(map(sum, found["coverage"]["rows"]))
    assert covered + found["coverage"]["rows_without_size"] == found["rows_used"]


def test_size_is_work_where_graphs_are_joined(folder: Path, joined: Path) -> None:
    found = summary.coverage(summary.used_rows(collected(folder).rows), read_joined(joined))
    assert found["size"] == "multiply-accumulates per step"
    assert found["rows_without_size"] == 1  # the operator has no graph


def test_what_is_absent_has_its_reason(tmp_path: Path) -> None:
    collected_rows.write(tmp_path, collected_rows.rows(energy=False))
    found = summary.summary(collected(tmp_path), Joined())
    assert found["distributions"]["energy_j"] == {"absent": "made up without it"}
    assert found["noise_floor_absent"]["energy_j"] == "no row has it"
    assert {"column": "energy_j", "reason": "made up without it", "rows": 76} in found["absent"]


def test_failures_keep_their_reasons(folder: Path) -> None:
    failures = summary.failures(collected(folder).rows)
    assert {line["status"]: line["reason"] for line in failures} == collected_rows.FAILED


def test_predictions_stand_beside_what_was_measured(
    folder: Path, joined: Path, checkpoint_folder: Path
) -> None:
    rows = summary.used_rows(collected(folder).rows)
    compared = predictions.compare(rows, read_joined(joined), checkpoint=checkpoint_folder)
    models = rows[rows["kind"] == "model"]
    latencies = [point for point in compared.points if point.target == "latency_ms"]
    assert sorted(p.measured for p in latencies) == sorted(models["latency_ms"])
    assert all(p.low < p.predicted < p.high for p in latencies)
    line = next(e for e in compared.errors() if (e["target"], e["family"]) == ("latency_ms", "all"))
    assert line["n"] == len(models)
    assert line["mape"] == pytest.approx(sum(p.ape for p in latencies) / len(latencies))
    assert compared.absent == {"energy_j: no power was measured": len(models)}


def test_fewer_rows_are_predicted_if_asked_and_that_is_said(
    folder: Path, joined: Path, checkpoint_folder: Path
) -> None:
    rows = summary.used_rows(collected(folder).rows)
    compared = predictions.compare(
        rows, read_joined(joined), checkpoint=checkpoint_folder, most_rows=30
    )
    assert len({(p.model, p.batch) for p in compared.points}) <= 30
    assert compared.remarks == ("One row in 3 was predicted.",)


def test_a_checkpoint_that_knows_the_rows_is_marked(folder: Path) -> None:
    rows = collected(folder).rows
    (remark,) = predictions._remarks({"trained_on": {"campaigns": ["c1"]}}, rows, 1)
    assert "errors of a fit" in remark


def test_a_cpu_is_not_predicted_by_a_checkpoint_for_gpus(joined: Path, tmp_path: Path) -> None:
    records = [row | {"device": "AMD EPYC"} for row in collected_rows.rows()]
    rows = summary.used_rows(collected(collected_rows.write(tmp_path, records)).rows)
    compared = predictions.compare(rows, read_joined(joined), checkpoint="hybrid-gpu")
    assert compared.points == ()
    (reason,) = compared.absent
    assert "is a CPU" in reason


def test_nothing_is_joined_unless_a_folder_is_named(folder: Path) -> None:
    assert read_joined(None) == Joined()
    with pytest.raises(DippmError, match="nothing joined"):
        read_joined(folder)


def test_the_page_needs_nothing_else_and_trusts_no_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    head, body = text.split("</head>")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text)
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in body
    assert head.count("<script>") == 1
    for word in ("Noise floor", "predicted latency_ms".split()[0], "made up", "c1"):
        assert word in body


def test_the_command_prints_one_document_and_writes_the_page(
    folder: Path, joined: Path, checkpoint_folder: Path, tmp_path: Path
) -> None:
    options = ["--joined", str(joined), "--checkpoint", str(checkpoint_folder)]
    written = tmp_path / "out.html"
    done = CliRunner().invoke(
        app, ["report", str(folder), *options, "--html", str(written), "--json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["rows"] == len(collected_rows.rows())
    assert document["predictions"]["errors"]
    assert written.stat().st_size > 1_000_000
    text = CliRunner().invoke(app, ["report", str(folder), *options])
    assert text.exit_code == 0
    assert "latency_ms" in text.stdout


def test_a_folder_without_rows_is_an_error_of_ours(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--json"])
    assert done.exit_code == 1
    assert "no measured rows" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("kept", ["operator", "oom"])
def test_a_set_without_a_usable_model_has_a_page(tmp_path: Path, kept: str) -> None:
    rows = [row for row in collected_rows.rows() if kept in (row["kind"], row["status"])]
    report = report_of(collected_rows.write(tmp_path / "toy", rows, in_journal=0))
    assert "Noise floor" in report.to_html()
    assert report.compared.points == ()


@pytest.mark.parametrize(("missing", "asked"), [("pyarrow", "--json"), ("plotly", "--html=x.html")])
def test_a_missing_library_is_named_with_its_extra(
    folder: Path, tmp_path: Path, missing: str, asked: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u, sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "real = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {missing!r} else real(name, *a)\n"
    )
    root = Path(__file__).resolve().parents[3]
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    command = [sys.executable, "-m", "dippm", "report", str(folder), "--no-predict", asked]
    done = subprocess.run(command, capture_output=True, text=True, env=path, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert missing in done.stdout + done.stderr
    assert "dippm[report]" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_browser_draws_every_plot_without_errors(page: Path, tmp_path: Path) -> None:
    dom, talk = browse(page, tmp_path)
    plots = ("counts", "coverage", "latency_ms", "energy_j", "memory_mb", "power_w",
             "predicted-latency_ms", "predicted-memory_mb")  # fmt: skip
    for name in plots:
        assert re.search(rf'<div id="{name}"[^>]*js-plotly-plot', dom), name
    assert dom.count('class="main-svg"') >= len(plots)
    assert 'data-title="Share' not in dom  # plotly's button to its makers' server
    assert "CONSOLE" not in talk, talk


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_the_page_may_not_ask_the_network(page: Path, tmp_path: Path) -> None:
    """The page forbids itself every request; here one is added and must be stopped, loudly."""
    image = '<img src="http://example.invalid/x.png"></body>'
    asking = tmp_path / "asking.html"
    asking.write_text(page.read_text(encoding="utf-8").replace("</body>", image), encoding="utf-8")
    _, talk = browse(asking, tmp_path)
    assert "Content Security Policy" in talk
    assert "example.invalid" in talk
