"""`what_if`: the effect of one change at a time on a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack

from dippm.api import load, predict
from dippm.base.answer import Answer
from dippm.devices import Device, host_of
from dippm.errors import DippmError
from dippm.estimate.conditions import EIGHT_BITS, supported_precisions
from dippm.estimate.options import Options, question
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor

LABELS = {
    "predicted": "by the checkpoint, as any other prediction",
    "extrapolated": "no such device exists or was measured",
    "estimated": "the sum of kernel times: no launch is waited for, as in a replayed CUDA graph",
}
TARGETS = ("latency_ms", "energy_j", "memory_mb", "power_w")


@dataclass(frozen=True, slots=True)
class Change:
    """One change and its prediction.

    Attributes:
        name: name of the change, for instance "bandwidth x2".
        label: one of LABELS.
        prediction: prediction with the change; None if it failed.
        reason: why it failed; "" otherwise.
    """

    name: str
    label: str
    prediction: Prediction | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf(Answer):
    """A prediction, and one for each change of its conditions.

    Attributes:
        baseline: prediction without a change.
        changes: the changes in the order of their kinds: device, software, host, precision, batch.
    """

    baseline: Prediction
    changes: tuple[Change, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping for each change.

        "time_ratio" and "energy_ratio" are per sample, relative to the baseline.
        """
        return [self._row(change) for change in self.changes]

    def _row(self, change: Change) -> dict[str, Any]:
        p = change.prediction
        row: dict[str, Any] = {"change": change.name, "label": change.label}
        row |= {target: p and getattr(p, target) for target in TARGETS}
        samples = p.conditions.batch / self.baseline.conditions.batch if p else 1.0
        for ratio, target in (("time_ratio", "latency_ms"), ("energy_ratio", "energy_j")):
            before, after = getattr(self.baseline, target), row[target]
            row[ratio] = after / before / samples if before and after is not None else None
        return {**row, "reason": change.reason or None}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        first = self.baseline.to_dict()
        kept = ("source", "conditions", *TARGETS, "warnings", "provenance", "verify")
        return {"baseline": {key: first[key] for key in kept}, "changes": self.rows()}


@question(Options)
def what_if(source: Any, framework: str | None = None, **options: Unpack[Options]) -> WhatIf:
    """Predict a model, and again with each of a list of changes, one at a time.

    The changes: memory bandwidth and compute rates of the device (doubled), launch time (halved
    and zero), attention, memory layout, compilation, every other precision of the device, and the
    batch (doubled). A device with other rates does not exist: its rows are extrapolated and say so.

    Args:
        source: see `predict`.
        framework: see `predict`.
        **options: see `dippm.Options`.

    Raises:
        DippmError: as `predict` does; a change that cannot be predicted is a row with its reason.
    """
    baseline = predict(source, framework, **options)
    loaded = load(options.get("checkpoint"), device=baseline.conditions.device)
    return WhatIf(baseline, tuple(_changes(baseline, loaded)))


def _changes(baseline: Prediction, loaded: LoadedPredictor) -> Iterator[Change]:
    for name, label, asked in _questions(baseline, loaded):
        try:
            if isinstance(asked, str):
                yield Change(name, label, None, asked)
                continue
            point = baseline.conditions.replace(**asked)
            (found,) = loaded.predict_points(
                baseline.source_graph, [point], baseline.provenance.source, baseline.asked
            )
        except DippmError as error:
            yield Change(name, label, None, error.message)
        else:
            yield Change(name, label, found)


def _questions(
    baseline: Prediction, loaded: LoadedPredictor
) -> Iterator[tuple[str, str, dict[str, Any] | str]]:
    """Yield (name, label, fields that change or the reason why the change is impossible)."""
    c, measured = baseline.conditions, "predicted"
    yield "bandwidth x2", "extrapolated", _faster_memory(c.device)
    yield "compute x2", "extrapolated", _faster_compute(c.device)
    fused = c.attention == "fused"
    other = "unfused" if fused else "fused"
    yield f"{other} attention", measured, {"attention": other}
    if c.runtime == "pytorch":
        layout = "channels first" if c.channels_last else "channels last"
        yield layout, measured, {"channels_last": not c.channels_last}
        mode = "compiled" if c.mode == "eager" else "eager"
        yield mode, measured, {"mode": mode}
    else:
        yield "compiled PyTorch", measured, {"runtime": "pytorch", "mode": "compiled"}
    if c.phase == "train":
        how = "no checkpointing" if c.checkpointing else "checkpointing"
        yield how, measured, {"checkpointing": not c.checkpointing}
    if c.timer != "kernel":
        yield "launches x0.5", measured, _faster_host(baseline)
    if c.timer == "wall":
        yield "launches free", "estimated", {"timer": "kernel"}
    for precision in loaded.precisions_for(c.device, c.phase):
        if precision != c.precision and (c.runtime == "pytorch" or not precision.startswith("amp")):
            yield precision, measured, {"precision": precision}
    for precision in EIGHT_BITS:
        if precision != c.precision and precision in supported_precisions(c.device, c.runtime):
            yield precision, measured, {"precision": precision}
    yield f"batch {2 * c.batch:,}", measured, {"batch": 2 * c.batch}


def _faster_memory(device: Device) -> dict[str, Any] | str:
    if device.bandwidth_gb_s is None:
        return f"the bandwidth of {device.name} is not known"
    return {"device": replace(device, bandwidth_gb_s=2 * device.bandwidth_gb_s)}


def _faster_compute(device: Device) -> dict[str, Any] | str:
    if not device.peak_tflops:
        return f"the rates of {device.name} are not known"
    rates = {name: 2 * rate for name, rate in device.peak_tflops.items()}
    return {"device": replace(device, peak_tflops=rates)}


def _faster_host(baseline: Prediction) -> dict[str, Any] | str:
    if baseline.host is None:
        return f"{baseline.provenance.checkpoint} supports only one host"
    try:
        return {"host": host_of(baseline.host.launch_us / 2)}
    except DippmError as error:
        return error.message
