"""The accuracy pages: every number comes from the `metrics.json` of a shipped checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log10
from typing import Any

from dippm.estimate.pretrained import find
from dippm.estimate.pretrained.model_card import table
from dippm.estimate.pretrained.store import DEFAULT, CheckpointInfo, available, read_metrics
from scripts.accuracy_table import QUESTIONS, Line, rows, shipped
from scripts.site.links import copy_of

COLUMNS = {
    "gpu": "GPU",
    "data": "measured",
    "phase": "phase",
    "n": "n",
    "median_ape": "median APE %",
    "mape": "MAPE %",
    "mape_ci95": "95 % interval of MAPE",
    "p90": "90th percentile %",
    "acc10": "within 10 %",
    "log_bias": "log bias",
    "worst_family": "worst family, MAPE %",
    "bare_roofline_mape": "bare roofline, MAPE %",
    "constant_share_of_limit_mape": "constant power, MAPE %",
}
"""Columns of a checkpoint's errors on the page, in this order; the card has the others."""

TARGETS = {
    "latency_ms": "Latency",
    "latency": "Latency",
    "memory_mb": "Memory",
    "power_w": "Power",
    "energy_j": "Energy",
}
SPLITS = """\
| split | held out together | says how far off an answer is for |
|---|---|---|
| L | all that a laboratory measured, on every GPU | a measured GPU in another laboratory: yours |
| S2 | all architectures of a family | a new kind of model |
| S3a | all rows of a GPU and its variants | a GPU never measured |
| model held out | all rows of a model | memory of a new model |
| laboratory held out | all that a laboratory measured | memory on an unknown installation |
| operators and models held out | these; others of their laboratory train | power of a new model |
| source held out | all that a laboratory measured | somebody else's bench |
"""
INTRODUCTION = """\
# Accuracy

How far off predictions are, on what was held out of training. Each row names its split. All numbers
on this page are made from the `metrics.json` of the shipped checkpoints while the site is built.

APE is the absolute percentage error of one point, MAPE its mean. Where several GPUs or tables
answer a question, the range of theirs stands. A row that was held out is asked as a user asks: of
a checkpoint that was published without it, with GPU, precision, mode, batch and layout, and with
the default host. Nothing of its own table, machine or software is known.
"""
CHART = (
    "<!-- chart errors: Mean absolute percentage error of latency of whole models, by table and "
    "split, checkpoint {name}. S1: architecture held out. S2: family held out. S3a: GPU held out. "
    "Command: make docs -->"
)


def pages() -> dict[str, tuple[str, str]]:
    """Return path on the site → (title, Markdown)."""
    names = sorted({info.name for info in available()}, key=lambda name: (name != DEFAULT, name))
    newest = {name: next(info for info in available() if info.name == name) for name in names}
    found = {"accuracy/index.md": ("By question", _questions(list(newest.values())))}
    for info in newest.values():
        found[f"accuracy/{info.name}.md"] = (f"{info.name} {info.version}", _checkpoint(info))
    return found


