"""The conditions of a run beside those of a prediction: what differs is refused, not averaged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dippm.errors import ConditionsError
from dippm.measure.provenance import catalogue_name
from dippm.runs.store.record import Start

TOLD = ("batch", "precision", "mode", "phase", "channels_last", "mig", "optimizer")
"""Conditions that a run can tell as a param of this name."""
TIMERS = ("wall", "event")


def device_of_run(start: Start) -> str | None:
    """Return the catalogue's name of what a run was on; None if it does not say.

    A run names it in the param "device"; else it is the only kind of GPU of its machine, or the
    CPU of a machine without one.
    """
    if "device" in start.params and not start.params["device"].startswith(("cuda", "cpu")):
        return catalogue_name(start.params["device"])
    environment = start.environment
    on_cpu = start.params.get("device", "").startswith("cpu")
    gpus = {_gpu_name(line) for line in environment.get("gpus", "").splitlines() if line}
    if gpus and not on_cpu:
        return catalogue_name(gpus.pop()) if len(gpus) == 1 else None
    cpu = environment.get("host_cpu")
    if cpu is None:
        return None
    listed = catalogue_name(cpu)
    return listed if listed.endswith(f"-{environment.get('host_cores')}c") else cpu


def refuse_mismatch(start: Start, prediction: Mapping[str, Any], timer: str) -> tuple[str, ...]:
    """Return which conditions the run told, or refuse to compare.

    Args:
        start: of the run.
        prediction: as `Prediction.to_dict` gives it.
        timer: that the run's times are by.

    Raises:
        ConditionsError: if the run was under other conditions than the prediction.
    """
    asked = prediction["conditions"]
    device = device_of_run(start)
    if device is None:
        raise ConditionsError(
            "the run does not say which device it was on", 'Tell it: run.params({"device": ...}).'
        )
    pairs = {"device": (asked["device"], device), "timer": (asked["timer"], timer)}
    told = [name for name in TOLD if name in start.params]
    pairs |= {name: (asked.get(name), start.params[name]) for name in told}
    for name, (predicted, ran) in pairs.items():
        if _spelt(predicted) != _spelt(ran):
            raise ConditionsError(
                f"the prediction is for {name} {predicted}, the run was at {ran}",
                "Predict and run under the same conditions.",
            )
    return ("device", "timer", *told)


def _spelt(value: Any) -> str:
    text = str(value).strip().casefold()
    names = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "none": ""}
    return names.get(text, text)


def _gpu_name(line: str) -> str:
    """Return the model of a line of the environment, without address and UUID."""
    return re.split(r"[,(]|GPU-", line)[0].strip()
