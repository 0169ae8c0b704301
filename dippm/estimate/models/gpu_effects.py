"""How much slower, or faster, the units of a GPU run than the law that all GPUs share says.

A kernel k on a GPU g in a mode m takes

    t = roofline · exp(law(k) + w · e[g, m, class, unit] + (1 - w) · e[g, m, class, "bytes"])
    w = c⁴ / (c⁴ + b⁴)

where c and b are the times of its arithmetic and of its bytes at peak rates: what a GPU does to its
tensor cores says nothing of its memory. The effects are those of the GPU alone. What belongs to the
laboratory that measured it (software, driver, machine) was told apart when they were fitted
(`training/hybrid/fit/effects.py`) and is no part of an answer but of its interval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Device
from dippm.devices.hosts import KindOfBoard, kind_of_board
from dippm.estimate.conditions import Conditions, Mode
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import FEATURE_UNITS, DeviceView, roofline_parts_ms
from dippm.estimate.features.kernel_table import KernelTable

Floats = NDArray[np.float64]
EFFECT_UNITS = (*FEATURE_UNITS, "bytes")
BYTES = len(FEATURE_UNITS)
"""Column of byte traffic."""
_HALF, _FP32 = FEATURE_UNITS.index("half"), FEATURE_UNITS.index("fp32")
SHARPNESS = 4.0
"""How fast a kernel changes from its bytes to its arithmetic around the ridge of the roofline."""
CLASSES_LEAVE = 0.5
"""Share of a standard deviation between classes that is left of it in the sum of a model."""
ANY_MEMORY = "any"
"""In place of `Device.memory_family` where it is not known."""
_ARITHMETIC = np.array([UNITS.index("half") if u == "int8" else UNITS.index(u) for u in UNITS])
"""Column of the arithmetic of each unit; products of integers were never measured: as half."""


class GpuEffects:
    """The effects of measured GPUs, and what others take.

    Args:
        of_gpus: log slow-downs by (GPU, mode), shape (classes, len(EFFECT_UNITS)).
        defaults: log slow-downs of GPUs that were not measured, by (memory family or ANY_MEMORY,
            mode).
        laboratory_log_sd: standard deviation of the log time between laboratories.
        with_table_head: each (GPU, mode) whose answers mean what one laboratory measured, see
            `KernelLaw.table_heads`.
        laboratories: mean log slow-down of the laboratories by kind of board, which a GPU that was
            not measured takes.
        kernel_timer: log ratio of the sum of the times of kernels to a clock around a pass.
    """

    def __init__(
        self,
        of_gpus: Mapping[tuple[str, Mode], Floats],
        defaults: Mapping[tuple[str, Mode], Floats],
        laboratory_log_sd: float = 0.0,
        with_table_head: Collection[tuple[str, str]] = (),
        laboratories: Mapping[KindOfBoard, float] | None = None,
        kernel_timer: float = 0.0,
    ) -> None:
        self.of_gpus, self.defaults = of_gpus, defaults
        self.laboratory_log_sd = laboratory_log_sd
        self.with_table_head = frozenset(with_table_head)
        self.laboratories, self.kernel_timer = dict(laboratories or {}), kernel_timer

    @classmethod
    def from_law(cls, law: Mapping[str, Any]) -> GpuEffects:
        """Read the part "law" of a configuration.

        Checkpoints up to 0.9.1 have one number for each class whatever its unit: "tables" and
        "usual".
        """
        if "effects" in law:
            lines = law["effects"]
            of_gpus = {(line["device"], line["mode"]): _array(line["units"]) for line in lines}
            defaults = {
                (line["memory"], line["mode"]): _array(line["units"])
                for line in law["default_effects"]
            }
            with_table_head = [(line["device"], line["mode"]) for line in law.get("heads") or ()]
            spread = _between_laboratories(law["effect_spread"])
            return cls(
                of_gpus,
                defaults,
                spread,
                with_table_head,
                law.get("laboratories"),
                law.get("kernel_timer", 0.0),
            )
        of_gpus = {
            (line["device"], line["mode"]): _same_for_units(line["terms"]) for line in law["tables"]
        }
        defaults = {
            (family, mode): _same_for_units(offsets)
            for family, modes in law["usual"].items()
            for mode, offsets in modes.items()
        }
        return cls(of_gpus, defaults)

    def of(self, c: Conditions) -> Floats:
        """Return the effects under some conditions, shape (classes, len(EFFECT_UNITS))."""
        found = self.of_gpus.get((c.device.measured_name, c.mode))
        if found is None:
            family = c.device.memory_family or ANY_MEMORY
            found = self.defaults.get((family, c.mode), _NONE)
            found = found + self.laboratories.get(kind_of_board(c.device), 0.0)
            if not _has_tensor_cores(c.device):
                found[:, _HALF] = found[:, _FP32]
        return found + self.kernel_timer if c.timer == "kernel" else found

    def has_head(self, c: Conditions) -> bool:
        """Tell whether answers mean what one laboratory measured, see `KernelLaw.table_heads`."""
        return (c.device.measured_name, c.mode) in self.with_table_head

    def log_sd(self, c: Conditions) -> float:
        """Return what is not known of the laboratory of a question, standard deviation, log.

        0 where the owner calibrated, on a GPU whose answers mean what one laboratory measured, and
        on one that none did: intervals of these were fitted to rows of a laboratory held out.
        """
        key = (c.device.measured_name, c.mode)
        known = c.device.calibration is not None or self.has_head(c) or key not in self.of_gpus
        return 0.0 if known else self.laboratory_log_sd

    def kernel_log_slowdown(
        self, table: KernelTable, batch: int, view: DeviceView, c: Conditions, launches: float
    ) -> Floats:
        """Return what is added to the log slow-down of each kernel, shape (K,).

        What the owner of the GPU calibrated comes on top.

        Args:
            table: the kernels.
            batch: samples.
            view: of the device or slice.
            c: the conditions.
            launches: of the graph: its owner may have measured models, or single operators.
        """
        share = arithmetic_share(table, batch, view)
        added = effect_of_kernels(self.of(c), table.kind, effect_column(table.unit), share)
        calibrated = c.device.calibration
        if calibrated is None:
            return added
        own = np.array([calibrated.log_factor(kind, launches) for kind in KERNEL_CLASSES])
        return np.asarray(added + own[table.kind])


def effect_of_kernels(
    effects: Floats, kind: NDArray[np.int64], column: NDArray[np.int64], share: Floats
) -> Floats:
    """Return w · e[class, unit] + (1 - w) · e[class, "bytes"] of each kernel, shape (K,).

    Args:
        effects: of a GPU in a mode, shape (classes, len(EFFECT_UNITS)).
        kind: class of each kernel, shape (K,).
        column: of EFFECT_UNITS, that of its arithmetic, shape (K,).
        share: w, see the module docstring, shape (K,).
    """
    of_bytes = effects[kind, BYTES]
    return np.asarray(of_bytes + share * (effects[kind, column] - of_bytes))


def arithmetic_share(table: KernelTable, batch: int, view: DeviceView) -> Floats:
    """Return w of each kernel, see the module docstring, shape (K,)."""
    compute, memory = roofline_parts_ms(table, batch, view)
    steep = SHARPNESS * (np.log(np.maximum(memory, 1e-30)) - np.log(np.maximum(compute, 1e-30)))
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(steep, -60.0, 60.0))))


def effect_column(unit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the column of EFFECT_UNITS of arithmetic in these units."""
    return np.asarray(_ARITHMETIC[unit])


