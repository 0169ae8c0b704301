"""The page of held-out errors, on made-up rows: nothing here was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer import Typer
from typer.testing import CliRunner

from dippm.errors import DippmError
from tests.browser import NEEDS_CHROMIUM, browse
from training.evaluation import report
from training.evaluation.error_lines import (
    disagreements,
    error_line,
    questions,
    tables,
    worst_models,
)
from training.evaluation.held_out import (
    BASELINE,
    COLUMNS,
    LEVELS,
    half_width,
    read_held_out,
    write_held_out,
)

ASKED = "a kind of model never seen"
BOUNDS = ("compute", "memory", "host")


def made_up_rows() -> pd.DataFrame:
    """Two tables of models and one of operators in two splits; intervals promise what they hold."""
    random = np.random.default_rng(0)
    rows = []
    for split in ("S1", "S2-10"):
        for kind, table, gpu in (
            ("model", "toy A100-40GB eager, amp", "A100-40GB"),
            ("model", "toy RTX-3090 eager, amp", "RTX-3090"),
            ("operator", "toy RTX-3090 eager, fp32", "RTX-3090"),
        ):
            for i in range(40):
                measured = float(np.exp(random.normal()))
                rows.append(
                    {
                        "split": split, "fold": str(i % 3), "row_id": f"{table} {i}",
                        "kind": kind, "source": "toy", "table": table,
                        "question": ASKED if split == "S2-10" and kind == "model" else None,
                        "gpu": gpu, "mig": None, "precision": "amp", "mode": "eager",
                        "layout": "nchw", "timer": "wall", "family": f"family <{i % 4}>",
                        "architecture": f"toy {i // 2}", "model": f"toy </script> {i // 2}",
                        "batch": 2 ** (i % 5), "gflop": 10.0 * measured, "launches": 50.0,
                        "measured_ms": measured,
                        "predicted_ms": measured * float(np.exp(0.1 * random.normal())),
                        "bound": BOUNDS[i % 3], "host_share": 0.2,
                        "costliest": "80 % gemm 64×64×64 · 3 % cast of 12 elements",
                        f"{BASELINE}nearest neighbour": 2 * measured,
                        f"{BASELINE}bare roofline sum": np.nan if kind == "operator" else measured,
                    }
                )  # fmt: skip
    table = pd.DataFrame(rows)
    normal = {0.5: 0.67, 0.6: 0.84, 0.7: 1.04, 0.8: 1.28, 0.9: 1.64, 0.95: 1.96, 0.99: 2.58}
    return table.assign(**{half_width(level): 0.1 * normal[level] for level in LEVELS})


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return made_up_rows()


@pytest.fixture(scope="module")
def page(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write_page(tmp_path_factory.mktemp("page") / "held_out.html", rows)


def checkpoint(folder: Path, lines: list[dict[str, object]]) -> Path:
    path = folder / "hybrid-toy" / "0.1.0"
    path.mkdir(parents=True)
    (path / "metrics.json").write_text(json.dumps({"summary": lines}))
    return path


def stated(rows: pd.DataFrame) -> list[dict[str, object]]:
    """What a checkpoint says of the same rows."""
    return [
        {**line, "split": "S2 families held out", "target": "latency_ms"}
        for line in questions(rows)
    ]


def test_rows_are_read_as_they_were_written(rows: pd.DataFrame, tmp_path: Path) -> None:
    write_held_out(tmp_path, rows)
    pd.testing.assert_frame_equal(read_held_out(tmp_path), rows)


def test_a_file_of_another_version_is_refused(rows: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(DippmError, match="no held-out predictions"):
        read_held_out(tmp_path)
    with pytest.raises(ValueError, match="bound"):
        write_held_out(tmp_path, rows.drop(columns="bound"))
    rows.drop(columns="bound").to_parquet(tmp_path / "held_out.parquet")
    with pytest.raises(DippmError, match="bound"):
        read_held_out(tmp_path)


def test_a_line_has_errors_intervals_and_baselines(rows: pd.DataFrame) -> None:
    models = rows[rows["kind"] == "model"]
    line = error_line(models)
    assert 5 < line["mape"] < 12
    low, high = map(float, line["mape_ci95"].split(" to "))
    assert low < line["mape"] < high
    assert 80 < line["covered"] < 98
    assert line["half_width"] == pytest.approx(100 * np.expm1(0.164), rel=1e-3)
    assert line["baselines"] == {"nearest neighbour": pytest.approx(100), "bare roofline sum": 0}
    assert line["best_baseline"] == "bare roofline sum"
    assert error_line(rows)["baselines"]["bare roofline sum"] is None


def test_questions_and_tables_have_their_rows(rows: pd.DataFrame) -> None:
    asked = questions(rows)
    assert [(line["gpu"], line["split"], line["n"]) for line in asked] == [
        ("A100-40GB", "S2-10", 40),
        ("RTX-3090", "S2-10", 40),
    ]
    lines = tables(rows[rows["split"] == "S1"])
    assert [line["kind"] for line in lines] == ["model", "model", "operator"]


def test_the_worst_come_once_for_each_architecture(rows: pd.DataFrame) -> None:
    worst = worst_models(rows[rows["kind"] == "model"], 5)
    assert len({row["architecture"] for row in worst}) == len(worst) == 5
    sizes = [row["size"] for row in worst]
    assert sizes == sorted(sizes, reverse=True)
    assert all(row["of"] == 8 for row in worst)
    for row in worst:
        assert row["inside"] == (row["low"] <= row["measured_ms"] <= row["high"])


def test_a_checkpoint_of_other_rows_is_refused(rows: pd.DataFrame, tmp_path: Path) -> None:
    lines = stated(rows)
    assert disagreements(questions(rows), lines) == []
    found = report.page(rows, checkpoint=checkpoint(tmp_path / "same", lines))
    assert "hybrid-toy 0.1.0" in found
    assert ", nan" not in found
    other = [{**lines[0], "mape": 1.0}, *lines[1:]]
    with pytest.raises(DippmError, match="do not judge"):
        report.page(rows, checkpoint=checkpoint(tmp_path / "other", other))
    assert len(disagreements(questions(rows), [])) == 2


def test_every_figure_names_its_split(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r'<script type="application/json" id="(S[^"]*)">(.*?)</script>', text)
    assert len(blocks) == 2 * 4
    for name, block in blocks:
        figures = json.loads(block)
        assert len(figures) == len(report.PLOTS)
        split = "S1 architectures" if name.startswith("S1") else "S2 families"
        assert all(split in figure["layout"]["title"]["text"] for figure in figures)


def test_the_command_writes_the_page(rows: pd.DataFrame, tmp_path: Path) -> None:
    app = Typer()
    app.command()(report.main)
    refused = CliRunner().invoke(app, [str(tmp_path)])
    assert refused.exit_code == 1
    assert "training.hybrid.train" in refused.output
    write_held_out(tmp_path, rows[rows["split"] == "S1"])
    done = CliRunner().invoke(app, [str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert "S1 architectures held out" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.browser
@NEEDS_CHROMIUM
@pytest.mark.parametrize(("at", "shown"), [("", "S2-10-0"), ("S1-3", "S1-3")])
def test_a_browser_draws_what_is_asked_for(page: Path, tmp_path: Path, at: str, shown: str) -> None:
    dom, talk = browse(page, tmp_path, at=at)
    assert "CONSOLE" not in talk, talk
    body = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    assert len(re.findall(r"<div[^>]*js-plotly-plot", body)) == 1 + len(report.PLOTS)
    assert 'data-title="Share' not in body  # plotly's button to its makers' server
    sections = re.findall(r'<section id="([^"]*)"( hidden)?', body)
    assert [name for name, hidden in sections if not hidden] == [shown.rpartition("-")[0]]
    (section,) = re.findall(rf'<section id="{shown.rpartition("-")[0]}">.*?</section>', body, re.S)
    panels = re.findall(r'<div class="panel" id="([^"]*)"( hidden)?', section)
    assert [name for name, hidden in panels if not hidden] == [shown]


def test_columns_are_what_is_made_up(rows: pd.DataFrame) -> None:
    assert set(COLUMNS) <= set(rows.columns)
