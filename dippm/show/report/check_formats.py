"""A check of budgets as a table, and in the file formats of continuous integration.

JUnit XML has a test case per quantity, SARIF 2.1.0 a result per failure with the line of the
budget, and Markdown a table for a pull request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from dippm import __version__
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.budgets import Check, ModelCheck, QuantityCheck
from dippm.decide.budgets.checking import UNITS
from dippm.show.report.answers import AnswerPart, warning_lines
from dippm.show.report.bars import Bar, bars
from dippm.show.report.tables import Column, TerminalTable

RULES = {
    "latency_ms": "The latency of a batch exceeds its budget.",
    "memory_mb": "The memory exceeds its budget at 99 % confidence.",
    "energy_j": "The energy of a batch exceeds its budget.",
    "parameters": "The model has more parameters than its budget allows.",
    "macs": "The model has more multiply-accumulates than its budget allows.",
    "slice": "The model needs a larger MIG slice than its budget allows.",
    "prediction": "The model could not be predicted.",
}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
NOTHING = "–"
MOST_PERCENT = 200.0
"""Percentage of a budget at which a bar is cut; its text has the full value."""


def check_parts(check: Check) -> Iterator[AnswerPart]:
    """Yield the table of the check, remarks, and what would check the models that failed."""
    yield check_table(check)
    yield from warning_lines(check.remarks)
    for model in check.models:
        if not model.passed and model.prediction is not None:
            yield model.prediction


def check_bars(check: Check) -> str:
    """Return every quantity with a limit as a bar, relative to the limit."""
    made = []
    for model in check.models:
        for found in model.findings:
            held, limit = found.held, found.limit
            if isinstance(held, str) or isinstance(limit, str) or held is None or not limit:
                continue
            name, percent = f"{model.budget.name} {found.quantity}", 100 * held / limit
            said = f"{show(percent)} % of {show(limit)} {UNITS.get(found.quantity, '')}"
            made.append(Bar(name, min(percent, MOST_PERCENT), said.strip(), limit=100.0))
    return bars(f"of its budget, % (drawn to {MOST_PERCENT:.0f})", made, limit="the budget")


def check_table(check: Check) -> TerminalTable:
    """Return the quantities that have a limit or a baseline."""
    has_baseline = any(f.baseline is not None for model in check.models for f in model.findings)
    columns = (
        Column("model", folds=True),
        Column("quantity"),
        Column("predicted"),
        Column("held"),
        Column("limit"),
        *[Column("baseline", rank=1), Column("change")] * has_baseline,
        Column("verdict", folds=True),
    )
    rows = []
    for model, cells in _rows(check):
        change = [*cells[4:6]] if has_baseline else []
        rows.append([printable(model.budget.name), *cells[:4], *change, cells[6]])
    verdict = "every budget is kept" if check.passed else "a budget is exceeded"
    return TerminalTable(columns, rows, f" {printable(check.file)}", f" {verdict}")


def markdown(check: Check) -> str:
    """Return a table for a pull request, failures first."""
    total = len(check.models)
    failed = sum(not model.passed for model in check.models)
    head = f"{failed} of {total} models exceed their budgets" if failed else "Every budget is kept"
    lines = [f"### dippm check: {head}", ""]
    lines += ["| model | quantity | predicted | held | limit | baseline | change | verdict |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    rows = sorted(_rows(check), key=lambda row: row[1][6] == "ok")
    for model, cells in rows:
        passed, words = cells[6] == "ok", map(_in_cell, (model.budget.name, *cells))
        *rest, verdict = words
        mark = ":white_check_mark:" if passed else f":x: {verdict}"
        lines.append("| " + " | ".join([*rest, mark]) + " |")
    lines += [f"\n* {_in_cell(remark)}" for remark in check.remarks]
    return "\n".join(lines) + "\n"


def junit(check: Check) -> str:
    """Return the check as JUnit XML: a suite per model, a case per quantity with a limit."""
    root = ElementTree.Element("testsuites", name="dippm check")
    for model in check.models:
        name = _xml(model.budget.name)
        cases = [(f.quantity, f.reason) for f in model.findings if _is_shown(f)]
        if model.error is not None:
            cases = [("prediction", f"{model.error.message}. {model.error.hint}")]
        failures = sum(bool(reason) for _, reason in cases)
        counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **counts})
        for quantity, reason in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=quantity)
            if reason:
                failure = ElementTree.SubElement(case, "failure", message=_xml(reason))
                failure.text = _xml(f"{check.file}:{model.budget.line}: {reason}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def sarif(check: Check) -> dict[str, Any]:
    """Return the check as a SARIF 2.1.0 log."""
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()]
    order = list(RULES)
    results = []
    for model, quantity, reason in check.failures:
        rule = quantity or "prediction"
        place = {
            "artifactLocation": {"uri": _uri(check.file)},
            "region": {"startLine": model.budget.line},
        }
        results.append(
            {
                "ruleId": rule,
                "ruleIndex": order.index(rule),
                "level": "error",
                "message": {"text": f"{printable(model.budget.name)}: {printable(reason)}"},
                "locations": [{"physicalLocation": place}] if check.file else [],
            }
        )
    driver = {"name": "dippm", "version": __version__, "rules": rules}
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _uri(file: str) -> str:
    """Return a path as the URI of an artifact: relative to the working folder if it is in there."""
    path, here = Path(file), Path.cwd()
    if path.is_absolute() and not path.is_relative_to(here):
        return path.as_uri()
    return quote((path.relative_to(here) if path.is_absolute() else path).as_posix())


def _rows(check: Check) -> Iterator[tuple[ModelCheck, tuple[str, ...]]]:
    """Yield (quantity, predicted, compared, limit, baseline, change, verdict) per row."""
    for model in check.models:
        if model.error is not None:
            why = printable(f"{model.error.message}. {model.error.hint}".strip())
            yield model, ("prediction", *[NOTHING] * 5, why)
        for f in filter(_is_shown, model.findings):
            change = f.change_percent
            numbers = (f.value, f.held, f.limit, f.baseline)
            yield (
                model,
                (
                    f.quantity,
                    *(_figure(number, f.quantity) for number in numbers),
                    NOTHING if change is None else f"{change:+.1f} %",
                    printable(f.reason) or "ok",
                ),
            )


def _is_shown(finding: QuantityCheck) -> bool:
    return finding.limit is not None or finding.baseline is not None or not finding.passed


def _figure(value: float | str | None, quantity: str) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    unit = UNITS.get(quantity)
    return f"{show(value)} {unit}" if unit else f"{value:,.0f}"


def _in_cell(text: str) -> str:
    """Escape text so that it cannot end a cell, start markup or mention a user."""
    escaped = re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", printable(text))
    return escaped.replace("@", "@\u200b")


def _xml(text: str) -> str:
    """Remove characters that XML does not allow."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", printable(text))