_NONE: Floats = np.zeros((len(KERNEL_CLASSES), len(EFFECT_UNITS)))


def _has_tensor_cores(device: Device) -> bool:
    """Tell whether half precision has units of its own: else what they do says nothing of it."""
    peak = device.peak_tflops
    return peak.get("fp16", 0.0) > 2.5 * peak.get("fp32", 0.0)


def _between_laboratories(spread: Mapping[str, float]) -> float:
    """Return the standard deviation of a model's log time between laboratories.

    A model has kernels of several classes, so that about half of what is a class's own cancels.
    """
    of_class = CLASSES_LEAVE * spread["source_class"]
    return float(np.sqrt(spread["source"] ** 2 + spread["laboratory"] ** 2 + of_class**2))


def _array(units: Mapping[str, Mapping[str, float]]) -> Floats:
    """Return log slow-downs by name of unit and class as an array; 0 where there is none."""
    return np.stack([by_class(units.get(unit, {})) for unit in EFFECT_UNITS], axis=1)


def _same_for_units(terms: Mapping[str, float]) -> Floats:
    """Return log slow-downs by name of class as an array: the same for all units."""
    return np.repeat(by_class(terms)[:, None], len(EFFECT_UNITS), axis=1)


def by_class(values: Mapping[str, float]) -> Floats:
    """Return values by name of class as an array, (classes,); 0 where there is none."""
    return np.array([values.get(name, 0.0) for name in KERNEL_CLASSES], dtype=np.float64)


def named_effects(effects: Floats) -> dict[str, dict[str, float]]:
    """Return an array of effects by name of unit and class, without what is 0."""
    return {
        unit: {
            name: rounded
            for name, value in zip(KERNEL_CLASSES, effects[:, column], strict=True)
            if (rounded := round(float(value), 5))
        }
        for column, unit in enumerate(EFFECT_UNITS)
    }
