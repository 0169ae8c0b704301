"""Turn measurements on the user's machine into a device file that improves later predictions.

dippm calibrate rows.csv --device A100 --save my_a100.toml
dippm calibrate --measure --save my_gpu.toml
dippm predict model.onnx --device my_a100.toml
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dippm.base.files import open_regular, shown
from dippm.base.progress import counted
from dippm.base.written import csv_rows, decimal_number, whole_number
from dippm.devices import Device, find, is_catalogued
from dippm.devices.check import LOG_FACTOR, check_device
from dippm.errors import (
    CheckpointError,
    ConditionsError,
    DeviceError,
    DippmError,
    MeasurementError,
    shortened,
)
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.calibration import MeasuredRow, log_ms, no_offsets
from dippm.estimate.models.calibration import calibrate as fitted
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.place import device_of
from dippm.estimate.predictor import LoadedPredictor
from dippm.measure.calibration_rows import (
    BUDGET_S,
    QUICK,
    CalibrationRun,
    check_library,
    measure_rows,
    points_for,
)
from dippm.model.convert import read_graph, source_name
from dippm.model.frontends.registry import check_torch
from dippm.model.graph import ModelGraph

MOST_BYTES = 16 << 20
SHORTEST_MS, LONGEST_MS = 1e-5, 1e8
"""Valid latencies in ms: ten nanoseconds to a day."""
FURTHEST = LOG_FACTOR.high
"""Largest log ratio of a measurement to its prediction: the limit of a device file."""
NEEDED = ("model", "latency_ms")
COLUMNS = (
    *NEEDED,
    "batch",
    "precision",
    "mode",
    "timer",
    "input",
    "framework",
    "channels_last",
    "mig",
    "attention",
)
TRUE, FALSE = ("true", "1", "yes"), ("", "false", "0", "no")
EXAMPLE = "model,batch,precision,latency_ms\nresnet50.onnx,32,fp16,7.9"


class MeasuredRowsError(DippmError, ValueError):
    """A list of measurements cannot be used."""


def calibrate(
    rows: str | Path | Iterable[Mapping[str, Any]],
    device: str | Device,
    *,
    predictor: LoadedPredictor,
    name: str | None = None,
    software: str = "",
    trust: bool = False,
) -> Device:
    """Fit the predictor's factors for a device to measurements on it.

    Args:
        rows: path of a CSV file, or mappings, with COLUMNS: "model" as `dippm.predict` takes it,
            "latency_ms" of a synchronised forward pass unless "timer" says otherwise, and every
            condition that differs from batch 1, fp32, eager. About ten models are enough.
        device: device of the catalogue, or the user's own.
        predictor: loaded checkpoint of kind "hybrid".
        name: name of the calibrated device.
        software: software of the measurements, as a note in the file.
        trust: allow model files that can run code when they are read.

    Returns:
        The device with its calibration, see `dippm.devices.write_device`.

    Raises:
        MeasuredRowsError: if a row is invalid, naming the first.
        CheckpointError: if the checkpoint is of another kind.
    """
    base = device_of(device)
    found = base.measured_name
    plain = replace(base, name=found, calibration=None)
    checkpoint = predictor.checkpoint_for(plain)
    if not isinstance(checkpoint.predictor, Hybrid):
        raise CheckpointError(
            f"{checkpoint.name} cannot be calibrated", "Name a checkpoint of kind hybrid."
        )
    table, graphs = _table(rows), _Graphs(trust)
    measured = [
        _parse_row(row, number, plain, checkpoint.predictor, graphs)
        for number, row in enumerate(counted(table, len(table), "measured row"), 1)
    ]
    try:
        return check_device(
            replace(
                plain,
                name=name or f"{found} calibrated",
                aliases=(),
                calibration=replace(
                    fitted(measured, found),
                    made_on=datetime.now(UTC).date().isoformat(),
                    software=software,
                ),
            )
        )
    except DeviceError as error:
        raise MeasuredRowsError(f"the rows fit no device: {error.message}", error.hint) from error


def calibrate_here(
    rows: str | Path,
    device: str | Device | None = None,
    *,
    predictor: LoadedPredictor,
    budget_s: float = BUDGET_S,
    on: str | None = None,
    name: str | None = None,
) -> tuple[Device, CalibrationRun]:
    """Measure about ten architectures on a GPU of this machine, and calibrate with them.

    Args:
        rows: path of the CSV file to write; points that it already has are not measured again.
        device: device of the catalogue, or the user's own; None for the driver's name of the GPU.
        predictor: see `calibrate`.
        budget_s: time in seconds after which no further point is started.
        on: "cuda:0", ...; None is the first GPU.
        name: see `calibrate`.

    Returns:
        The device with its calibration and, where readable, its idle power; and a summary of the
        measurements.

    Raises:
        ConditionsError: if there is no such GPU, or `device` names another one.
        DeviceError: if the GPU is not in the catalogue and no device was given.
        MeasurementError: if nothing could be measured.
        FrameworkNotInstalledError: if torch or timm is missing.
    """
    check_torch("measuring", extra="measure")
    check_library("timm")
    from dippm.measure.provenance import machine
    from dippm.measure.run import Bench
    from dippm.measure.subject import device_of as place_of

    place = place_of(on or "cuda:0")
    if place.type != "cuda":
        raise ConditionsError(
            "a CPU cannot be calibrated: what is predicted by kernels are GPUs",
            "Give cuda:0, cuda:1, ... as `on`.",
        )
    base = _base(device, machine(place))
    bench = Bench(place, QUICK)
    try:
        found = measure_rows(bench, points_for(base), Path(rows).expanduser(), budget_s=budget_s)
    finally:
        bench.close()
    if not found.measured and not found.kept:
        reason = next(iter(found.failed.items()), ("", "the time did not suffice for one point"))
        raise MeasurementError(
            f"nothing was measured: {': '.join(filter(None, reason))}",
            "`dippm doctor` shows what works on this machine; more time: budget_s=900.",
        )
    own = calibrate(rows, base, predictor=predictor, name=name, software=found.software)
    limit_w, idle_w = own.power_limit_w, found.idle_power_w
    if idle_w is not None and (limit_w is None or idle_w < limit_w):
        own = check_device(replace(own, idle_power_w=round(idle_w, 1)))
    return own, found


def _base(device: str | Device | None, here: Mapping[str, Any]) -> Device:
    """Return the device to calibrate: the given one, or that of this machine."""
    found = here["device"]
    if here.get("mig_profile"):
        raise ConditionsError(
            f"this is the slice {here['mig_profile']} of a GPU: a calibration needs the whole GPU",
            "Measure on a GPU that is not sliced.",
        )
    if device is None:
        if not is_catalogued(found):
            raise DeviceError(
                f"{shortened(found)} is not in the catalogue",
                "Describe it in a file and give that as `device`: docs/add_a_gpu.md shows one.",
            )
        return find(found)
    given = device_of(device)
    if is_catalogued(given.measured_name) and find(given.measured_name).name != found:
        raise ConditionsError(
            f"{given.name} was asked for, and the GPU of this machine is {shortened(found)}",
            "Leave the device out, or name the GPU that is measured on.",
        )
    return given


class _Graphs:
    """Graphs of the rows' models, each converted once."""

    def __init__(self, trust: bool) -> None:
        self.trust = trust
        self._held: dict[tuple[str, ...], ModelGraph] = {}

    def of(self, row: Mapping[str, Any]) -> ModelGraph:
        """Return the graph of a row's model."""
        source, input = row["model"], row.get("input") or None
        framework = row.get("framework") or None
        key = (str(source), str(framework), str(input))
        named = isinstance(source, str | Path)
        if not named or key not in self._held:
            graph = read_graph(source, framework, input=input, trust=self.trust)
            if not named:
                return graph
            self._held[key] = graph
        return self._held[key]


