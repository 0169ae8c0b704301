"""Comparisons of two lists of kernels over models: tables for a terminal, and the result files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from training.studies.kernel_lines import Pair, distance, gaps, is_off, sum_all, summed

Found = Mapping[str, Pair]
"""Both lists by model."""
SHOWN = 0.005
"""Least difference that is named, as a share of a model's bytes."""
WORST = 40


def class_rows(kinds: Sequence[str], pairs: Sequence[Pair]) -> list[list[str]]:
    """Return kernels and bytes by class, summed over models; the last row has all classes."""
    rows = []
    for kind in kinds:
        if not any(kind in side for pair in pairs for side in pair):
            continue
        ours, theirs = (summed(pair[i].get(kind, (0.0, 0.0)) for pair in pairs) for i in (0, 1))
        rows.append([kind, *_cells(ours, theirs), str(sum(is_off(kind, pair) for pair in pairs))])
    ours, theirs = (summed(sum_all(pair[i]) for pair in pairs) for i in (0, 1))
    return [*rows, ["all", *_cells(ours, theirs), ""]]


def _cells(ours: tuple[float, float], theirs: tuple[float, float]) -> list[str]:
    ratios = [f"{a / b:.2f}" if b else "–" for a, b in zip(ours, theirs, strict=True)]
    moved = [f"{value / 1e6:.1f}" for value in (ours[1], theirs[1])]
    return [f"{ours[0]:.0f}", f"{theirs[0]:.0f}", ratios[0], *moved, ratios[1]]


def model_rows(found: Found) -> list[list[str]]:
    """Return the totals of each model, the worst last."""
    rows = []
    for spec in sorted(found, key=lambda spec: distance(found[spec])):
        pair = found[spec]
        worst = [f"{k} {gap:+.0%}" for k, gap in list(gaps(pair).items())[:3] if abs(gap) > SHOWN]
        rows.append([spec, *_cells(sum_all(pair[0]), sum_all(pair[1])), ", ".join(worst)])
    return rows


def headings(first: str, last: str, theirs: str) -> list[str]:
    """Return the column names of both kinds of rows."""
    return [first, "ours", theirs, "ratio", "MB ours", f"MB {theirs}", "ratio", last]


def terminal_table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return rows as a table."""
    table = Table(*names, title=title)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


def shares(found: Found) -> str:
    """Return a sentence on how many models agree within which bounds."""
    ratios = sorted(sum_all(a)[1] / sum_all(b)[1] for a, b in found.values())
    near = {limit: sum(abs(r - 1) <= limit for r in ratios) for limit in (0.05, 0.1, 0.2)}
    counts = ", ".join(f"{n} within {limit:.0%}" for limit, n in near.items())
    launches = [sum_all(a)[0] / sum_all(b)[0] for a, b in found.values()]
    as_many = sum(abs(r - 1) <= 0.1 for r in launches)
    return (
        f"{len(found)} models. Bytes ours / theirs: median {ratios[len(ratios) // 2]:.3f}, "
        f"{counts}. Kernels: {as_many} within 10%."
    )


def write_results(
    stem: Path, title: str, notes: Sequence[str], theirs: str, kinds: Sequence[str], found: Found
) -> None:
    """Write `stem`.md, and `stem`.json with both sums of each model.

    Args:
        stem: path without its ending.
        title: title of the page.
        notes: paragraphs below the title, the command among them.
        theirs: name of the list for comparison.
        kinds: classes in the order of the table.
        found: both lists by model.
    """
    rows = model_rows(found)
    worst = rows[: -WORST - 1 : -1]
    text = [
        f"# {title}",
        *notes,
        shares(found),
        "Off: models in which a class has over 2% of the bytes and differs by over 20%.",
        markdown(headings("class", "off", theirs), class_rows(kinds, list(found.values()))),
        f"The {len(worst)} models that differ most; all are in {stem.name}.json.",
        markdown(headings("model", "what differs most", theirs), worst),
    ]
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    models = {spec: _record(pair) for spec, pair in sorted(found.items())}
    lines = [f"  {json.dumps(spec)}: {json.dumps(record)}" for spec, record in models.items()]
    joined = "{\n" + ",\n".join(lines) + "\n}\n"
    stem.with_suffix(".json").write_text(joined, encoding="utf-8")


def _record(pair: Pair) -> dict[str, object]:
    ours, theirs = (sum_all(side) for side in pair)
    named = {kind: round(gap, 3) for kind, gap in gaps(pair).items() if abs(gap) > SHOWN}
    return {
        "kernels": [ours[0], theirs[0]],
        "mb": [round(ours[1] / 1e6, 2), round(theirs[1] / 1e6, 2)],
        "ratio": round(ours[1] / theirs[1], 4),
        "more": named,
    }


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of names over rows."""
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
