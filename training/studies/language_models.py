"""Prompts and decode steps of language models compared with all measured rows.

    python -m training.studies.language_models [--data-dir DIR] [--source NAME] [--host US]

Steps are composed of single kernels, see `dippm.decide.language`. No decode step of these tables
was used in training; the prompts of optimum-benchmark in half precision were (column "trained").
Where launches by the host limit a step, the time per launch is not recorded: it is fitted to one
group of rows (`--fit`, batch 1), which is left out of the errors, or given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from dippm.decide.language.corrections import shipped_corrections
from dippm.decide.language.kernels import Pass
from dippm.decide.language.passes import PassCost, Passes
from dippm.decide.language.reading import read_decoder
from dippm.decide.language.setting import ServingSetting, format_of, half_precision
from dippm.devices import find, host_of
from dippm.errors import DippmError
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.hybrid import Hybrid
from training.language.measured_steps import SOURCES, MeasuredStep
from training.language.shapes import SHAPES

FITTED_ON = ("llama-2-7b none", "llama2-70b a100-80gb", "llama2-70b h100-80gb")
"""Groups whose rows at batch 1 determine the launch time, one for each GPU of a source."""
CONTEXTS = 5


class Held:
    """Predictions for measured rows; passes of the same setting share their kernels."""

    def __init__(self, hybrid: Hybrid, launch_us: Mapping[str, float | None]) -> None:
        self.hybrid, self.launch_us = hybrid, launch_us
        self._passes: dict[tuple[object, ...], Passes] = {}

    def passes(self, row: MeasuredStep) -> Passes:
        """Return the passes of a row's setting."""
        key = (row.shape, row.device, row.gpus, row.software, row.precision, row.weights)
        if key not in self._passes:
            device = find(row.device)
            precision = half_precision(row.precision)
            conditions = Conditions(
                device=device,
                batch=1,
                precision=precision,
                host=host_of(self.launch_us.get(row.device)),
            )
            setting = ServingSetting(
                conditions,
                row.prompt,
                row.generated,
                format_of(row.weights or row.precision, device),
                row.precision,
                row.gpus,
                row.software,
            )
            decoder = read_decoder({**SHAPES[row.shape], "_name_or_path": row.shape})
            self._passes[key] = Passes(self.hybrid, decoder, setting, shipped_corrections())
        return self._passes[key]

    def first(self, row: MeasuredStep) -> PassCost:
        """Return the cost of the prompts; transformers scored all of their tokens in 2023."""
        scored = row.prompt if row.software == "eager" else 1
        return self.passes(row).cost(Pass(row.batch, row.prompt, row.prompt, scored))

    def steps(self, row: MeasuredStep) -> list[PassCost]:
        """Return the cost of some decode steps over the contexts of a row."""
        places = np.linspace(row.prompt + 1, row.prompt + row.generated - 1, CONTEXTS)
        passes = self.passes(row)
        return [passes.cost(Pass.decode(row.batch, int(place))) for place in places]


def errors(held: Held, rows: Sequence[MeasuredStep]) -> list[dict[str, object]]:
    """Return the relative errors of each row, with the coverage of the intervals."""
    found = []
    for row in rows:
        one: dict[str, object] = {"row": row}
        steps = held.steps(row)
        if row.step_ms is not None:
            ms = float(np.mean([s.latency_ms.value for s in steps]))
            low, high = (
                float(np.mean([getattr(s.latency_ms.interval, end) for s in steps]))
                for end in ("low", "high")
            )
            one["step"] = ms / row.step_ms - 1
            one["step held"] = low <= row.step_ms <= high
        first = None
        if row.first_ms is not None or row.joules_per_token is not None:
            first = held.first(row)
        if row.first_ms is not None and first is not None:
            one["first"] = first.latency_ms.value / row.first_ms - 1
        joules = [s.energy_j.value for s in steps if s.energy_j is not None]
        if row.joules_per_token is not None and first is not None and first.energy_j and joules:
            step_j = float(np.mean(joules)) * (row.generated - 1) + first.energy_j.value
            each = step_j / (row.batch * row.generated)
            one["energy"] = each / row.joules_per_token - 1
            one["energy at the measured time"] = _timed_energy(held, row) / row.joules_per_token - 1
        found.append(one)
    return found


