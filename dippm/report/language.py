"""Language models in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path

from dippm.language.answer import HEADER, LanguagePrediction
from dippm.report.files import write_text
from dippm.report.html import page
from dippm.report.tables import Column, Fitted

RANKS = {"90 % interval": 2, "J/token": 1}


def figures_table(found: LanguagePrediction) -> Fitted:
    """Return what a request costs in all."""
    columns = (Column(""), Column("predicted"), Column("", folds=True, rank=1))
    return Fitted(columns, list(found.rows()), " " + found.title)


def steps_table(found: LanguagePrediction) -> Fitted:
    """Return a decode step by context."""
    columns = [Column(name, rank=RANKS.get(name, 0)) for name in HEADER]
    caption = " " + found.footer
    if not all(step.fits for step in found.steps):
        caption = f" ! may not fit {found.setting.conditions.device.name}\n{caption}"
    return Fitted(columns, found.table(), " one token for each sequence", caption)


def write_language_page(path: Path, found: LanguagePrediction) -> None:
    """Write a page that needs no network and no other file.

    Raises:
        DippmError: if the file cannot be written.
    """
    write_text(path, page(found.title, found._repr_html_(), found.to_dict()))
