"""Which formats and GPUs bound each other's times, whatever a network has learned.

A library that may use a wide unit for a kernel can still take the narrow one, and a GPU with more
of everything can do all that a smaller one does. Measurements bound the first rule: on a GPU whose
half-precision unit is no faster than its float32 unit (Pascal), converted models do take longer
than float32 ones (24 of 32 on a TITAN Xp), so nothing is said there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dippm.devices import Device, all_devices, find
from dippm.estimate.conditions import Precision, supported_precisions

BoundingGpus = tuple[tuple[Device, ...], tuple[Device, ...]]
"""The nearest smaller GPUs and the nearest larger ones."""
_FIGURES = ("sm_count", "bandwidth_gb_s", "l2_mb")
WIDE, HALF = "32 bits", "16 bits"
FORMATS: dict[Precision, str] = {
    "fp32": WIDE,
    "fp32-ieee": WIDE,
    "tf32": WIDE,
    "fp16": HALF,
    "bf16": HALF,
    "amp": HALF,
    "amp-bf16": HALF,
    "int8": HALF,
    "fp8": HALF,
}
"""Width of the operands of matrix products; measurements of one width say nothing of the other."""
_CONVERTED: dict[Precision, tuple[Precision, Precision]] = {
    "fp16": ("amp", "fp32"),
    "bf16": ("amp-bf16", "fp32"),
}


def never_faster(device: Device, precision: Precision) -> tuple[Precision, ...]:
    """Return the precisions whose kernels never take less time than those of a converted model."""
    if precision not in _CONVERTED or not device.peak_tflops:
        return ()
    autocast, plain = _CONVERTED[precision]
    has_unit = device.peak_tflops[precision] > device.peak_tflops.get("fp32", float("inf"))
    return (autocast, plain) if has_unit else (autocast,)


def neighbours(device: Device, measured: Iterable[str], precision: Precision) -> BoundingGpus:
    """Return the GPUs next to one: (next smaller, next larger measured one).

    A smaller one has less of everything or the same; of those the largest are returned, since they
    say the most, and of the larger ones the smallest. A smaller sibling need not be measured: its
    own place is found first. Next to a GPU that was measured itself are only measured ones with the
    same chip and less memory or bandwidth: tables of other chips say nothing better than its own.
    """
    names = tuple(measured)
    if device.name in names:
        kin = [found for found in map(find, names) if is_same_chip(device, found)]
        smaller = [found for found in kin if _is_above(device, found)]
        return tuple(d for d in smaller if precision in supported_precisions(d)), ()
    known = [found for found in map(find, names) if precision in supported_precisions(found)]
    guessed = [d for d in all_devices() if d.name not in names]
    usable = [d for d in guessed if precision in supported_precisions(d)]
    smaller = [found for found in known if _has_more(device, found)]
    smaller += [d for d in usable if is_sibling(device, d) and _is_above(device, d)]
    larger = [found for found in known if _has_more(found, device)]
    return (
        tuple(one for one in smaller if not any(_is_above(other, one) for other in smaller)),
        tuple(one for one in larger if not any(_is_above(one, other) for other in larger)),
    )


def is_same_chip(device: Device, other: Device) -> bool:
    """Tell whether two GPUs are boards of one chip, with as many multiprocessors."""
    return (device.architecture, device.sm_count) == (other.architecture, other.sm_count)


def is_sibling(device: Device, other: Device) -> bool:
    """Tell whether two GPUs are of one architecture and have one kind of memory."""
    return (device.architecture, device.memory_family) == (other.architecture, other.memory_family)


def _is_above(device: Device, other: Device) -> bool:
    return _has_more(device, other) and not _has_more(other, device)


def _has_more(device: Device, other: Device) -> bool:
    """Tell whether a device has as much of everything as another one, or more."""
    for name in _FIGURES:
        more, less = getattr(device, name), getattr(other, name)
        if more is None or less is None or more < less:
            return False
    rates = device.peak_tflops
    return all(rates.get(name, 0.0) >= rate for name, rate in other.peak_tflops.items())


class MonotonicBounds:
    """The formats and GPUs that bound each other's times in one predictor; results are kept.

    Args:
        measured: names of the GPUs with enough measurements, by WIDE and HALF.
    """

    def __init__(self, measured: Mapping[str, Sequence[str]]) -> None:
        self._measured = measured
        self._known: dict[tuple[Device, Precision], BoundingGpus] = {}

    def never_faster(self, device: Device, precision: Precision) -> tuple[Precision, ...]:
        """Return the precisions that are never faster, see the function of this name."""
        return never_faster(device, precision)

    def neighbours(self, device: Device, precision: Precision) -> BoundingGpus:
        """Return the (smaller, larger) GPUs next to one, see the function of this name."""
        key = device, precision
        if key not in self._known:
            measured = self._measured.get(FORMATS[precision], ())
            self._known[key] = neighbours(device, measured, precision)
        return self._known[key]
