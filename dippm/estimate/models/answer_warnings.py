"""Warnings of an answer of `hybrid`: what was never measured, what was assumed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from math import exp, expm1, log, sqrt

from dippm.devices import Device, find, is_catalogued, named_host_log_sd
from dippm.devices.device import FEWEST_LAUNCHES
from dippm.estimate.conditions import Conditions, same_arithmetic
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import USUAL_CLOCK_MHZ, serial_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.intervals import FEATURES, Z90, IntervalLaw, IntervalTerms
from dippm.estimate.models.phases import PhaseModel
from dippm.estimate.models.targets import Estimate, HostUse
from dippm.model.graph.model_graph import ModelGraph

HOST_DECIDES = 0.5
"""Share of the latency from which on an answer says that it depends on the host."""
NORMS_DECIDE = 0.15
"""Share of the latency from which on an answer says that batch norms wait for single loads."""
_LAUNCHES = FEATURES.index("log_launches")
_BATCH_NORM = tuple(KERNEL_CLASSES).index("batch_norm")


def graph_warnings(
    graph: ModelGraph, table: KernelTable, device: Device, measured_classes: Collection[str]
) -> Iterator[str]:
    """Name operators and kernels of which little is known.

    Args:
        graph: the model.
        table: its kernels.
        device: the device.
        measured_classes: classes of kernels that the checkpoint learned from.
    """
    unknown = dict(graph.unknown_ops)
    if unknown:
        listed = ", ".join(f"{name} ×{count}" for name, count in sorted(unknown.items()))
        yield f"operators without a cost rule, taken as memory-bound: {listed}"
    classes = tuple(KERNEL_CLASSES)
    launched = {classes[k] for k in set(table.kind.tolist())}
    unseen = sorted(launched - set(measured_classes))
    if unseen:
        yield f"kernel classes never measured: {', '.join(unseen)}"
    if (table.unit == UNITS.index("int8")).any():
        rate = "rate" if "int8" in device.peak_tflops else "rate, taken as that of fp16,"
        yield (
            f"8-bit products were never measured: estimated by {device.name}'s int8 {rate} "
            "with the efficiency of half precision"
        )


def device_warnings(
    c: Conditions, measured: Mapping[str, Sequence[str]], phase: PhaseModel, launches: float
) -> Iterator[str]:
    """Yield what is not known of a device, or was never measured on it.

    Args:
        c: the conditions.
        measured: precisions by name of the devices that the checkpoint learned from.
        phase: phase of the checkpoint.
        launches: number of launches of the graph.
    """
    device = c.device
    changed = _changed(device)
    if changed:
        yield f"{device.name} differs from the catalogue's in {', '.join(changed)}"
    if device.boost_clock_mhz is None:
        yield (
            f"the boost clock of {device.name} is not known: short kernels are taken to run "
            f"at {USUAL_CLOCK_MHZ:,} MHz (boost_clock_mhz)"
        )
    precisions = measured.get(device.name)
    if device.calibration:
        if launches >= FEWEST_LAUNCHES and not device.calibration.has_models:
            yield (
                f"{device.name} was calibrated with single operators alone, which say little "
                "of whole models: about ten models say more"
            )
    elif precisions is None:
        yield phase.never_measured(device.name)
    elif not set(precisions).intersection(same_arithmetic(device, c.precision)):
        yield f"{c.precision} was never measured on {device.name}, only {', '.join(precisions)}"
    if device.is_of_another_vendor:
        yield (
            f"{device.name} is not an NVIDIA GPU: which kernels are launched, memory and power "
            "follow laws of NVIDIA's, and so do the intervals"
        )


def batch_warnings(batch: int, measured: Sequence[int]) -> Iterator[str]:
    """Yield a warning if a batch is outside of the measured (smallest, largest)."""
    low, high = measured
    if not low <= batch <= high:
        yield f"batch {batch} is outside of what was measured ({low} to {high})"


def calibration_warnings(c: Conditions, terms: IntervalTerms, law: IntervalLaw) -> Iterator[str]:
    """Yield the reasons for a wide interval of a calibrated device."""
    found, name = c.device.calibration, c.device.name
    if found is None or not found.has_models or terms.features[_LAUNCHES] < log(FEWEST_LAUNCHES):
        return
    if not found.models:
        yield (
            f"the calibration of {name} does not say how far models left out of it were off (fewer "
            "than three, or a file of an older version): the interval is that of a GPU without a "
            "calibration; measure about ten models and run `dippm calibrate` again"
        )
    elif terms.own is None:
        what = "training steps" if c.phase != "inference" else f"{c.mode} {c.precision}"
        yield (
            f"{name} was calibrated without {what}: the interval is that of a GPU without a "
            "calibration"
        )
    elif terms.is_widened(law, Z90):
        yield (
            f"models left out of the calibration of {name} were ±"
            f"{100 * expm1(terms.own.left_out):.0f} % off, more than on other GPUs: the interval "
            "is wider than it was without the calibration; `dippm calibrate` names the models"
        )


def host_warnings(host: HostUse, latency: Estimate, phase: str) -> Iterator[str]:
    """Yield a warning if a latency depends on its host, with what naming it does to the interval.

    Args:
        host: the machine, and its share of the latency.
        latency: the latency with its interval.
        phase: "inference" or "train".
    """
    if host.share < HOST_DECIDES:
        return
    text = (
        f"the host decides this latency: {host.launches:,} launches at {host.launch_us:.1f} µs each"
    )
    if host.assumed:
        machines = Z90 * host.log_sd
        whole = log(latency.interval.high / latency.value)
        of_models = Z90 * named_host_log_sd(phase)
        law = max(whole**2 - (machines * host.share) ** 2, 0.0)
        named = sqrt(law + (of_models * host.share) ** 2)
        text += (
            f", the time of {host.name}, which was assumed; machines differ by a factor of "
            f"{exp(machines):.1f} either way: give your machine's (`--host`, `dippm hosts` lists "
            f"some), and the interval is a factor of {exp(named):.2f} either way, not "
            f"{exp(whole):.2f}; models differ on one machine as well"
        )
    yield f"{text}; a larger batch or compiled mode is less bound to it"


def layout_warnings(
    table: KernelTable, c: Conditions, total_ms: float, all_serial_ms: float
) -> Iterator[str]:
    """Yield a warning if `channels_last` would spare a step much of the time of its batch norms.

    Args:
        table: kernels of the step.
        c: the conditions.
        total_ms: latency in ms.
        all_serial_ms: serial steps of all kernels, see `KernelTimes`.
    """
    if all_serial_ms < NORMS_DECIDE * total_ms:
        return
    norms_ms = serial_ms(table, c.batch)[table.kind == _BATCH_NORM].sum()
    if norms_ms >= NORMS_DECIDE * total_ms:
        yield (
            f"batch norms wait {norms_ms:.3g} ms for single loads (memory latency): PyTorch's "
            f"kernel for {c.precision} images held channels first has one block of threads for "
            "each channel; channels_last (`--channels-last`) spares it"
        )


def _changed(device: Device) -> list[str]:
    """Return the fields in which a device is not the one of the catalogue that has its name."""
    if not is_catalogued(device.name):
        return []
    known = find(device.name)
    return [f.name for f in fields(device) if getattr(device, f.name) != getattr(known, f.name)]
