"""Rows for `dippm calibrate`, measured here: ten architectures, few points, a time that is given.

The architectures are built by name with random weights, so nothing is downloaded. Their order makes
every prefix useful: first each architecture once, at a batch that the GPU decides, then at batch 1,
which the host decides, then in float32. What was measured stands in a CSV file after each point,
and is not measured again.
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
"""Architectures whose time goes to unlike classes of kernels: dense, grouped and depthwise
convolutions, products, attention whole and in windows, norms, joins of channels."""
BATCHES = (32, 1)
HALF: tuple[Precision, ...] = ("fp16", "bf16")
COLUMNS = ("model", "batch", "precision", "latency_ms")
QUICK = Settings(warm_up_steps=5, timed_steps=30, settle_s=1.0, energy_window_s=0.0)
BUDGET_S = 300.0
IDLE_S = 2.0
"""How long idle power is watched."""


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """What is measured once: a model by name, samples in a pass, and the precision."""

    model: str
    batch: int
    precision: Precision

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what a row of a CSV file has of it."""
        return self.model, str(self.batch), self.precision


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """What came of it.

    Attributes:
        measured: points of this run.
        kept: rows that were in the file before.
        left: points that the time did not suffice for.
        failed: reason by point that could not be measured, for instance for want of memory.
        software: that it was measured with.
        idle_power_w: of the board, with a context; None if it cannot be read, see `absent`.
        context_mb: of a process before its first model; None likewise.
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
    """Check that the library is there which the architectures are built with.

    Raises:
        FrameworkNotInstalledError: if it is missing.
    """
    if importlib.util.find_spec(name) is None:
        raise FrameworkNotInstalledError(
            f"{name} is not installed, whose architectures are measured",
            f"pip install dippm[{name}], or measure models of your own and give their rows.",
        )


def points_for(device: Device) -> tuple[CalibrationPoint, ...]:
    """Return the points in the order in which they say most, for the formats that a GPU has."""
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
    """Measure points that a file of rows does not have, and append them to it one by one.

    Args:
        bench: on the device.
        points: in order; those that the time does not suffice for are left.
        path: CSV file with COLUMNS; made if it is not there.
        budget_s: no point is begun after so long.
        clock: in seconds.

    Raises:
        MeasurementError: if the file is of other columns, or cannot be written.
    """
    began, known = clock(), _known(path)
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
            columns = _measured(bench, point)
        except Exception as error:  # whatever a model raises, the others can be measured
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


def _measured(bench: Bench, point: CalibrationPoint) -> dict[str, Any]:
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


def _known(path: Path) -> set[tuple[str, str, str]]:
    """Return the points of a file of rows; none if there is no file."""
    if not path.exists():
        return set()
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _not_ours(path) from error
    if any(set(row) != set(COLUMNS) for row in rows):
        raise _not_ours(path)
    return {(row["model"], row["batch"], row["precision"]) for row in rows}


def _not_ours(path: Path) -> MeasurementError:
    return MeasurementError(
        f"{path.name} is no file of rows that `--measure` wrote",
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
