"""Every row of docs/tracking/features.md names tests, and they are there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.unit.tracking.commands import ROOT

TEXT = (ROOT / "docs" / "tracking" / "features.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| feature |", "| original |", "| defect |"))
]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_tests_that_are_there(row):
    feature, what, tests = row
    assert feature
    assert what
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
    assert named
    assert len(named) == tests.count("`") / 2
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name.startswith("test_")
        assert name in functions_of(file), f"{file} has no {name}"


def test_every_defect_of_radt_is_there():
    found = [row[0].split()[0] for row in ROWS if re.match(r"T\d+ ", row[0])]
    assert found == [f"T{number}" for number in range(1, 12)]


def test_the_table_is_whole():
    assert len(ROWS) == 34 + 21 + 11
