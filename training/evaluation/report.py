"""Held-out predictions → one self-contained page of errors.

    python -m training.evaluation.report WORK --checkpoint checkpoints/hybrid-gpu/<version> \
        --out report.html

WORK is where the training kept its held-out rows. The page opens without a network. It names single
rows of other people's tables, so it is no part of the repository.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from dippm.cli.output import errors_reported
from dippm.errors import DippmError
from dippm.estimate.pretrained.store import read_metrics
from dippm.show.report.files import write_text
from dippm.show.report.plotted import OFFLINE, render
from training.evaluation import figures
from training.evaluation.error_lines import (
    disagreements,
    questions,
    split_name,
    tables,
    worst_models,
)
from training.evaluation.held_out import read_held_out

PAGE = "held_out.html"
TEMPLATE = Path(__file__).with_name("templates") / "held_out.html.jinja"
WORST = 50
FEWEST_PLOTTED = {"model": 30, "module": 300, "operator": 300}
"""Tables with so many rows have plots of their own."""
ALL = {
    "model": "all whole models",
    "module": "all small modules",
    "operator": "all single operators",
}
ABOUT = {
    "S0": "Rows drawn at random: other batches, layouts and GPUs of a model under test train. "
    "Never to be read alone.",
    "S1": "No architecture under test trains, on any GPU, under any name; its relatives do.",
    "S2-10": "No model of a family under test trains; nothing of its kind was seen.",
    "S3a": "Nothing that was measured on the GPU under test, or on its variants, trains; the same "
    "models on other GPUs do.",
    "S6": "GPTs larger than all that train.",
}
FIRST = ("S2-10", "S1", "S3a", "S6", "S0")
"""The order of the splits: what a user meets first."""
PLOTS = (
    figures.scatter_figure,
    figures.family_figure,
    figures.conditions_figure,
    figures.calibration_figure,
)


@dataclass(frozen=True, slots=True)
class Panel:
    """The plots of one table of a split.

    Attributes:
        id: identifier in the page.
        table: name.
        figures: JSON, escaped for a page.
    """

    id: str
    table: str
    figures: str


@dataclass(frozen=True, slots=True)
class Section:
    """A split.

    Attributes:
        id, name, about: "S1", and the same for people.
        tables: lines of errors.
        panels: plots, by table.
        worst: rows.
    """

    id: str
    name: str
    about: str
    tables: Sequence[Mapping[str, Any]]
    panels: Sequence[Panel]
    worst: Sequence[Mapping[str, Any]]


def write_page(path: Path, rows: pd.DataFrame, *, checkpoint: Path | None = None) -> Path:
    """Write the page of held-out rows, and return its path.

    Args:
        path: path of the file.
        rows: held-out rows, see `training.evaluation.held_out.COLUMNS`.
        checkpoint: folder of the checkpoint that these rows judge: the page names it, and has its
            errors of power, energy and memory besides.

    Raises:
        DippmError: if the rows are not those that the checkpoint's errors were stated on, if the
            file cannot be written, or a library of reports is missing.
    """
    write_text(path, page(rows, checkpoint=checkpoint))
    return path


def page(rows: pd.DataFrame, *, checkpoint: Path | None = None) -> str:
    """Return the page as text; see `write_page`."""
    found = [split for split in FIRST if (rows["split"] == split).any()]
    found += sorted(set(rows["split"]) - set(found))
    asked = sorted(questions(rows), key=lambda line: found.index(line["split"]))
    stated = read_metrics(checkpoint)["summary"] if checkpoint else []
    if checkpoint:
        _check(asked, stated, checkpoint)
    sections = [_section(split, rows[rows["split"] == split]) for split in found]
    links = {(s.id, panel.table): panel.id for s in sections for panel in s.panels}
    name = " ".join(checkpoint.resolve().parts[-2:]) if checkpoint else "held-out rows"
    return render(
        TEMPLATE.read_text(encoding="utf-8"),
        title=f"{name}: errors on rows that did not train",
        rows=len(rows),
        models=int((rows["kind"] == "model").sum()),
        questions=asked,
        first_panel={s.id: s.panels[0].id for s in sections if s.panels},
        baselines=list(dict.fromkeys(b for line in asked for b in line["baselines"])),
        others=[line for line in stated if line["target"] != "latency_ms" and line.get("question")],
        overview=_json([figures.overview_figure(asked)]) if asked else "[]",
        sections=sections,
        links=links,
        look=_template(),
        config=json.dumps(OFFLINE),
        split_name=split_name,
    )


def _check(
    asked: Sequence[Mapping[str, Any]], stated: Sequence[Mapping[str, Any]], checkpoint: Path
) -> None:
    differ = disagreements(asked, stated)
    if differ:
        raise DippmError(
            f"these rows do not judge {checkpoint}: {len(differ)} errors are stated otherwise, "
            f"for instance of {differ[0]}",
            "Name the checkpoint that the same training wrote, or none.",
        )


def _section(split: str, rows: pd.DataFrame) -> Section:
    models = rows[rows["kind"] == "model"]
    lines = tables(rows)
    panels = [
        Panel(f"{split}-{i}", table, _json([plot(part, split, table) for plot in PLOTS]))
        for i, (table, part) in enumerate(_plotted(rows, lines))
    ]
    worst = worst_models(models, WORST)
    return Section(split, split_name(split), ABOUT.get(split, ""), lines, panels, worst)


def _plotted(
    rows: pd.DataFrame, lines: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the tables that are plotted: those of a kind together, then each."""
    for kind, name in ALL.items():
        of_kind = rows[rows["kind"] == kind]
        if len(of_kind):
            yield name, of_kind
        for line in lines:
            if line["kind"] == kind and line["n"] >= FEWEST_PLOTTED[kind]:
                yield line["table"], of_kind[of_kind["table"] == line["table"]]


def _json(drawn: Sequence[Any]) -> str:
    """Return figures as JSON that cannot end the script it stands in; their look stands once."""
    documents = [json.loads(figure.to_json()) for figure in drawn]
    for document in documents:
        del document["layout"]["template"]
    return _within_script(documents)


def _template() -> str:
    from plotly.io import templates

    return _within_script(templates["plotly_white"].to_plotly_json())


def _within_script(document: Any) -> str:
    from plotly.io.json import to_json_plotly

    return str(to_json_plotly(document)).replace("<", "\\u003c")


def main(
    work: Annotated[Path, typer.Argument(help="working folder of the training")],
    checkpoint: Annotated[Path | None, typer.Option(help="that these rows judge")] = None,
    out: Annotated[Path | None, typer.Option(help="page to write; WORK/held_out.html")] = None,
) -> None:
    """Write the page of held-out errors."""
    with errors_reported(as_json=False):
        written = write_page(out or work / PAGE, read_held_out(work), checkpoint=checkpoint)
    typer.echo(f"wrote {written}")


if __name__ == "__main__":
    typer.run(main)
