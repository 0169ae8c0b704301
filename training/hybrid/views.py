"""Which measured rows belong in one line of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.hybrid.examples import Row


@dataclass(frozen=True, slots=True)
class View:
    """Rows that belong in one line of the report.

    Attributes:
        data, gpu, conditions: for people.
        holds: whether a row belongs.
        headline: splits of this view that the README quotes.
    """

    data: str
    gpu: str
    conditions: str
    holds: Callable[[Row], bool]
    headline: tuple[str, ...] = ()


def _timm(
    gpu: str, software: str, mode: str, layout: str = "", headline: tuple[str, ...] = ()
) -> View:
    last = {"nchw": (False,), "nhwc": (True,), "": (False, True)}[layout]

    def holds(r: Row) -> bool:
        return (
            r.source == "timm_infer"
            and r.device.name == gpu
            and r.mode == mode
            and software in r.table
            and r.channels_last in last
        )

    conditions = f"amp, {mode}, {layout or 'both layouts'}, {software}"
    return View("timm tables", gpu, conditions, holds, headline)


def _of(
    source: str, gpu: str, conditions: str, headline: tuple[str, ...] = (), **wanted: object
) -> View:
    def holds(r: Row) -> bool:
        return (
            r.source == source
            and r.device.name == gpu
            and all(getattr(r, key) == value for key, value in wanted.items())
        )

    return View(source, gpu, conditions, holds, headline)


_PGB, _WALL = "pytorch_gpu_benchmark", "batch 12, wall + copy"
VIEWS = (
    _timm("RTX-3090", "torch 2.4", "eager", "nchw", ("S0", "S1", "S2-10")),
    _timm("RTX-3090", "torch 2.4", "eager", "nhwc"),
    _timm("RTX-4090", "torch 2.9", "eager", headline=("S2-10",)),
    _timm("RTX-4090", "torch 2.9", "compiled", headline=("S2-10",)),
    _timm("RTX-5090", "torch 2.9", "eager", headline=("S2-10", "S3a")),
    _timm("RTX-5090", "torch 2.9", "compiled", headline=("S2-10", "S3a")),
    _of(_PGB, "A100-40GB", f"tf32, {_WALL}", ("S2-10", "S3a"), precision="tf32"),
    _of(_PGB, "A100-40GB", f"fp16, {_WALL}", ("S2-10", "S3a"), precision="fp16"),
    _of("migperf", "A100-80GB", "fp32, full GPU and MIG slices, wall", ("S2-10", "S3a")),
    _of("hwgpt", "A100-40GB", "amp-bf16, kernel time", ("S2-10", "S3a", "S6")),
    _of("hwgpt", "H100-SXM-80GB", "amp-bf16, kernel time", ("S2-10",)),
    _of("neusight_ops", "A100-PCIe-40GB", "fp32-ieee, single operators", ("S1", "S3a")),
    _of("neusight_ops", "A100-PCIe-80GB", "fp32-ieee, single convolutions", ("S1", "S3a")),
    _of("aiconfigurator", "A100-80GB", "bf16, single operators, kernel time", ("S1", "S3a")),
    _of("aiconfigurator", "H100-SXM-80GB", "bf16, single operators, kernel time", ("S1",)),
    _of("kernelbench", "A100-80GB", "fp32, single operators and small models"),
)
REFERENCE = VIEWS[0]
"""The table that everybody can be compared on."""
