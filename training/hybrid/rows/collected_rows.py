"""Sets of our own → rows that the default predictor learns from, as from any other table.

A measured point gives a row for each regime of time: the wall of a step (W), the span between
events around it (E), and the sum of its kernels (K). Events are recorded between launches and not
waited for, so they are a table of their own, with its own time of a launch; wall and kernels are
one table, for what they differ in is what the law says. Of an operator the figure with cold caches
counts where there is one, for the roofline of a kernel reads its operands from memory.
`collected_kernels` gives rows of single operators amid a model.

Of a whole model two kinds of label say nothing of kernels and do not teach (`rows_that_teach`). A
sum of kernels that are short in the mean: a profiler sees each from its begin to its end, some
2,000 cycles of the 3,400 from one beginning to the next (`LAUNCH_CYCLES`), so the sum would teach
that short kernels take no time. And a step or span in which the GPU waits for the host, whose time
is the host's own: that of an unknown machine is the launch time that other tables usually have.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.collected.exclusions import exclusions
from dataset.collected.join import convert
from dataset.join.graph_store import GraphStore
from dataset.join.grouping import architecture_id, family_of
from dippm.devices import Device, MigProfile, find
from dippm.errors import DippmError
from dippm.estimate.conditions import Timer
from dippm.measure.collected.rows import collected
from dippm.measure.protocol import Phase
from dippm.measure.timing import Letter, times_of
from training.hybrid.rows.examples import COLLECTED, Row
from training.hybrid.rows.sources import kept_half

TIMERS: Mapping[Letter, Timer] = {"W": "wall", "E": "event", "K": "kernel"}
"""What a regime is to the predictor."""
EVENTS = "events"
"""Ends the name of a table of spans between events."""
INFERENCE = "inference: for the predictor of inference"
COMPILED_STEP = "compiled training step: no predictor answers for one"
CPU = "a CPU ran it: this predictor has GPUs only, `training.pmgns.train_own` learns from it"
TRAINING = "training step: for the predictor of training steps"
NO_GRAPH = "no graph"
PREDICTS: Mapping[Phase, str] = {"inference": "inference", "train": "training steps"}
LONG_KERNEL_MS = 0.02
"""Shortest mean time of kernels in ms whose sum teaches: ten times what a launch leaves out."""
GPU_BOUND = 0.8
"""Smallest share of kernels in a step or span that teaches."""
MOST_OF_STEP = 1.1
"""Largest ratio of the kernels of a profiled step to the time of a step without a profiler: of 570
points three have more, up to 3.6, whose profiled step was another one."""


class NothingToLearnError(DippmError, ValueError):
    """A collected set has no row that the default predictor can learn from."""


@dataclass(frozen=True, slots=True)
class CollectedSet:
    """The usable rows of one phase of a collected folder, on a GPU, with a graph each.

    Attributes:
        source: "collected/" and the name of the folder.
        folder: that the collector wrote.
        records: rows by name of `dippm.measure.columns`.
        left_out: how many rows were left out, by reason.
        digest: of the rows; what was made of others must not be taken for theirs.
    """

    source: str
    folder: Path
    records: tuple[Mapping[str, Any], ...]
    left_out: Mapping[str, int]
    digest: str

    def __str__(self) -> str:
        away = [f"  left out: {n:,} rows: {why}" for why, n in self.left_out.items()]
        return "\n".join([f"{self.source}: {len(self.records):,} rows teach", *away])

    @property
    def models(self) -> tuple[str, ...]:
        """Names of what was measured, each once."""
        return tuple(dict.fromkeys(record["model"] for record in self.records))


def read_collected(
    folder: Path, graphs: Path, workers: int = 1, *, phase: Phase = "inference"
) -> CollectedSet:
    """Read a collected folder and convert its models by name where their graphs are missing.

    Args:
        folder: that the collector wrote.
        graphs: folder of raw graphs.
        workers: processes that convert.
        phase: of the rows: those of training steps are for another predictor.

    Raises:
        RowsNotFoundError: if the folder has no rows.
        NothingToLearnError: if none of them can teach.
        UnknownNameError: if the catalogue lacks the GPU.
    """
    table = collected(folder).rows
    reasons = _reasons(table, phase)
    usable = table[reasons.isna()]
    convert(list(dict.fromkeys(usable["model"])), graphs, workers)
    store = GraphStore(graphs)
    missing = ~usable["model"].map(lambda model: model in store)
    reasons.loc[missing.index[missing]] = NO_GRAPH
    left_out = dict(Counter(reasons.dropna()).most_common())
    kept = table[reasons.isna()]
    if kept.empty:
        raise NothingToLearnError(
            f"no row of {folder} teaches the predictor of {PREDICTS[phase]}: "
            + "; ".join(f"{n:,} rows: {why}" for why, n in left_out.items()),
            "Give a set that `python -m dataset.collect` measured on a GPU of `dippm devices`.",
        )
    for device in kept["device"].unique():
        find(device)
    records: list[dict[str, Any]] = [
        {name: None if _is_null(value) else value for name, value in record.items()}
        for record in kept.to_dict("records")
    ]
    ids = "\n".join(sorted(record["row_id"] for record in records))
    digest = hashlib.sha256(ids.encode()).hexdigest()[:12]
    source = f"{COLLECTED}/{folder.resolve().name}"
    return CollectedSet(source, folder, tuple(records), left_out, digest)


def rows_of(found: CollectedSet, graphs: GraphStore) -> list[Row]:
    """Return the rows of every point, in its regimes."""
    kin = kin_of(found, graphs)
    return [
        row
        for record in found.records
        for row in _in_regimes(row_of(record, found.source, *kin[record["model"]]), record)
    ]


def rows_that_teach(found: CollectedSet, points: Sequence[Row]) -> list[Row]:
    """Return the rows of `rows_of` whose time is that of kernels; see the module docstring.

    Operators are measured alone, long ones only (`dataset.plan.campaign.LONG_ENOUGH_S`): all teach.

    Raises:
        NothingToLearnError: if none does.
    """
    records = {record["row_id"]: record for record in found.records}
    taught = [row for row in points if _is_of_kernels(row, records[row.point])]
    if not taught:
        raise NothingToLearnError(
            f"no row of {found.folder} teaches the predictor of inference: the host or kernels "
            f"below {1e3 * LONG_KERNEL_MS:g} µs take the time of all of its {len(points):,}",
            "Measure larger batches, for which the GPU takes longer than the host.",
        )
    return taught


def _is_of_kernels(row: Row, record: Mapping[str, Any]) -> bool:
    kernel_ms = record["kernel_ms"]
    if not row.is_model or not kernel_ms:
        return True  # nothing says that it is not
    if row.timer == "kernel":
        return has_long_kernels(record) and has_own_kernels(record)
    return bool(kernel_ms / row.latency_ms >= GPU_BOUND)


def has_long_kernels(record: Mapping[str, Any]) -> bool:
    """Tell whether the sum of the kernels of a point says how long they take."""
    kernel_ms, launches = record["kernel_ms"], record["kernel_launches"]
    return not launches or bool(kernel_ms / launches >= LONG_KERNEL_MS)


def has_own_kernels(record: Mapping[str, Any]) -> bool:
    """Tell whether the profiled kernels of a point are those of the step that was timed."""
    return bool((record["kernel_ms"] or 0.0) <= MOST_OF_STEP * record["latency_ms"])


def row_of(record: Mapping[str, Any], source: str, architecture: str, family: str) -> Row:
    """Return the row of a point by the wall."""
    device, software = find(record["device"]), _software(record)
    is_model = record["kind"] == "model"
    return Row(
        row_id=record["row_id"],
        source=source,
        table=" ".join([source, device.name, software, record["mode"]]),
        device=device,
        timer="wall",
        precision=record["precision"],
        mode=record["mode"],
        channels_last=bool(record["channels_last"]),
        batch=int(record["batch"]),
        graph=record["model"],
        architecture=architecture if is_model else record["architecture"],
        family=family if is_model else f"operator {record['family']}",
        latency_ms=float(record["latency_ms"]),
        mig=slice_of(record, device),
        kept_half=kept_half(software),
        point=record["row_id"],
    )


def slice_of(record: Mapping[str, Any], device: Device) -> MigProfile | None:
    """Return the slice that a row ran on, None for a whole GPU.

    Raises:
        NothingToLearnError: if the catalogue does not list it.
    """
    name = record["mig_profile"]
    if name is None:
        return None
    for profile in device.mig_profiles:
        if profile.name == name:
            return profile
    raise NothingToLearnError(
        f"{device.name} has no MIG profile {name!r} in the catalogue",
        "Add it to mig_profiles in dippm/devices/catalog.toml.",
    )


def _in_regimes(row: Row, record: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the row in each regime; cold figures come last and replace warm ones."""
    for letter, timed in {timed.timer: timed for timed in times_of(record)}.items():
        if timed.latency_ms > 0:
            row_id = row.row_id if letter == "W" else f"{row.row_id} {letter}"
            yield replace(
                row,
                row_id=row_id,
                table=f"{row.table} {EVENTS}" if letter == "E" else row.table,
                timer=TIMERS[letter],
                latency_ms=timed.latency_ms,
            )


def _reasons(table: pd.DataFrame, phase: Phase) -> pd.Series[str]:
    reasons = exclusions(table)
    other = INFERENCE if phase == "train" else TRAINING
    reasons.loc[reasons.isna() & (table["phase"] != phase)] = other
    if phase == "train":
        reasons.loc[reasons.isna() & (table["mode"] != "eager")] = COMPILED_STEP
    reasons.loc[reasons.isna() & (table["device_kind"] != "cuda")] = CPU
    return reasons


def kin_of(found: CollectedSet, graphs: GraphStore) -> Mapping[str, tuple[str, str]]:
    """Return architecture and family of each model, as other tables of it have them."""
    return {model: (architecture_id(graphs[model]), family_of(model)) for model in found.models}


def _software(record: Mapping[str, Any]) -> str:
    cuda = f", cuda {record['cuda']}" if record["cuda"] else ""
    return f"{record['framework']}{cuda}"


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
