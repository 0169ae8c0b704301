"""The committed tables of how the shipped checkpoints fit the rows that trained them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dippm.estimate.pretrained import find
from training.hybrid.judge.fit_gate import (
    CELL,
    FEWEST_ROWS,
    MOST_LOG_ERROR,
    REASONS,
    TABLE,
    Cell,
    fingerprint,
    without_reason,
)
from training.steps import fit_gate as steps

MAKE = {
    None: "run python -m training.hybrid.judge.fit_gate",
    steps.CHECKPOINT: f"run python -m {steps.__name__}",
}
DOCUMENTS = {
    None: json.loads(TABLE.read_text(encoding="utf-8")),
    steps.CHECKPOINT: json.loads(steps.TABLE.read_text(encoding="utf-8")),
}
CELLS = {name: [Cell(**cell) for cell in document["cells"]] for name, document in DOCUMENTS.items()}
of_each = pytest.mark.parametrize("name", DOCUMENTS)


@of_each
def test_the_table_is_of_the_shipped_checkpoint(name: str | None) -> None:
    assert DOCUMENTS[name]["checkpoint"] == fingerprint(find(name).path), MAKE[name]


@of_each
def test_every_cell_is_within_the_bound_or_has_a_reason(name: str | None) -> None:
    found = [
        f"{' '.join(getattr(cell, k) for k in CELL)} {cell.log_error}"
        for cell in without_reason(DOCUMENTS[name])
    ]
    assert not found, "\n".join(found)


def test_every_reason_is_about_a_cell_that_needs_one() -> None:
    lines = tomllib.loads(REASONS.read_text(encoding="utf-8"))["cells"]
    beyond = [cell for cells in CELLS.values() for cell in cells if cell.is_beyond]
    for line in lines:
        assert set(line) <= {*CELL, "why"}
        assert line["why"].endswith(".")
        about = {k: line[k] for k in CELL if k in line}
        assert any(all(getattr(cell, k) == v for k, v in about.items()) for cell in beyond), about


def test_every_measured_gpu_is_in_the_table() -> None:
    measured = set(find().config["seen"]["devices"])
    assert measured <= {cell.gpu for cell in CELLS[None]}, MAKE[None]


def test_a_cell_beyond_the_bound_needs_a_line(tmp_path: Path) -> None:
    far, near, few = (
        {"gpu": "T4", "source": "s", "precision": "fp32", "mode": "eager", "work": "model", "n": n,
         "log_error": error}
        for n, error in ((FEWEST_ROWS, -0.3), (FEWEST_ROWS, MOST_LOG_ERROR), (FEWEST_ROWS - 1, 9.0))
    )  # fmt: skip
    reasons = tmp_path / "reasons.toml"
    reasons.write_text("cells = []\n")
    assert without_reason({"cells": [far, near, few]}, reasons) == [Cell(**far)]
    reasons.write_text('[[cells]]\ngpu = "T4"\nsource = "s"\nwhy = "It is made up."\n')
    assert without_reason({"cells": [far, near, few]}, reasons) == []
    reasons.write_text('[[cells]]\ngpu = "T4"\nmode = "compiled"\nwhy = "Another mode."\n')
    assert without_reason({"cells": [far]}, reasons) == [Cell(**far)]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_another_file_has_another_fingerprint(tmp_path: Path, name: str) -> None:
    for other in ("config.json", "model.safetensors"):
        (tmp_path / other).write_bytes(b"1")
    before = fingerprint(tmp_path)
    (tmp_path / name).write_bytes(b"2")
    assert fingerprint(tmp_path) != before
