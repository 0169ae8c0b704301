"""The page of a collected set: one file that opens without a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base.progress import tell
from dippm.measure.collected.rows import collected, read_joined
from dippm.measure.columns import COLUMNS
from dippm.show.report.collected import predictions, summary
from dippm.show.report.collected.predictions import PredictionErrors
from dippm.show.report.files import write_text
from dippm.show.report.plotted import figure_markup, render, require_libraries

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = "collected.html.jinja"


@dataclass(frozen=True, slots=True)
class CollectedReport:
    """Summary of a collected set.

    Attributes:
        title: name of the set, and its devices.
        rows: all rows.
        figures: summary, see `summary.summary`.
        compared: prediction errors.
    """

    title: str
    rows: pd.DataFrame
    figures: dict[str, Any]
    compared: PredictionErrors

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        return {**self.figures, "predictions": self.compared.to_dict()}

    def to_html(self) -> str:
        """Return the page.

        Raises:
            ReportNotInstalledError: if plotly or jinja2 is missing.
        """
        tell("drawing the page")
        require_libraries()
        from markupsafe import Markup

        text = (
            files("dippm.show.report").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
        )
        return render(
            text,
            title=self.title,
            plots={name: Markup(html) for name, html in self._plots().items()},
            columns=COLUMNS,
            compared=self.compared,
            errors=self.compared.errors(),
            **self.figures,
        )

    def _plots(self) -> dict[str, str]:
        from dippm.show.report.collected import figures

        used = summary.used_rows(self.rows)
        made = {"counts": figures.counts_figure(self.rows)}
        if self.figures["coverage"]["families"]:
            made["coverage"] = figures.coverage_figure(self.figures["coverage"])
        for target in figures.measured_targets(used):
            made[target] = figures.distribution_figure(used, target)
        for target in predictions.TARGETS:
            points = [point for point in self.compared.points if point.target == target]
            if points:
                made[f"predicted {target}"] = figures.prediction_figure(points)
        return {
            name: figure_markup(figure, name.replace(" ", "-")) for name, figure in made.items()
        }


def report_of(
    folder: Path,
    *,
    joined: Path | None = None,
    checkpoint: str | Path | None = None,
    predict: bool = True,
) -> CollectedReport:
    """Summarise a collected folder.

    Args:
        folder: folder of the collector.
        joined: output of `dataset.build_collected`; None for no graphs.
        checkpoint: see `predictions.compare`.
        predict: whether to predict models with a graph.

    Raises:
        RowsNotFoundError: if the folder has no rows.
        RowReaderNotInstalledError: if pandas or pyarrow is missing.
        DippmError: if a file is damaged.
    """
    tell("reading rows")
    found, extra = collected(folder), read_joined(joined)
    found = replace(found, rows=_operators_marked(found.rows))
    tell("summing up")
    figures = summary.summary(found, extra)
    compared = PredictionErrors(absent={"not asked for": 0})
    if predict:
        used = summary.used_rows(found.rows)
        compared = predictions.compare(used, extra, checkpoint=checkpoint)
    names = ", ".join(sorted(found.rows["device"].dropna().unique()))
    title = f"{folder.resolve().name}: measured on {names or 'an unknown device'}"
    return CollectedReport(title, found.rows, figures, compared)


def _operators_marked(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with families of single operators marked as such."""
    operators = rows["kind"] == "operator"
    return rows.assign(family=rows["family"].where(~operators, "operator " + rows["family"]))


def write_page(path: Path, report: CollectedReport) -> None:
    """Write the page of a set.

    Raises:
        DippmError: if the file cannot be written, or a library of reports is missing.
    """
    write_text(path, report.to_html())
