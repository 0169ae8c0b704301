"""First budgets of models: today's predicted cost plus a margin."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

from dippm.api import predict
from dippm.base.number_format import decimals
from dippm.base.written import is_finite
from dippm.decide.budgets.budget import is_path
from dippm.decide.budgets.checking import compared_value
from dippm.errors import BudgetError
from dippm.model.frontends.named import is_name

LIMITED = ("latency_ms", "memory_mb", "energy_j", "parameters", "macs")
COUNTS = ("parameters", "macs")
"""Quantities that are known exactly and need no margin."""


def first_budgets(
    models: Iterable[str],
    folder: Path,
    *,
    margin_percent: float = 10.0,
    conditions: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Return the content of a budget file: each limit is today's prediction plus a margin.

    Args:
        models: paths or names of models.
        folder: folder of the file to be written, to which its paths are relative.
        margin_percent: margin over the prediction; parameters and MACs have none.
        conditions: arguments of `dippm.predict` for all models.
        trust: see `dippm.predict`.

    Raises:
        BudgetError: if no model is given, or the margin is not valid.
        DippmError: as `predict` does.
    """
    if not (is_finite(margin_percent) and 0 <= margin_percent <= 1_000):
        raise BudgetError(f"the margin is {margin_percent!r}", "Give per cent, 0 to 1000.")
    asked = {key: value for key, value in (conditions or {}).items() if value is not None}
    found: dict[str, Any] = {}
    for model in models:
        p = predict(model, **asked, trust=trust)
        limits: dict[str, Any] = {}
        for quantity in LIMITED:
            held = compared_value(p, quantity, "upper")
            if quantity in COUNTS:
                limits[quantity] = held
            elif isinstance(held, float):
                limits[quantity] = _round_up(held * (1 + margin_percent / 100))
        if p.mig is not None:
            limits["slice"] = p.mig.name
        found[_name(model, found)] = {"model": _relative_path(model, folder), "limits": limits}
    if not found:
        raise BudgetError("no model was given", "Give model files or names after the budget file.")
    for key in set(asked) & {"device", "checkpoint"}:
        if is_path(key, asked[key]):
            asked[key] = _relative_path(asked[key], folder)
    return {"defaults": {**asked, "tolerance": "5%"}, "models": found}


def _name(model: str, taken: Mapping[str, Any]) -> str:
    stem = model.partition(":")[2] if is_name(model) else Path(model).stem
    name, number = stem or "model", 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def _relative_path(model: str, folder: Path) -> str:
    """Return a path relative to the file, so that it holds in another checkout."""
    if is_name(model):
        return model
    path = Path(model).expanduser()
    # Links are followed: ".." from a linked folder leads out of the folder that it points to.
    return os.path.relpath(path.parent.resolve() / path.name, folder.resolve())


def _round_up(value: float) -> float:
    """Round a number up to four significant digits."""
    scale = float(10 ** decimals(value))
    return ceil(value * scale) / scale
