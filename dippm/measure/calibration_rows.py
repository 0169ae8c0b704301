"""Measure rows for `dippm calibrate`: ten architectures at few points, within a time budget.

The architectures are built by name with random weights, so nothing is downloaded. Every prefix of
their order is useful: first each architecture once, at a batch limited by the GPU, then at batch 1,
limited by the host, then in float32. Each point is written to the CSV file when it is measured, and
is not measured again.
"""

from __future__ import annotations

import csv
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base.progress import tell
from dippm.devices import Device
from dippm.errors import DippmError, FrameworkNotInstalledError, MeasurementError, shortened
from dippm.estimate.conditions import Precision, supported_precisions
from dippm.measure.protocol import Regime, Settings

if TYPE_CHECKING:
    from dippm.measure.run import Bench

MODELS = (
    "timm:resnet50",
    "timm:vit_base_patch16_224",
    "timm:mobilenetv3_large_100",
    "timm:convnext_tiny",
    "timm:swin_tiny_patch4_window7_224",
    "timm:densenet121",
    "timm:vgg16",
    "timm:mixer_b16_224",
    "timm:efficientnet_b0",
    "timm:regnety_032",
)
"""Architectures dominated by different classes of kernels: dense, grouped and depthwise
convolutions, products, attention whole and in windows, norms, joins of channels."""
BATCHES = (32, 1)
HALF: tuple[Precision, ...] = ("fp16", "bf16")
COLUMNS = ("model", "batch", "precision", "latency_ms")
QUICK = Settings(warm_up_steps=5, timed_steps=30, settle_s=1.0, energy_window_s=0.0)
BUDGET_S = 300.0
IDLE_S = 2.0
"""Duration of the idle power measurement."""


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """A point to measure: a model by name, batch size, and precision."""

    model: str
    batch: int
    precision: Precision

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the columns that identify it in a CSV file."""
        return self.model, str(self.batch), self.precision


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """The result of `measure_rows`.

    Attributes:
        measured: number of points measured now.
        kept: number of rows that were in the file before.
        left: number of points that did not fit into the time budget.
        failed: reason by point that could not be measured, for instance out of memory.
        software: software of the measurements.
        idle_power_w: idle power of the board with a context; None if unreadable, see `absent`.
        context_mb: memory of a process before its first model; None likewise.
        absent: reason by quantity.
    """

    measured: int
    kept: int
    left: int
    failed: Mapping[str, str]
    software: str
    idle_power_w: float | None
    context_mb: float | None
    absent: Mapping[str, str]


def check_library(name: str) -> None:
    """Check that the library of the architectures is installed.

    Raises:
        FrameworkNotInstalledError: if it is missing.
    """
    if importlib.util.find_spec(name) is None:
        raise FrameworkNotInstalledError(
            f"{name} is not installed, whose architectures are measured",
            f"pip install dippm[{name}], or measure models of your own and give their rows.",
        )


def points_for(device: Device) -> tuple[CalibrationPoint, ...]:
    """Return the points for a GPU's formats, the most informative first."""
    formats = supported_precisions(device)
    half = next((precision for precision in HALF if precision in formats), None)
    first: Precision = half or "fp32"
    points = [CalibrationPoint(model, batch, first) for batch in BATCHES for model in MODELS]
    if half:
        points += [CalibrationPoint(model, BATCHES[0], "fp32") for model in MODELS]
    return tuple(points)


def measure_rows(
    bench: Bench,
    points: Sequence[CalibrationPoint],
    path: Path,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
) -> CalibrationRun:
    """Measure points that are not in a file of rows, and append each to it.

    Args:
        bench: measuring device.
        points: points in order.
        path: CSV file with COLUMNS; created if missing.
        budget_s: time in seconds after which no point is started.
        clock: returns seconds.

    Raises:
        MeasurementError: if the file has other columns, or cannot be written.
    """
    began, known = clock(), _known_points(path)
    todo = [point for point in points if point.key not in known]
    failed: dict[str, str] = {}
    idle, context = bench.counters.idle_power_w(IDLE_S), bench.context_mb
    software, done = "", 0
    for number, point in enumerate(todo):
        if clock() - began >= budget_s:
            break
        tell(f"measuring {point.model}, batch {point.batch}, {point.precision} "
             f"({number + 1} of {len(todo)})")  # fmt: skip
        done += 1
        try:
            columns = _measure_point(bench, point)
        except Exception as error:  # any error of a model; the others can still be measured
            failed[" ".join(point.key)] = shortened(
                error.message if isinstance(error, DippmError) else str(error) or repr(error)
            )
            continue
        software = _software(columns)
        _append(path, [*point.key, f"{columns['latency_median_ms']:.6g}"])
    absent = {
        name: value.reason
        for name, value in (("idle_power_w", idle), ("context_mb", context))
        if not isinstance(value, float | int)
    }
    return CalibrationRun(
        measured=done - len(failed),
        kept=len(known),
        left=len(todo) - done,
        failed=failed,
        software=software,
        idle_power_w=None if "idle_power_w" in absent else float(idle),  # type: ignore[arg-type]
        context_mb=None if "context_mb" in absent else float(context),  # type: ignore[arg-type]
        absent=absent,
    )


def _measure_point(bench: Bench, point: CalibrationPoint) -> dict[str, Any]:
    from dippm.measure.run import Wanted
    from dippm.measure.subject import load_subject
    from dippm.model.frontends import InputSpec

    subject = load_subject(
        point.model, InputSpec.parse(None), batch=point.batch, device=bench.device
    )
    wanted = Wanted(energy=False, kernels=False)
    return bench.measure(
        subject.module, subject.inputs, Regime(precision=point.precision), wanted=wanted
    )


def _software(columns: Mapping[str, Any]) -> str:
    parts = [columns["framework"], columns["cuda"] and f"CUDA {columns['cuda']}"]
    if driver := columns.get("driver"):
        parts.append(f"driver {driver}")
    return ", ".join(str(part) for part in parts if part)


def _known_points(path: Path) -> set[tuple[str, str, str]]:
    """Return the points in a file of rows; empty without a file."""
    if not path.exists():
        return set()
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _foreign_file_error(path) from error
    if any(set(row) != set(COLUMNS) for row in rows):
        raise _foreign_file_error(path)
    return {(row["model"], row["batch"], row["precision"]) for row in rows}


def _foreign_file_error(path: Path) -> MeasurementError:
    return MeasurementError(
        f"{path.name} is not a file of rows that `--measure` wrote",
        f"Its columns are {', '.join(COLUMNS)}. Give another path, or calibrate with these rows "
        "without `--measure`.",
    )


def _append(path: Path, cells: Iterable[str]) -> None:
    try:
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(COLUMNS)
            writer.writerow(cells)
    except OSError as error:
        raise MeasurementError(
            f"{path.name} cannot be written: {error.strerror}", "Give another path."
        ) from error
