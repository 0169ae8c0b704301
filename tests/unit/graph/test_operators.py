"""The operator table is complete: whoever forgets a column, a row or a class is told which."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import dippm.model.graph
from dippm.estimate.features.encode import CLASS_OF_OPERATOR, OPERATOR_CLASSES
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.model.graph.dialects.readers import READERS
from dippm.model.graph.operators import NAMES, OPERATORS, Operator, fold_name, operator
from tests.unit.graph.sketch import BATCH, Sketch, ops

_ONLY_WHILE_READING = {"identity", "matmul"}
"""Operators that a rule replaces always, so that no graph holds them."""


def missing(row: Operator) -> list[str]:
    """Return what a row lacks, in words that name the column."""
    kernels = {*KERNEL_CLASSES, "convolution", "none"}
    checks = {
        f"feature: {row.feature!r} is none of OPERATOR_CLASSES": row.feature
        not in OPERATOR_CLASSES[1:],
        f"kernel: {row.kernel!r} is none of KERNEL_CLASSES": row.kernel not in kernels,
        "macs: a compute operator needs its formula": row.category in ("compute", "recurrent")
        and row.macs is None,
        "macs: a view computes nothing": row.category == "view" and row.macs is not None,
        f"autocast: {row.autocast!r}": row.autocast not in ("lower", "float32", "promote"),
        f"spellings: {row.spellings} are not folded": any(s != fold_name(s) for s in row.spellings),
    }
    return [f"{row.name}: {text}" for text, fails in checks.items() if fails]


def test_every_row_is_complete() -> None:
    assert [text for row in OPERATORS.values() for text in missing(row)] == []
    assert all(name == row.name for name, row in OPERATORS.items())
    assert set(CLASS_OF_OPERATOR) == set(OPERATORS)


@pytest.mark.parametrize(
    ("forgotten", "column"),
    [
        ({"feature": ""}, "feature"),
        ({"kernel": "gem"}, "kernel"),
        ({"macs": None}, "macs"),
        ({"autocast": ""}, "autocast"),
        ({"spellings": ("Linear",)}, "spellings"),
    ],
)
def test_the_message_names_the_forgotten_column(forgotten: dict[str, object], column: str) -> None:
    (text,) = missing(replace(operator("dense"), **forgotten))
    assert text.startswith(f"dense: {column}: ")


def test_no_spelling_has_two_meanings() -> None:
    rows = OPERATORS.values()
    counts = Counter(s for row in rows for s in {fold_name(row.name), *row.spellings})
    assert [spelling for spelling, count in counts.items() if count > 1] == []
    assert set(NAMES.values()) == set(OPERATORS)


def test_readers_stand_for_names_that_exist() -> None:
    canonical = {key for key in READERS if "_" in key}
    assert canonical - set(OPERATORS) == set(), "a reader is registered for no row of the table"


def test_readers_and_rules_write_only_operators_of_the_table() -> None:
    root = Path(dippm.model.graph.__file__).parent
    unknown = {
        f"{path.relative_to(root)}: {op!r} has no row in the operator table"
        for path in root.rglob("*.py")
        for op in _written(ast.parse(path.read_text()))
        if op not in OPERATORS and op not in _ONLY_WHILE_READING
    }
    assert sorted(unknown) == []


def _written(tree: ast.AST) -> Iterator[str]:
    """Yield the names given to `emit`, `make`, `step` and `first`, and assigned to `.op`."""
    for node in ast.walk(tree):
        given: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            given = node.args[0] if node.func.attr in ("emit", "make", "step", "first") else None
        elif isinstance(node, ast.Assign):
            pairs = [(t, node.value) for t in node.targets]
            for target, value in list(pairs):
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs.extend(zip(target.elts, value.elts, strict=True))
            given = next(
                (v for t, v in pairs if isinstance(t, ast.Attribute) and t.attr == "op"), None
            )
        choices = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
        for choice in choices:
            if isinstance(choice, ast.Constant) and isinstance(choice.value, str):
                yield choice.value


def test_a_guessed_cost_is_said() -> None:
    s = Sketch()
    graph = s.graph(s.call("torch.linalg_inv", [s.input(BATCH, 8, 8)], BATCH, 8, 8))
    assert ops(graph) == ["factorise"]
    assert "priced at a guess" in graph.notes[0]


def test_the_points_of_a_grid_are_computed() -> None:
    s = Sketch()
    given = s.input(BATCH, 2, 3)
    graph = s.graph(s.call("torch.affine_grid_generator", [given], BATCH, 4, 4, 2))
    assert ops(graph) == ["affine_grid"]
    assert graph.at_batch(1).flops == 4 * 4 * 2 * 6


@pytest.mark.parametrize("name", ["onnx.BitShift", "left_shift", "torch.__rshift__"])
def test_shifts_are_one_operator(name: str) -> None:
    s = Sketch()
    x = s.input(BATCH, 8, dtype="int32")
    assert ops(s.graph(s.call(name, [x, x], BATCH, 8, dtype="int32"))) == ["bit_shift"]
