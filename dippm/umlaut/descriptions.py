"""What a run says of its metrics, so that rows can be made of it later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dippm.runs.store.record import Start, ValueKind
from dippm.umlaut.metric import Metric, Sampled

DESCRIPTIONS = "umlaut.descriptions"
"""Tag of a run: JSON, by name of the function, what each of its metrics is."""
TYPES = "umlaut.types"
"""Tag of a run: JSON, by name of a value that was logged, the type and the description of it."""
KINDS: dict[str, ValueKind] = {
    "confusion-matrix": "confusion_matrix",
    "hyperparameters": "hyperparameters",
    "loss": "loss",
    "tta": "time_to_accuracy",
    "timed tta": "timed_time_to_accuracy",
    "timed-tta": "timed_time_to_accuracy",
    "timed_tta": "timed_time_to_accuracy",
}
"""What trackers tell, by the types of UMLAUT's rows in all its versions."""
BEFORE = ".before"
"""Behind the name of what was read when a call began; what was read at its end has the name."""


Logged = Mapping[str, tuple[str, str]]
"""Type and description of values by name."""


def described(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return what rows need to know of metrics, by the name of their value, JSON-ready."""
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
        # Two GPUs have one metric: they are told apart by the description too.
        key = metric.name if metric.name not in found else f"{metric.name} {metric.description}"
        found[key] = {**about, "name": metric.name}
    return found


class LoggedNames:
    """Names of logged values: the description, and of a second type with it the type as well.

    Attributes:
        said: type and description by name, for the tag `TYPES`.
    """

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = {}

    def name(self, description: str, type_: str) -> str:
        """Return the name of a value of this description and type, the same each time."""
        about, name = [type_, description], description
        while self.said.setdefault(name, about) != about:
            name = f"{name} ({type_})"
        return name


def logged_types(start: Start) -> Logged:
    """Return type and description of what `Benchmark.log` kept, by name."""
    return {
        name: (said[0], said[1])
        for name, said in tag_of(start, TYPES).items()
        if isinstance(said, list) and len(said) == 2 and all(isinstance(w, str) for w in said)
    }


def descriptions_of(start: Start) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what a run says of its metrics, by function and metric; what is damaged is left out.

    Anybody may set a tag, and a run with an odd one is still a run.
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
    """Return the JSON object that a tag of a run holds, {} if it holds none."""
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