def _questions(infos: Sequence[CheckpointInfo]) -> str:
    lines = list(shipped())
    asked = [
        {**row, "split": _splits(line for line in lines if question.is_answered_by(line))}
        for question in QUESTIONS
        for row in rows(lines, [question])
    ]
    links = [f"* [{info.name} {info.version}]({info.name}.md): {info.summary}" for info in infos]
    parts = [
        INTRODUCTION,
        CHART.format(name=DEFAULT),
        "## By question",
        table(_spell_out(asked)),
        "## The splits",
        SPLITS,
        "## Checkpoints",
        "\n".join(links),
        "What no error here covers is on the page of [limits](../limits.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _spell_out(asked: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows with "the same, ..." spelled out, because each is shown with its split."""
    found, before = [], ""
    for row in asked:
        text = row["asked"]
        if text.startswith("the same"):
            text = before + text.removeprefix("the same")
        before = text.partition(",")[0]
        first = {"asked": text, "split": row["split"]}
        found.append(first | {key: value for key, value in row.items() if key not in first})
    return found


def _splits(lines: Iterator[Line]) -> str:
    return "; ".join(dict.fromkeys(str(line["split"]) for line in lines))


def _checkpoint(info: CheckpointInfo) -> str:
    card = info.config.get("card", {})
    metrics = dict(read_metrics(info.path))
    summary = metrics.pop("summary", [])
    parts = [f"# {info.name} {info.version}", info.summary, *_errors(summary)]
    for key, title in (("limits", "Limits"), ("never_measured", "Never measured")):
        if card.get(key):
            parts += [f"## {title}", "\n".join(f"* {item}" for item in card[key])]
    parts.append("## More")
    for title, content in metrics.items():
        parts.append(_collapsible(title, content))
    if card.get("command"):
        parts += ["The numbers of this page come from:", f"```text\n{card['command']}\n```"]
    parts.append(f"The whole card: [README.md](../{_card(info)}).")
    return "\n\n".join(parts) + "\n"


def _card(info: CheckpointInfo) -> str:
    return copy_of(f"checkpoints/{info.name}/{info.version}/README.md")


def _errors(summary: Sequence[Line]) -> Iterator[str]:
    """Yield a table for each target and split."""
    seen = dict.fromkeys((str(line["target"]), str(line["split"])) for line in summary)
    for target in dict.fromkeys(target for target, _ in seen):
        yield f"## {TARGETS.get(target, target)}"
        for split in sorted(split for other, split in seen if other == target):
            lines = [line for line in summary if (line["target"], line["split"]) == (target, split)]
            shown = [key for key in COLUMNS if any(line.get(key) is not None for line in lines)]
            yield f"### {TARGETS.get(target, target)}, {split}"
            yield table([{COLUMNS[key]: line.get(key) for key in shown} for line in lines])


def _collapsible(title: str, content: Any) -> str:
    """Return further metrics in a collapsible section."""
    if isinstance(content, str):
        return f"* {title.replace('_', ' ')}: {content}"
    if isinstance(content, Mapping):
        content = [{"what": key, "is": value} for key, value in content.items()]
    body = "\n".join(f"    {line}" for line in table(content).splitlines())
    name = title.replace("_", " ").replace('"', "'")
    return f'??? note "{name[:1].upper()}{name[1:]}"\n\n{body}'


WHOLE_MODELS = ("timm tables", "whole models", "pytorch_gpu", "hwgpt", "migperf (fp32, MIG")
SHOWN_SPLITS = {"L": "#3b6fb6", "S2": "#d1495b", "S3a": "#8d99ae"}


def error_figure() -> Any:
    """Return errors of whole models by table, a dot for each split."""
    import plotly.graph_objects as go

    lines = [
        line
        for line in shipped()
        if line["checkpoint"] == DEFAULT
        and line["target"] == "latency_ms"
        and any(word in str(line["data"]) for word in WHOLE_MODELS)
    ]
    figure = go.Figure()
    for split, colour in SHOWN_SPLITS.items():
        own = [line for line in lines if str(line["split"]).split()[0] == split]
        figure.add_scatter(
            x=[line["mape"] for line in own],
            y=[_label(line) for line in own],
            mode="markers",
            name=str(own[0]["split"]).partition(",")[0],
            marker={"size": 11, "color": colour},
            text=[
                f"{line['split']}, n = {line['n']:,}, median {line['median_ape']} %" for line in own
            ],
            hovertemplate="%{y}<br>%{text}<br>MAPE %{x:.1f} %<extra></extra>",
        )
    figure.update_xaxes(title="MAPE of latency, %", rangemode="tozero")
    figure.update_yaxes(automargin=True, autorange="reversed", tickfont={"size": 10})
    return figure.update_layout(
        template="plotly_white",
        height=480,
        margin={"l": 10, "r": 10, "t": 40, "b": 40},
        legend={"orientation": "h", "y": 1.08, "x": 0},
    )


def family_figure() -> Any:
    """Return the signed error of each held-out family of models."""
    import plotly.graph_objects as go

    metrics = read_metrics(find(DEFAULT).path)
    title = next(key for key in metrics if key.startswith("latency by family held out"))
    rows = sorted(metrics[title], key=lambda row: row["median_ape"])
    figure = go.Figure()
    figure.add_bar(
        x=[row["family"] for row in rows],
        y=[row["median_ape"] for row in rows],
        marker_color=["#d1495b" if row["log_bias"] < 0 else "#3b6fb6" for row in rows],
        text=[f"n = {row['n']}, log bias {row['log_bias']:+.2f}" for row in rows],
        textposition="none",
        hovertemplate="%{x}: %{y:.1f} %<br>%{text}<extra></extra>",
    )
    figure.update_yaxes(title="median APE, %")
    figure.update_xaxes(tickfont={"size": 9}, tickangle=-60)
    return figure.update_layout(
        template="plotly_white", height=400, margin={"l": 10, "r": 10, "t": 20, "b": 40}
    )


def coverage_figure() -> Any:
    """Return the coverage of each line's 90 % intervals over their width."""
    import plotly.graph_objects as go

    lines = [
        line
        for line in shipped()
        if line["checkpoint"] == DEFAULT
        and line["target"] == "latency_ms"
        and line.get("coverage") is not None
        and any(word in str(line["data"]) for word in WHOLE_MODELS)
    ]
    figure = go.Figure()
    figure.add_hrect(y0=85, y1=95, fillcolor="#8d99ae", opacity=0.2, line_width=0)
    for split, colour in SHOWN_SPLITS.items():
        own = [line for line in lines if str(line["split"]).split()[0] == split]
        figure.add_scatter(
            x=[line["median_half_width"] for line in own],
            y=[line["coverage"] for line in own],
            mode="markers",
            name=str(own[0]["split"]).partition(",")[0],
            marker={"size": [6 + 3 * log10(line["n"]) for line in own], "color": colour},
            text=[f"{_label(line)}, n = {line['n']:,}" for line in own],
            hovertemplate="%{text}<br>±%{x:.0f} % holds %{y:.0f} %<extra></extra>",
        )
    figure.update_xaxes(title="median half width of the interval, %", rangemode="tozero")
    figure.update_yaxes(title="inside the 90 % interval, %", range=[0, 104])
    return figure.update_layout(
        template="plotly_white",
        height=400,
        margin={"l": 10, "r": 10, "t": 40, "b": 40},
        legend={"orientation": "h", "y": 1.1, "x": 0},
    )


def _label(line: Line) -> str:
    name, _, rest = str(line["data"]).partition(" (")
    detail = ", ".join(rest.rstrip(")").split(", ")[:3])
    return f"{line['gpu']}<br>{name.removesuffix(' tables')}: {detail}"
