"""The card of a checkpoint, written from its configuration and its metrics, never by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SECTIONS = (
    ("use", "Use"),
    ("limits", "Limits"),
    ("devices", "Devices"),
    ("never_measured", "Never measured"),
    ("data", "Training data"),
    ("changes", "Changes"),
)
PROVENANCE = ("kind", "graph_version", "feature_version", "commit", "seed", "sha256")


def render(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return the card as Markdown.

    Args:
        config: content of `config.json`; the texts of the card are under "card".
        metrics: title → list of rows, each a flat mapping, or text.
    """
    card = config.get("card", {})
    parts = [f"# {config['name']} {config['version']}", card.get("summary", "")]
    parts += [f"## {title}\n\n{_text(card[key])}" for key, title in SECTIONS if card.get(key)]
    parts += [f"## {_title(key)}\n\n{_text(value)}" for key, value in metrics.items() if value]
    rows = [{"what": key, "value": config[key]} for key in PROVENANCE if key in config]
    parts.append(f"## Provenance\n\n{table(rows)}")
    if card.get("command"):
        parts.append(f"Trained with:\n\n```\n{card['command']}\n```")
    parts.append(f"Licence of the weights: {card.get('licence', 'Apache-2.0')}.")
    parts.append("This file is generated from `config.json` and `metrics.json`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; the columns are the keys in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [
        "| " + " | ".join(column.replace("_", " ") for column in columns) + " |",
        "|" + "|".join("---" for _ in columns) + "|",
    ]
    lines += [
        "| " + " | ".join(_cell(column, row.get(column)) for column in columns) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def _title(key: str) -> str:
    text = key.replace("_", " ")
    return "Accuracy" if text == "summary" else text[:1].upper() + text[1:]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return table([{"what": key, "value": item} for key, item in value.items()])
    if all(isinstance(item, Mapping) for item in value):
        return table(value)
    return "\n".join(f"* {item}" for item in value)


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value).replace("|", "\\|").replace("\n", " ")