def _parse_row(
    row: Mapping[str, Any], number: int, device: Device, predictor: Hybrid, graphs: _Graphs
) -> MeasuredRow:
    try:
        conditions = Conditions(
            device=device,
            batch=_number(row.get("batch") or 1, "batch", whole_number),
            precision=row.get("precision") or "fp32",
            mode=row.get("mode") or "eager",
            timer=row.get("timer") or "wall",
            mig=row.get("mig") or None,
            channels_last=_truth(row.get("channels_last") or "", "channels_last"),
            attention=row.get("attention") or "fused",
        )
        latency_ms = float(_number(row["latency_ms"], "latency_ms", decimal_number))
        if not SHORTEST_MS <= latency_ms <= LONGEST_MS:
            raise ValueError(f"latency_ms is {latency_ms:g}: no latency in ms")
        graph = graphs.of(row)
        [answer] = predictor.predict_many(graph, [conditions])
        before = answer.values.get("latency_ms")
        measured = MeasuredRow(
            source_name(row["model"]),
            *predictor.class_ms(graph, conditions),
            latency_ms,
            f"{conditions.mode} {conditions.precision}",
            None if before is None else before.value,
        )
        predicted_ms = math.exp(log_ms([measured], no_offsets())[0].item())
        if abs(math.log(latency_ms / predicted_ms)) > FURTHEST:
            raise ValueError(
                f"latency_ms is {latency_ms:g}, where {predicted_ms:.3g} ms are predicted"
            )
    except DippmError as error:
        raise MeasuredRowsError(f"row {number}: {error.message}", error.hint) from error
    except ValueError as error:
        raise MeasuredRowsError(
            f"row {number}: {shortened(str(error))}", f"For example:\n{EXAMPLE}"
        ) from error
    return measured