def _timed_energy(held: Held, row: MeasuredStep) -> float:
    """Return joules per token at the measured duration of a step, idle outside its kernels."""
    assert row.step_ms is not None
    passes = held.passes(row)
    done = Pass.decode(row.batch, row.prompt + row.generated // 2)
    watts = passes.power_w(done, row.step_ms)
    return row.gpus * watts * row.step_ms / 1e3 / row.batch


def fitted_launch_us(hybrid: Hybrid, rows: Sequence[MeasuredStep]) -> float:
    """Return the host time per launch in µs, fitted to rows at batch 1."""
    held = Held(hybrid, {row.device: 1.0 for row in rows})
    ratios = []
    for row in rows:
        cost = held.steps(row)[0]
        if row.step_ms is not None and cost.latency_ms.value < row.step_ms:
            exchanged = cost.exchange_ms
            ratios.append(1e3 * (row.step_ms - exchanged) / cost.launches)
    return median(ratios)


def table_of(found: Sequence[dict[str, object]], what: str) -> Table:
    """Return errors of one kind by group."""
    table = Table("group", "batch", "rows", "mean |e| %", "median |e| %", "90 % below", "bias %",
                  title=what)  # fmt: skip
    groups: dict[tuple[str, str], list[float]] = {}
    for one in found:
        if what not in one:
            continue
        row, error = one["row"], one[what]
        assert isinstance(row, MeasuredStep)
        assert isinstance(error, float)
        size = "1" if row.batch == 1 else "2–8" if row.batch <= 8 else "above 8"
        format_ = row.weights or "half precision"
        for key in ((row.group, size), (f"all {format_}", ""), (f"all {format_}", size)):
            groups.setdefault(key, []).append(100 * error)
    for (group, size), values in sorted(groups.items()):
        away = np.abs(values)
        numbers = (away.mean(), np.median(away), np.percentile(away, 90), np.median(values))
        table.add_row(group, size, str(len(values)), *(f"{x:.1f}" for x in numbers))
    return table


def main(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the measured tables.")] = None,
    source: Annotated[str, typer.Option(help=", ".join(SOURCES))] = "optimum_benchmark",
    host: Annotated[float | None, typer.Option(help="Host time of a launch in µs.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Take the host's time from batch 1.")] = False,
    every: Annotated[int, typer.Option(help="Take every n-th row.")] = 1,
) -> None:
    """Print errors by group."""
    rows, console = SOURCES[source](data_dir), Console(width=120)
    hybrid = pretrained.load(pretrained.find(None).path).predictor
    assert isinstance(hybrid, Hybrid)
    hosts = {row.device: host for row in rows}
    for group in FITTED_ON if fit else ():
        known = [row for row in rows if row.group == group and row.batch == 1]
        if known:
            device = known[0].device
            hosts[device] = fitted_launch_us(hybrid, known)
            console.print(f"host of {device}: {hosts[device]:.1f} µs, {len(known)} rows of {group}")
            rows = [row for row in rows if row not in known]
    kept, refused = [], 0
    held = Held(hybrid, hosts)
    for row in rows[::every]:
        try:
            held.passes(row)
        except DippmError as error:
            refused += 1
            console.print(f"left out: {row.shape} on {row.gpus} GPUs: {error.message}")
        else:
            kept.append(replace(row))
    found = errors(held, kept)
    for what in ("step", "first", "energy", "energy at the measured time"):
        if any(what in one for one in found):
            console.print(table_of(found, what))
    inside = [bool(one["step held"]) for one in found if "step held" in one]
    if inside:
        console.print(f"90 % intervals of steps hold {100 * np.mean(inside):.0f} %")


if __name__ == "__main__":
    typer.run(main)
