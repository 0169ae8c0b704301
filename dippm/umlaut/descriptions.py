"""What a run says of its metrics, so that rows can be made of it later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dippm.umlaut.metric import Metric, Sampled

DESCRIPTIONS = "umlaut.descriptions"
"""Tag of a run: JSON, by name of the function, what each of its metrics is."""
BEFORE = ".before"
"""Behind the name of what was read when a call began; what was read at its end has the name."""


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
