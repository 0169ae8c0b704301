"""The numbers of the datasheet, generated into marked blocks of dataset/README.md.

python -m dataset.datasheet --write        # or --check
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.cards.generated import write_or_check
from dataset.collected.rows import DATA, folders
from dataset.published.registry import all_published
from dippm.estimate.pretrained.model_card import table
from dippm.measure import columns
from dippm.measure.collected.rows import Collected, Joined, collected
from dippm.show.report.collected.summary import summary, used_rows

DATASET = DATA.parent
README = DATASET / "README.md"
BLOCK = re.compile(
    r"(<!-- (?P<name>(?:collected|published)-[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL
)
GROUPS = {
    "Identity": columns.IDENTITY,
    "What was asked for": columns.CONFIGURATION,
    "What came of it": columns.OUTCOME,
    "Time": columns.LATENCY,
    "Energy": columns.ENERGY,
    "Memory": columns.MEMORY,
    "State of the device": columns.STATE,
    "Provenance": columns.PROVENANCE,
}
MIB = 1 << 20
NOTHING = "No set is committed.\n"


def column_tables() -> str:
    """Return every column with type and meaning, by group."""
    return "\n".join(f"**{title}**\n\n{_meanings(group)}" for title, group in GROUPS.items())


def published_sources() -> str:
    """Return the owners of the measured tables, and whether a bundle is needed for each."""
    rows = [
        {
            "folder": f"`{source.name}`",
            "use": source.use,
            "from": f"[{source.repository}](https://github.com/{source.repository})",
            "licence": source.licence,
            "attribution": source.copyright,
            "fetched": f"bundle: {source.absent}"
            if source.absent
            else f"{len(source.files)} files, {source.size / MIB:.1f} MiB",
        }
        for source in all_published().values()
    ]
    return f"{table(rows)}\n"


def kernel_columns() -> str:
    """Return the columns of kernel tables with type and meaning."""
    return _meanings(columns.KERNEL)


def _meanings(group: Iterable[columns.Column]) -> str:
    rows = [{"column": f"`{c.name}`", "type": c.kind, "meaning": c.about} for c in group]
    return f"{table(rows)}\n"


def sets(data: Path = DATA) -> str:
    """Return one line per committed set."""
    rows = []
    for found, figures in _summaries(data):
        status = figures["counts"]["status"]
        rows.append(
            {
                "folder": f"`data/{found.folder.name}`",
                "device": ", ".join(figures["counts"]["device"]),
                "rows": f"{figures['rows']:,}",
                "usable": f"{figures['rows_used']:,}",
                "by status": ", ".join(f"{name} {n:,}" for name, n in status.items()),
                "families": figures["families"],
                "architectures": f"{figures['architectures']:,}",
                "phases": ", ".join(figures["counts"]["phase"]),
                "precisions": ", ".join(figures["counts"]["precision"]),
                "modes": ", ".join(figures["counts"]["mode"]),
                "measured": _days(figures),
            }
        )
    return table(rows) + "\n" if rows else NOTHING


def families(data: Path = DATA) -> str:
    """Return counts of rows and architectures of each family, by set."""
    parts = []
    for found, _ in _summaries(data):
        rows, used = found.rows, used_rows(found.rows)
        lines = [
            {
                "family": family,
                "kind": part["kind"].iloc[0],
                "rows": len(part),
                "usable": int((used["family"] == family).sum()),
                "architectures": int(part["architecture"].nunique()),
                "median latency ms": _median(used[used["family"] == family], "latency_ms"),
                "median memory MB": _median(used[used["family"] == family], "memory_mb"),
            }
            for family, part in rows.groupby("family")
        ]
        parts.append(f"`data/{found.folder.name}`\n\n{table(lines)}\n")
    return "\n".join(parts) or NOTHING


def failures(data: Path = DATA) -> str:
    """Return counts of failed and excluded rows with their reasons, by set."""
    parts = []
    for found, figures in _summaries(data):
        lines = [
            {"outcome": line["status"], "reason": line["reason"], "rows": line["rows"]}
            for line in figures["failures"]
        ]
        lines += [
            {"outcome": "measured, no label", "reason": reason, "rows": n}
            for reason, n in figures["left_out"].items()
            if reason not in figures["counts"]["status"]
        ]
        text = table(lines) if lines else "No row failed, none was disturbed."
        parts.append(f"`data/{found.folder.name}`\n\n{text}\n")
    return "\n".join(parts) or NOTHING


def noise(data: Path = DATA) -> str:
    """Return the noise floor of each target, by set."""
    parts = []
    for found, figures in _summaries(data):
        lines = [
            {
                "target": floor["target"],
                "configurations": floor["configurations"],
                "rows": floor["rows"],
                "median %": f"{floor['median_percent']:.2f}",
                "95th percentile %": f"{floor['p95_percent']:.2f}",
                "days": floor["days"],
                "campaigns": floor["campaigns"],
            }
            for floor in figures["noise_floor"]
            if floor["family"] == "all"
        ]
        missing = [f"{t}: absent, {why}." for t, why in figures["noise_floor_absent"].items()]
        text = "\n\n".join([*([table(lines)] if lines else []), *missing])
        parts.append(f"`data/{found.folder.name}`\n\n{text}\n")
    return "\n".join(parts) or NOTHING


BLOCKS = {
    "collected-columns": lambda data: column_tables(),
    "collected-kernels": lambda data: kernel_columns(),
    "collected-sets": sets,
    "collected-families": families,
    "collected-failures": failures,
    "collected-noise": noise,
    "published-sources": lambda data: published_sources(),
}


def rewrite_blocks(text: str, data: Path = DATA) -> str:
    """Return the datasheet with every marked block regenerated."""
    return BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found['name']](data)}{found[4]}", text)


def _summaries(data: Path) -> Iterator[tuple[Collected, dict[str, Any]]]:
    for folder in folders(data):
        found = collected(folder)
        yield found, summary(found, Joined())


def _days(figures: dict[str, Any]) -> str:
    first, last = figures["measured_from"][:10], figures["measured_to"][:10]
    return first if first == last else f"{first} to {last}, {figures['days']} days"


def _median(rows: pd.DataFrame, column: str) -> float | None:
    known = rows[column].dropna()
    return float(known.median()) if len(known) else None


def main() -> None:
    """Write the blocks of the datasheet, or check that they are up to date."""
    write_or_check(
        README,
        lambda: rewrite_blocks(README.read_text(encoding="utf-8")),
        command="python -m dataset.datasheet",
        about=main.__doc__,
    )
