"""Held-out predictions of the hybrid predictor → the tables of its card, and its intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.intervals import COVERAGE
from training.evaluation.metrics import bootstrap, card_columns, errors, grouped_errors
from training.hybrid.examples import Examples, Row

Indices = NDArray[np.int64]
HeldOut = Mapping[str, tuple[Indices, NDArray[np.float64]]]
FEWEST_ARCHITECTURES = 20

SPLITS = {
    "S0": "S0 random",
    "S1": "S1 architectures held out",
    "S2": "S2 families held out",
    "S3a": "S3a all A100 variants held out",
}


@dataclass(frozen=True, slots=True)
class View:
    """Rows that belong in one line of the report.

    Attributes:
        headline: splits of this view that the README quotes.
    """

    data: str
    gpu: str
    conditions: str
    holds: Callable[[Row], bool]
    headline: tuple[str, ...] = ()


def _timm(gpu: str, software: str, mode: str, layout: str = "") -> View:
    nhwc = {"nchw": (False,), "nhwc": (True,), "": (False, True)}[layout]

    def holds(r: Row) -> bool:
        return (
            r.source == "timm_infer"
            and r.device.name == gpu
            and r.mode == mode
            and software in r.table
            and r.channels_last in nhwc
        )

    return View("timm tables", gpu, f"amp, {mode}, {layout or 'both layouts'}, {software}", holds)


def _of(source: str, gpu: str, conditions: str, **wanted: object) -> View:
    def holds(r: Row) -> bool:
        return (
            r.source == source
            and r.device.name == gpu
            and all(getattr(r, key) == value for key, value in wanted.items())
        )

    return View(source, gpu, conditions, holds)


VIEWS = (
    replace(_timm("RTX-3090", "torch 2.4", "eager", "nchw"), headline=("S0", "S1", "S2")),
    _timm("RTX-3090", "torch 2.4", "eager", "nhwc"),
    replace(_timm("RTX-4090", "torch 2.9", "eager"), headline=("S2",)),
    _timm("RTX-4090", "torch 2.9", "compiled"),
    replace(_timm("RTX-5090", "torch 2.9", "eager"), headline=("S2",)),
    _timm("RTX-5090", "torch 2.9", "compiled"),
    replace(
        _of("pytorch_gpu_benchmark", "A100-40GB", "tf32, batch 12, wall + copy", precision="tf32"),
        headline=("S2", "S3a"),
    ),
    replace(
        _of("pytorch_gpu_benchmark", "A100-40GB", "fp16, batch 12, wall + copy", precision="fp16"),
        headline=("S2", "S3a"),
    ),
    replace(
        _of("migperf", "A100-80GB", "fp32, full GPU and MIG slices, wall"), headline=("S2", "S3a")
    ),
    replace(_of("hwgpt", "A100-40GB", "amp-bf16, kernel time"), headline=("S2", "S3a")),
    _of("hwgpt", "H100-SXM-80GB", "amp-bf16, kernel time"),
    _of("neusight_ops", "A100-PCIe-40GB", "fp32-ieee, single operators"),
    _of("neusight_ops", "A100-PCIe-80GB", "fp32-ieee, single convolutions"),
    _of("aiconfigurator", "A100-80GB", "bf16, single operators, kernel time"),
    _of("aiconfigurator", "H100-SXM-80GB", "bf16, single operators, kernel time"),
)


def summary(examples: Examples, held_out: HeldOut) -> list[dict[str, Any]]:
    """Return one row per view and split: errors in percent with a 95 % interval."""
    lines = []
    for split, (rows, predicted) in held_out.items():
        for view in VIEWS:
            inside = np.array([view.holds(examples.rows[i]) for i in rows], dtype=bool)
            if inside.any():
                lines.append(_line(examples, view, split, rows[inside], predicted[inside]))
    return lines


def _line(
    examples: Examples, view: View, split: str, rows: Indices, predicted: NDArray[np.float64]
) -> dict[str, Any]:
    actual = np.exp(examples.log_latency[rows].astype(np.float64))
    guess = np.exp(predicted)
    architectures = [examples.rows[i].architecture for i in rows]
    families = [examples.rows[i].family for i in rows]
    grouped = grouped_errors(actual, guess, families)
    interval = bootstrap(actual, guess, architectures, n_resamples=500)
    roofline = errors(actual, roofline_sums(examples, rows))
    return {
        "gpu": view.gpu,
        "target": "latency_ms",
        "data": f"{view.data} ({view.conditions})",
        "split": SPLITS[split],
        "n": len(rows),
        "architectures": len(set(architectures)),
        "families": len(set(families)),
        **card_columns(grouped, interval),
        "bare_roofline_mape": round(roofline.mape, 1),
        "headline": split in view.headline,
    }


def by_family(examples: Examples, held_out: HeldOut) -> list[dict[str, Any]]:
    """Return the errors of each family that was held out, on the RTX 3090 table (nchw)."""
    rows, predicted = held_out["S2"]
    inside = np.array([VIEWS[0].holds(examples.rows[i]) for i in rows], dtype=bool)
    rows, predicted = rows[inside], predicted[inside]
    actual = np.exp(examples.log_latency[rows].astype(np.float64))
    grouped = grouped_errors(actual, np.exp(predicted), [examples.rows[i].family for i in rows])
    return [
        {
            "family": name,
            "n": error.n,
            "median_ape": round(error.median_ape, 1),
            "mape": round(error.mape, 1),
            "log_bias": round(error.log_bias, 3),
        }
        for name, error in sorted(grouped.groups.items(), key=lambda item: -item[1].mape)
    ]


def intervals(examples: Examples, held_out: HeldOut) -> dict[str, float]:
    """Return the log half-width of the 90 % interval by GPU, from families held out.

    A GPU with few architectures takes the width of the GPU that was held out itself, or its own if
    that is larger; so does every GPU that was never measured.
    """
    rows, predicted = held_out["S2"]
    error = np.abs(predicted - examples.log_latency[rows])
    models = np.array([not examples.rows[i].family.startswith("operator") for i in rows])
    devices = np.array([examples.rows[i].device.name for i in rows])
    unseen_rows, unseen_predicted = held_out["S3a"]
    whole = np.array(
        [not examples.rows[i].family.startswith("operator") for i in unseen_rows], dtype=bool
    )
    unseen = np.abs(unseen_predicted - examples.log_latency[unseen_rows])[whole]
    widths = {"unseen GPU": float(np.quantile(unseen, COVERAGE))}
    for name in np.unique(devices[models]):
        mine = models & (devices == name)
        width = float(np.quantile(error[mine], COVERAGE))
        architectures = {examples.rows[i].architecture for i in rows[mine]}
        if len(architectures) < FEWEST_ARCHITECTURES:
            width = max(width, widths["unseen GPU"])
        widths[str(name)] = width
    return widths


def roofline_sums(examples: Examples, rows: Indices) -> NDArray[np.float64]:
    """Return Σ roofline of rows, in ms: the same kernels without anything learned."""
    return np.array(
        [
            float(np.exp(examples.log_roofline[a:b].astype(np.float64)) @ examples.count[a:b])
            for a, b in zip(examples.start[rows], examples.start[rows + 1], strict=True)
        ]
    )
