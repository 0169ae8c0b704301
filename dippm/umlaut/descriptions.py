"""Descriptions of a run's metrics, from which rows can be made later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dippm.runs.store.record import Start, ValueKind
from dippm.umlaut.metric import Metric, Sampled

DESCRIPTIONS = "umlaut.descriptions"
"""Tag of a run: JSON with the description of each metric, by name of the function."""
TYPES = "umlaut.types"
"""Tag of a run: JSON with type and description of logged values, by name."""
KINDS: dict[str, ValueKind] = {
    "confusion-matrix": "confusion_matrix",
    "hyperparameters": "hyperparameters",
    "loss": "loss",
    "tta": "time_to_accuracy",
    "timed tta": "timed_time_to_accuracy",
    "timed-tta": "timed_time_to_accuracy",
    "timed_tta": "timed_time_to_accuracy",
}
"""Kinds of tracker values, by the types of rows in all versions of UMLAUT."""
BEFORE = ".before"
"""Suffix of the value that was read at the start of a call; that at its end has none."""


Logged = Mapping[str, tuple[str, str]]
"""Type and description of values by name."""


def describe_metrics(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return the JSON-ready description of metrics, by the name of their value."""
    found = {}
    for metric in metrics:
        about: dict[str, Any] = {
            "type": metric.measure_type,
            "unit": metric.unit,
            "description": metric.description,
        }
        if isinstance(metric, Sampled):
            about["series"] = f"{metric.source}.{metric.quantity}"
            about["reducer"], about["factor"] = metric.reducer, metric.factor
            if metric.device is not None:
                about["device"] = str(metric.device)
        # The metric of two GPUs has one name: the description distinguishes them.
        key = metric.name if metric.name not in found else f"{metric.name} {metric.description}"
        found[key] = {**about, "name": metric.name}
    return found


class LoggedNames:
    """Names of logged values: the description, and in case of a second type the type as well.

    Attributes:
        said: type and description by name, for the tag `TYPES`.
    """

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}

    def name(self, description: str, type_: str) -> str:
        """Return the name of a value with this description and type, always the same."""
        about, name = [type_, description], description
        while self.said.setdefault(name, about) != about:
            name = f"{name} ({type_})"
        return name


def logged_types(start: Start) -> Logged:
    """Return type and description of values logged by `Benchmark.log`, by name."""
    return {
        name: (said[0], said[1])
        for name, said in tag_of(start, TYPES).items()
        if isinstance(said, list) and len(said) == 2 and all(isinstance(w, str) for w in said)
    }


def descriptions_of(start: Start) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the descriptions of metrics by function and metric, without damaged ones.

    Tags can be set by anyone, and a run with an odd one is still valid.
    """
    said = tag_of(start, DESCRIPTIONS)
    return {
        function: {
            key: about
            for key, about in metrics.items()
            if isinstance(about, dict) and _whole(about)
        }
        for function, metrics in said.items()
        if isinstance(metrics, dict)
    }


def tag_of(start: Start, name: str) -> dict[str, Any]:
    """Return the JSON object in a tag of a run, {} without one."""
    try:
        said = json.loads(start.tags.get(name, "{}"))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _whole(about: dict[str, Any]) -> bool:
    words = [about.get(name) for name in ("type", "unit", "description", "name")]
    if "series" in about:
        words += [about["series"], about.get("reducer"), about.get("device", "")]
    return all(isinstance(word, str) for word in words) and isinstance(
        about.get("factor", 1.0), int | float
    )