def _number(value: Any, column: str, read: Callable[[str], float]) -> Any:
    """Return the number in a cell, given as text or as a number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if math.isfinite(value) else read(f"{value}")
    try:
        return read(str(value))
    except ValueError as error:
        raise ValueError(f"{column}: {shortened(str(error))}") from error


def _truth(value: Any, column: str) -> bool:
    word = str(value).strip().casefold()
    if word not in TRUE and word not in FALSE:
        raise ValueError(f"{column} is {shortened(str(value))!r}, neither true nor false")
    return word in TRUE


def _table(rows: str | Path | Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    table = _read(Path(rows).expanduser()) if isinstance(rows, str | Path) else list(rows)
    if not table:
        raise MeasuredRowsError("no measurement was given", f"For example:\n{EXAMPLE}")
    for number, row in enumerate(table, 1):
        missing = [name for name in NEEDED if not row.get(name)]
        unknown = [name for name in row if name not in COLUMNS]
        if missing or unknown:
            what = f"has no {missing[0]}" if missing else f"has the column {unknown[0]!r}"
            raise MeasuredRowsError(f"row {number} {what}", f"Columns: {', '.join(COLUMNS)}.")
    return table


def _read(path: Path) -> list[Mapping[str, Any]]:
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise MeasuredRowsError(
                f"{shown(path)} is larger than {MOST_BYTES >> 20} MiB", "Give fewer rows."
            )
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise MeasuredRowsError(
            f"{shown(path)} cannot be read: {error.strerror}", "Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise MeasuredRowsError(f"{shown(path)} is not text", "Write the rows as CSV.") from error
    try:
        rows = csv_rows(text)
    except ValueError as error:
        raise MeasuredRowsError(f"{shown(path)}: {error}", f"For example:\n{EXAMPLE}") from error
    head = [name.strip().casefold() for name in rows[0]] if rows else []
    if twice := sorted(name for name, count in Counter(head).items() if count > 1):
        raise MeasuredRowsError(
            f"{shown(path)} has the column {shortened(twice[0])!r} twice", "Keep one of them."
        )
    found: list[Mapping[str, Any]] = []
    for number, cells in enumerate(rows[1:], 1):
        if not any(cells):
            continue
        if len(cells) != len(head):
            raise MeasuredRowsError(
                f"row {number} has {len(cells)} values for {len(head)} columns",
                'Put sizes into quotes: "3,224,224".',
            )
        found.append({n: cell.strip() for n, cell in zip(head, cells, strict=True)})
    return found
