"""The strata of the report: which measured rows are summarised in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from training.hybrid.rows.examples import Row


@dataclass(frozen=True, slots=True)
class Stratum:
    """The rows that one line of the report summarises.

    Attributes:
        data, gpu, conditions: descriptions for people.
        contains: predicate that tells whether a row belongs to the stratum.
        questions: question of a user that the errors on a split answer, by split; the README has
            a line for each.
    """

    data: str
    gpu: str
    conditions: str
    contains: Callable[[Row], bool]
    questions: Mapping[str, str] = field(default_factory=dict)


def _timm(
    gpu: str, software: str, mode: str, layout: str = "", questions: Mapping[str, str] | None = None
) -> Stratum:
    last = {"nchw": (False,), "nhwc": (True,), "": (False, True)}[layout]

    def contains(r: Row) -> bool:
        return (
            r.source == "timm_infer"
            and r.device.name == gpu
            and r.mode == mode
            and software in r.table
            and r.channels_last in last
        )

    conditions = f"amp, {mode}, {layout or 'both layouts'}, {software}"
    return Stratum("timm tables", gpu, conditions, contains, questions or {})


def _of(
    source: str,
    gpu: str,
    conditions: str,
    questions: Mapping[str, str] | None = None,
    **wanted: object,
) -> Stratum:
    def contains(r: Row) -> bool:
        return (
            r.source == source
            and r.device.name == gpu
            and all(getattr(r, key) == value for key, value in wanted.items())
        )

    return Stratum(source, gpu, conditions, contains, questions or {})


def _on_slices(source: str) -> Callable[[Row], bool]:
    def contains(r: Row) -> bool:
        return r.source == source and r.mig is not None and r.mig.name != WHOLE_SLICE

    return contains


def _on_whole(r: Row) -> bool:
    return r.source == "parvagpu" and r.mig is not None and r.mig.name == WHOLE_SLICE


def _is_u_net(r: Row) -> bool:
    return r.source == "sd_webui"


WHOLE_SLICE = "7g.80gb"
_KIND, _GPU = "a kind of model never seen", "a GPU never measured"
_NEW = "an architecture never seen"
WORK = {"model": "whole models", "module": "chains", "operator": "single operators"}
_PGB, _WALL = "pytorch_gpu_benchmark", "batch 12, wall + copy"
STRATA = (
    _timm(
        "RTX-3090",
        "torch 2.4",
        "eager",
        "nchw",
        {"S1": "an architecture never seen, of a known kind", "S2-10": _KIND},
    ),
    _timm("RTX-3090", "torch 2.4", "eager", "nhwc"),
    _timm("RTX-4090", "torch 2.9", "eager", questions={"S2-10": _KIND}),
    _timm("RTX-4090", "torch 2.9", "compiled", questions={"S2-10": f"{_KIND}, compiled"}),
    _timm("RTX-5090", "torch 2.9", "eager", questions={"S2-10": _KIND, "S3a": _GPU}),
    _timm(
        "RTX-5090",
        "torch 2.9",
        "compiled",
        questions={"S2-10": f"{_KIND}, compiled", "S3a": f"{_GPU}, compiled"},
    ),
    _of(
        _PGB,
        "A100-40GB",
        f"tf32, {_WALL}",
        {"S2-10": f"{_KIND}, torchvision in TF32", "S3a": f"{_GPU}, torchvision in TF32"},
        precision="tf32",
    ),
    _of(
        _PGB,
        "A100-40GB",
        f"fp16, {_WALL}",
        {"S2-10": f"{_KIND}, torchvision in fp16", "S3a": f"{_GPU}, torchvision in fp16"},
        precision="fp16",
    ),
    Stratum(
        "migperf",
        "A100-80GB",
        "fp32, MIG slices, wall",
        _on_slices("migperf"),
        {"S2-10": f"{_KIND}, on a MIG slice"},
    ),
    Stratum(
        "parvagpu",
        "A100-80GB",
        "tf32, MIG slices, wall + copy",
        _on_slices("parvagpu"),
        {"S2-10": f"{_KIND}, CNNs on a MIG slice"},
    ),
    Stratum(
        "parvagpu",
        "A100-80GB",
        f"tf32, {WHOLE_SLICE}, batches 1 to 128, wall + copy",
        _on_whole,
        {"S2-10": f"{_KIND}, CNNs over batch"},
    ),
    Stratum(
        "sd_webui",
        "several",
        "fp16, U-Nets of images, wall",
        _is_u_net,
    ),
    _of("migperf", "A100-80GB", "fp32, full GPU and MIG slices, wall"),
    _of(
        "hwgpt",
        "A100-40GB",
        "amp-bf16, kernel time",
        {"S2-10": f"{_KIND}, GPTs", "S3a": f"{_GPU}, GPTs", "S6": "GPTs larger than any seen"},
    ),
    _of("hwgpt", "H100-SXM-80GB", "amp-bf16, kernel time", {"S2-10": f"{_KIND}, GPTs"}),
    *(
        _of("hwgpt", gpu, "autocast, kernel time", {"S2-10": f"{_KIND}, GPTs"})
        for gpu in (
            "A40",
            "P100-PCIe-16GB",
            "RTX-2080-Ti",
            "RTX-3080",
            "RTX-A6000",
            "V100-SXM2-32GB",
        )
    ),
    *(
        _of(_PGB, gpu, f"torchvision, {_WALL}")
        for gpu in ("GTX-1080-Ti", "RTX-2080-Ti", "TITAN-Xp")
    ),
    _of("neusight_ops", "A100-PCIe-40GB", "fp32-ieee, single operators"),
    _of("neusight_ops", "A100-PCIe-80GB", "fp32-ieee, single convolutions"),
    _of("aiconfigurator", "A100-80GB", "bf16, single operators, kernel time"),
    _of("aiconfigurator", "H100-SXM-80GB", "bf16, single operators, kernel time"),
    _of("kernelbench", "A100-80GB", "fp32, single operators and small models"),
)
REFERENCE = STRATA[0]
"""The table on which every predictor can be compared."""


def report_lines_of(source: str) -> tuple[str, ...]:
    """Return the titles of the report's lines about one source."""
    data = "timm tables" if source == "timm_infer" else source
    return tuple(
        f"{stratum.gpu} ({stratum.conditions})" for stratum in STRATA if stratum.data == data
    )


def strata_of(rows: Iterable[Row]) -> tuple[Stratum, ...]:
    """Return the strata of published tables, and those of the collected sets among the rows."""
    sets = {_alike(row): row for row in rows if row.is_own}
    return (*STRATA, *(_collected(*item) for item in sorted(sets.items())))


def _alike(row: Row) -> tuple[str, ...]:
    """Return the key of a stratum of a collected set: source, GPU, conditions and kind of work."""
    what = "kernels of models" if row.node is not None else WORK[row.kind]
    place = row.mig.name if row.mig else ""
    return row.source, row.device.name, place, row.precision, row.mode, what, row.timer


def _collected(key: tuple[str, ...], example: Row) -> Stratum:
    source, gpu, *conditions = key
    by_the_wall = example.is_model and example.timer == "wall"
    ours = ", ".join(filter(None, (source, *conditions[:3])))
    return Stratum(
        source,
        gpu,
        ", ".join(filter(None, conditions)),
        lambda row: _alike(row) == key,
        {"S1": f"{_NEW}, {ours}", "S2-10": f"{_KIND}, {ours}"} if by_the_wall else {},
    )
