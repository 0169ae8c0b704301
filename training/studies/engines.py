"""Image models in TensorRT on a T4, predicted from their fused kernels, with families held out.

    python -m training.studies.engines --graphs GRAPHS [--data DATA] [--write] [--results STEM]

DATA is the folder that holds `kecam_tensorrt`, GRAPHS the one that `dataset.raw_graphs` filled.
The models of the table are Keras models; each is predicted by its twin in timm, whose parameters
and multiply-accumulates agree. Every family of the table is held out in turn: its rows are
predicted with offsets fitted to the other families. The strength of the regularisation and the
groups of kernels were chosen by these errors, which are therefore somewhat optimistic.

Columns: kernels of eager mode, of compiled mode and of the engine, each with its own offsets; and
those of the engine without offsets, that is their roofline.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import least_squares

from dataset.join import raw_graphs
from dataset.measured.location import data_dir
from dippm.devices import find
from dippm.errors import DippmError
from dippm.estimate.conditions import Precision
from dippm.estimate.features.engine import engine_kernels, fold_constants
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_features import DeviceView, roofline_parts_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import launched_by, sequence_of
from dippm.estimate.models.engine_law import GROUP_OF_CLASS, GROUPS, LAUNCHES, OFFSETS
from dippm.model.graph import build
from training.studies.kernel_tables import markdown
from training.studies.options import Results

Floats = NDArray[np.float64]
DEVICE = "T4"
PRECISION: Precision = "fp16"
SAME_PARAMETERS, SAME_MACS = 0.1, 0.2
"""Largest relative difference of a twin from its Keras model."""
MORE_TWINS = {
    ("FlexiViT", "FlexiViTSmall"): "flexivit_small",
    ("FlexiViT", "FlexiViTBase"): "flexivit_base",
    ("FlexiViT", "FlexiViTLarge"): "flexivit_large",
    ("GMLP", "GMLPTiny16"): "gmlp_ti16_224",
    ("GMLP", "GMLPB16"): "gmlp_b16_224",
    ("PVT_V2", "PVT_V2B2_linear"): "pvt_v2_b2_li",
}
"""Twins that the table does not name, by section and model."""
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9}
PRIOR = (2.2, 1.4, 0.0025)
"""Prior of every group: factors of arithmetic and memory time (45 % and 70 % of the peaks), and ms
per layer."""
STRENGTH, SHARED = 0.3, 0.1
"""Regularisation of a group towards the others, and of all towards the prior: inverse standard
deviations of logs."""
OUTLIER = 0.15
"""Log error above which the pull of a row is constant (Huber loss)."""
ROUNDS = 40
DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Parts:
    """Kernels of one model on the device.

    Attributes:
        group: positions in GROUPS, shape (K,).
        compute_ms, memory_ms: times at peak rates, shape (K,).
        layers: number of kernels of each group, shape (G,).
    """

    group: NDArray[np.int64]
    compute_ms: Floats
    memory_ms: Floats
    layers: Floats

    @classmethod
    def of(cls, kernels: Sequence[Kernel], view: DeviceView) -> Parts:
        """Split the kernels of one inference."""
        table = KernelTable.of_kernels(list(kernels))
        group = GROUP_OF_CLASS[table.kind]
        count = np.bincount(group, table.settings[:, LAUNCHES], len(GROUPS))
        return cls(group, *roofline_parts_ms(table, 1, view), count.astype(np.float64))

    def summed(self, arithmetic: Floats, memory: Floats) -> Floats:
        """Return the larger side of each kernel's roofline by group and side, shape (2 G,)."""
        compute_ms = arithmetic[self.group] * self.compute_ms
        memory_ms = memory[self.group] * self.memory_ms
        side = np.where(compute_ms > memory_ms, 0, len(GROUPS)) + self.group
        larger = np.where(compute_ms > memory_ms, self.compute_ms, self.memory_ms)
        return np.bincount(side, larger, 2 * len(GROUPS)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured model.

    Attributes:
        family: section of the table.
        model: twin in timm, with its image size.
        ms: measured latency.
        parts: kernels by way of execution.
    """

    family: str
    model: str
    ms: float
    parts: dict[str, Parts]


WAYS: dict[str, Callable[[Any], Sequence[Kernel]]] = {
    "eager": lambda calls: launched_by(calls, PRECISION, channels_last=True),
    "compiled": lambda calls: launched_by(calls, PRECISION, "compiled", channels_last=True),
    "engine": lambda calls: engine_kernels(
        launched_by(fold_constants(calls), PRECISION, channels_last=True)
    ),
}


def read_rows(table: pd.DataFrame, graphs: Path) -> tuple[list[Row], Counter[str]]:
    """Return the rows whose twin has a graph, and the number of others by reason."""
    view, rows, left_out = DeviceView.of(find(DEVICE)), [], Counter[str]()
    seen: set[tuple[str, float]] = set()
    for record in table.to_dict("records"):
        named = MORE_TWINS.get((record["section"], record["model"]), record["timm_guess"])
        if not isinstance(named, str) or np.isnan(record["input_px"]):
            left_out["no twin in timm"] += 1
            continue
        model = f"{named}@{int(record['input_px'])}"
        if (model, record["qps"]) in seen:
            left_out["repeats another row"] += 1
            continue
        try:
            graph = build(raw_graphs.read(f"timm:{model}", graphs))
        except (DippmError, FileNotFoundError):
            left_out["no graph of the twin"] += 1
            continue
        macs, parameters = graph.macs / graph.batch, graph.param_bytes / 4
        far = abs(parameters / number(record["params"]) - 1) > SAME_PARAMETERS
        if far or abs(macs / number(record["flops"]) - 1) > SAME_MACS:
            left_out["the twin is of another size"] += 1
            continue
        seen.add((model, record["qps"]))
        calls = sequence_of(graph).at_batch(1)
        parts = {way: Parts.of(made(calls), view) for way, made in WAYS.items()}
        rows.append(Row(record["section"], model, float(record["latency_ms"]), parts))
    return rows, left_out


def number(text: str) -> float:
    """Parse a number of the table, such as "17.61G"."""
    text = str(text).strip()
    unit = UNITS.get(text[-1:])
    return float(text[:-1]) * unit if unit else float(text)


def fit(rows: Sequence[Row], way: str) -> Floats:
    """Return the offsets of all groups: arithmetic, memory, ms of a layer, shape (3, G).

    Families have equal weight, whatever the number of their rows. Which side of its roofline a
    kernel is on follows from the offsets, so both are determined in turn.
    """
    size = len(GROUPS)
    measured = np.log([row.ms for row in rows])
    count = Counter(row.family for row in rows)
    weight = np.array([1 / np.sqrt(count[row.family]) for row in rows])
    weight /= np.sqrt((weight**2).mean())
    layers = np.stack([row.parts[way].layers for row in rows])
    prior = np.log(PRIOR)

    def offsets(p: Floats) -> Floats:
        found = np.exp(prior[:, None] + p[:3, None] + p[3:].reshape(3, size))
        return np.maximum(found, [[1.0], [1.0], [0.0]])

    p = np.zeros(3 + 3 * size)
    for _ in range(2):
        current = offsets(p)
        work = np.stack([row.parts[way].summed(current[0], current[1]) for row in rows])
        columns = np.concatenate([work, layers], axis=1)

        def residuals(p: Floats, columns: Floats = columns) -> Floats:
            off = np.log(columns @ offsets(p).ravel()) - measured
            return np.concatenate([weight * off, STRENGTH * p[3:], SHARED * p[:3]])

        p = least_squares(residuals, p, loss="soft_l1", f_scale=OUTLIER, max_nfev=ROUNDS).x
    return offsets(p)


def predicted_ms(row: Row, way: str, offsets: Floats) -> float:
    """Return the latency of a model with given offsets."""
    parts = row.parts[way]
    work = parts.summed(offsets[0], offsets[1])
    return float(np.concatenate([work, parts.layers]) @ offsets.ravel())


def held_out(rows: Sequence[Row], way: str) -> Floats:
    """Return log errors of all rows, each predicted by the other families, shape (R,)."""
    off = np.zeros(len(rows))
    for family in {row.family for row in rows}:
        offsets = fit([row for row in rows if row.family != family], way)
        for i, row in enumerate(rows):
            if row.family == family:
                off[i] = np.log(predicted_ms(row, way, offsets) / row.ms)
    return off


def summary(rows: Sequence[Row], off: Floats) -> list[str]:
    """Return median, 90 % quantile and mean over families of the median, in percent; and bias."""
    ape = 100 * np.abs(np.expm1(off))
    families = pd.Series(ape).groupby([row.family for row in rows]).median()
    bias = 100 * np.expm1(np.median(off))
    values = np.median(ape), np.quantile(ape, 0.9), families.mean(), bias
    return [f"{value:.1f}" for value in values]


def spread(rows: Sequence[Row], off: Floats) -> tuple[float, float, float]:
    """Return the bootstrap range of the median over families, and the coverage of intervals.

    Returns:
        Ends of the range, in percent, of 90 % of the medians over families drawn with replacement;
        share of the rows, 0 to 1, within the width that the other families' rows give.
    """
    ape, family = np.abs(np.expm1(off)), np.array([row.family for row in rows])
    each = {name: np.flatnonzero(family == name) for name in sorted(set(family.tolist()))}
    rng, names = np.random.default_rng(0), list(each)
    drawn = (rng.choice(names, len(names)) for _ in range(DRAWS))
    medians = [np.median(np.concatenate([ape[each[n]] for n in some])) for some in drawn]
    low, high = np.quantile(medians, [0.05, 0.95])
    within = [
        np.abs(off[own]) <= np.quantile(np.abs(np.delete(off, own)), 0.9) for own in each.values()
    ]
    return 100 * float(low), 100 * float(high), float(np.concatenate(within).mean())


def main(
    graphs: Annotated[Path, typer.Option(help="of dataset.raw_graphs")],
    data: Annotated[Path | None, typer.Option(help="holds kecam_tensorrt")] = None,
    write: Annotated[bool, typer.Option("--write", help="fit all rows, write the offsets")] = False,
    results: Results = None,
) -> None:
    """Print errors with families held out."""
    table = pd.read_csv((data or data_dir()) / "kecam_tensorrt" / "t4_fp16.csv")
    rows, left_out = read_rows(table, graphs)
    off = {f"{way}, offsets": held_out(rows, way) for way in WAYS}
    bare = np.stack([np.ones(len(GROUPS)), np.ones(len(GROUPS)), np.zeros(len(GROUPS))])
    bare[2] = DeviceView.of(find(DEVICE)).launch_ms
    measured = np.array([row.ms for row in rows])
    off["engine, no offsets"] = np.log(
        np.array([predicted_ms(row, "engine", bare) for row in rows]) / measured
    )
    best = off["engine, offsets"]
    half = float(np.quantile(np.abs(best), 0.9))
    why = ", ".join(f"{n} {reason}" for reason, n in left_out.most_common())
    low, high, inside = spread(rows, best)
    lines = [
        f"{len(table)} rows, {len(rows)} predicted; left out: {why}.",
        f"90 % of the rows lie within a factor of {np.exp(half):.2f} either way; "
        f"{100 * inside:.0f} % within the width that the other families give.",
        f"Median with families drawn again: {low:.1f} to {high:.1f} % in 90 % of the draws.",
        markdown(
            ["kernels", "median APE %", "90 % below", "mean of families' medians", "bias %"],
            [[name, *summary(rows, values)] for name, values in off.items()],
        ),
        markdown(
            ["family", "rows", "median APE %", "90 % below", "", "bias %"],
            [_family(rows, best, family) for family in sorted({row.family for row in rows})],
        ),
    ]
    Console(soft_wrap=True).print("\n\n".join(lines), markup=False, highlight=False)
    offsets = fit(rows, "engine")
    if write:
        OFFSETS.write_text(json.dumps(_document(rows, offsets, half), indent=1) + "\n", "utf-8")
    if results is not None:
        command = "`python -m training.studies.engines --graphs GRAPHS`"
        text = ["# TensorRT on a T4, families held out", command, *lines]
        results.with_suffix(".md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
        models = {
            row.model: [row.ms, round(float(e), 3)] for row, e in zip(rows, best, strict=True)
        }
        results.with_suffix(".json").write_text(json.dumps(models, indent=1) + "\n", "utf-8")


def _family(rows: Sequence[Row], off: Floats, family: str) -> list[str]:
    chosen = np.array([row.family == family for row in rows])
    own = [row for row in rows if row.family == family]
    median, most, _, bias = summary(own, off[chosen])
    return [family, str(len(own)), median, most, "", bias]


def _document(rows: Sequence[Row], offsets: Floats, half: float) -> dict[str, Any]:
    return {
        "engine": "tensorrt",
        "source": "kecam_tensorrt: trtexec with CUDA graphs, batch 1; training/studies/engines.py",
        "device": DEVICE,
        "precision": PRECISION,
        "clock_mhz": DeviceView.of(find(DEVICE)).clock_mhz,
        "rows": len(rows),
        "families": len({row.family for row in rows}),
        "log_half_width": round(half, 3),
        "groups": {
            name: {
                "arithmetic": round(float(offsets[0, i]), 3),
                "memory": round(float(offsets[1, i]), 3),
                "layer_us": round(1e3 * float(offsets[2, i]), 2),
            }
            for i, name in enumerate(GROUPS)
        },
    }


if __name__ == "__main__":
    typer.run(main)
