"""`OrderedTimes`: the law's times at one batch, within its monotonic bounds.

A bound is an ordered time itself: that of another format, of the whole GPU for a slice, or of a
neighbouring GPU, which has neighbours of its own. Many points share their bounds, so all points
that a question leads to are collected first; those with the same kernels go through the law at
once, and none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log

import numpy as np

from dippm.devices import Device, MigProfile
from dippm.estimate.conditions import (
    Conditions,
    Mode,
    Precision,
    same_arithmetic,
    supported_precisions,
)
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms
from dippm.estimate.models.gpu_effects import arithmetic_share
from dippm.estimate.models.kernel_law import Floats, KernelTimes, Law, Place
from dippm.estimate.models.law_kernels import Integers, LawKernels
from dippm.estimate.models.monotonic_bounds import MonotonicBounds, is_same_chip
from dippm.estimate.models.power_limit import BoardPower

Point = tuple[Device, Precision, MigProfile | None, Mode]
"""Identity of the device, precision or the first that is the same, slice, mode."""

_SLOWER_COMPILED = np.array([row.slower_compiled for row in KERNEL_CLASSES.values()])


@dataclass(frozen=True, slots=True)
class Bounds:
    """The points whose ordered times bound those of another point.

    Attributes:
        slower: points whose total time is an upper bound of its total time.
        larger: points whose kernel times are lower bounds of its kernel times.
        smaller: points whose kernel times are upper bounds of its kernel times.
    """

    slower: Sequence[Conditions]
    larger: Sequence[Conditions]
    smaller: Sequence[Conditions]


class OrderedTimes:
    """Times of one model at one batch; results are kept between questions.

    Args:
        law: law of the kernels' unbounded times.
        monotonic_bounds: formats and GPUs that bound each other's times.
        kernels_of: function that returns the model's kernels under some conditions.
        batch: batch size in samples.
        boards: effect of low power limits; None if it is not known.
    """

    def __init__(
        self,
        law: Law,
        monotonic_bounds: MonotonicBounds,
        kernels_of: Callable[[Conditions], LawKernels],
        batch: int,
        boards: BoardPower | None = None,
    ) -> None:
        self._law, self._boards = law, boards
        self._monotonic_bounds = monotonic_bounds
        self._kernels_of, self._batch = kernels_of, batch
        self._bounds: dict[Point, Bounds] = {}
        self._lone: dict[Point, KernelTimes] = {}
        self._ordered: dict[Point, KernelTimes] = {}

    def at(self, c: Conditions) -> KernelTimes:
        """Return the ordered times under conditions of this batch."""
        found = self._in_its_mode(c)
        if c.mode == "eager":
            return found
        eager = _in_eager(c)
        others = [~_SLOWER_COMPILED[self._kinds(one)] for one in (c, eager)]
        mine_ms, most_ms = (
            float(times.kernel_ms[counted].sum())
            for times, counted in zip((found, self._in_its_mode(eager)), others, strict=True)
        )
        if mine_ms <= most_ms:
            return found
        return _of(found, np.where(others[0], most_ms / mine_ms, 1.0) * found.kernel_ms)

    def _in_its_mode(self, c: Conditions) -> KernelTimes:
        """Return the times within the bounds of other formats, other GPUs and the power limit."""
        siblings = self._boards.siblings(c) if self._boards else ()
        asked: dict[Point, Conditions] = {}
        for one in (c, *siblings):
            self._collect(one, asked)
        self._evaluate(asked)
        found = self._limited(c, self._ordered_at(c), siblings)
        if found.limited is None:
            return found
        # the limit is estimated for each format alone: the order of formats holds under it, too
        slower = self._bounds[self._point(c)].slower
        most_ms = min((self._in_its_mode(one).device_ms for one in slower), default=inf)
        return found if found.device_ms <= most_ms else _less_limited(found, most_ms)

    def _limited(
        self, c: Conditions, found: KernelTimes, siblings: Sequence[Conditions]
    ) -> KernelTimes:
        """Slow kernels down as the power limit of their board does."""
        if self._boards is None or not siblings or found.device_ms <= 0.0:
            return found
        there = [
            (s.device, self._kernels_of(s).graph, self._ordered_at(s).device_ms) for s in siblings
        ]
        limited = self._boards.limited(c, self._batch, found.device_ms, there)
        if limited is None:
            return found
        kernel_ms = found.kernel_ms * exp(limited.log_slowdown)
        if self._boards.is_measured(c.device):
            kernel_ms = self._spare_memory(c, found.kernel_ms, limited.log_slowdown)
        slowed = _of(found, kernel_ms)
        log_slowdown = log(slowed.device_ms / found.device_ms)
        return replace(slowed, limited=replace(limited, log_slowdown=log_slowdown))

    def _spare_memory(self, c: Conditions, kernel_ms: Floats, log_slowdown: float) -> Floats:
        """Return kernel times in ms if arithmetic alone is slowed, see `power_limit`."""
        graph, view = self._kernels_of(c).graph, DeviceView.of(c.device, c.mig)
        share = arithmetic_share(graph.table, self._batch, view)[graph.class_of]
        least_ms = roofline_ms(graph.table, self._batch, view)[graph.class_of]
        arithmetic = kernel_ms * np.exp(share * log_slowdown)
        whole = kernel_ms * exp(log_slowdown)
        return np.asarray(np.maximum(arithmetic, np.minimum(whole, least_ms)))

    def _collect(self, c: Conditions, asked: dict[Point, Conditions]) -> None:
        """Note the bounds of a point and of all points they lead to, and which ones ask the law."""
        point = self._point(c)
        if point in self._bounds:
            return
        lone = self._arithmetic(c)
        if lone not in self._lone:
            asked.setdefault(lone, c)
        if c.mode != "eager" and len(self._kernels_of(c).left_alone):
            eager = _in_eager(c)
            if self._arithmetic(eager) not in self._lone:
                asked.setdefault(self._arithmetic(eager), eager)
        self._bounds[point] = bounds = self._bounds_of(c)
        for found in (*bounds.slower, *bounds.larger, *bounds.smaller):
            self._collect(found, asked)

    def _bounds_of(self, c: Conditions) -> Bounds:
        formats = self._monotonic_bounds.never_faster(c.device, c.precision)
        has = supported_precisions(c.device, c.runtime)
        slower = [c.replace(precision=precision) for precision in formats if precision in has]
        if c.device.calibration is not None:
            return Bounds(slower, (), ())
        smaller, larger = self._monotonic_bounds.neighbours(c.device, c.precision)
        if c.mig is not None:
            whole = [c.replace(mig=None)] if smaller or larger else []
            return Bounds(slower, whole, ())
        return Bounds(
            slower,
            [c.replace(device=device) for device in larger],
            [c.replace(device=device) for device in smaller],
        )

    def _evaluate(self, asked: dict[Point, Conditions]) -> None:
        """Ask the law for the unbounded times, at once for all points with the same kernels."""
        groups: dict[int, tuple[LawKernels, list[Point], list[Place]]] = {}
        for point, c in asked.items():
            kernels = self._kernels_of(c)
            _, points, places = groups.setdefault(id(kernels), (kernels, [], []))
            view = DeviceView.of(c.device, c.mig)
            points.append(point)
            places.append(Place(view, c))
            if kernels.ieee_unique_kernels is not None and "tf32" in c.device.peak_tflops:
                points.append(point)
                places.append(Place(view, c, ieee=True))
        for kernels, points, places in groups.values():
            times = self._law.times(kernels, self._batch, places)
            for point, place, found in zip(points, places, times, strict=True):
                if place.ieee:
                    least = np.minimum(self._lone[point].kernel_ms, found.kernel_ms)
                    self._lone[point] = _of(self._lone[point], least)
                else:
                    self._lone[point] = found
        for point, c in asked.items():
            if c.mode != "eager":
                self._lone[point] = self._left_alone(c, self._lone[point])

    def _left_alone(self, c: Conditions, found: KernelTimes) -> KernelTimes:
        """Give kernels that a compiler leaves alone the time that they take in eager mode.

        Such kernels are the same in both modes, and come in the same order.
        """
        kernels, eager = self._kernels_of(c), _in_eager(c)
        if not len(kernels.left_alone):
            return found
        kernel_ms = found.kernel_ms.copy()
        same = self._kernels_of(eager).left_alone
        kernel_ms[kernels.left_alone] = self._lone[self._arithmetic(eager)].kernel_ms[same]
        return _of(found, kernel_ms)

    def _kinds(self, c: Conditions) -> Integers:
        """Return the class of each kernel of the whole table."""
        graph = self._kernels_of(c).graph
        return graph.table.kind[graph.class_of]

    def _ordered_at(self, c: Conditions) -> KernelTimes:
        point = self._point(c)
        known = self._ordered.get(point)
        if known is not None:
            return known
        lone, bounds = self._lone[self._arithmetic(c)], self._bounds[point]
        times = self._no_slower(lone.kernel_ms, lone.serial_ms, bounds)
        for larger in bounds.larger:
            times = np.maximum(times, self._ordered_at(larger).kernel_ms)
        for smaller in bounds.smaller:
            times = np.minimum(times, self._ordered_at(smaller).kernel_ms)
        for larger in bounds.larger:  # a measured board of the same chip overrides other chips
            if is_same_chip(c.device, larger.device):
                times = np.maximum(times, self._ordered_at(larger).kernel_ms)
        # lower bounds by kernel may have raised the sum above that of another format
        self._ordered[point] = found = _of(lone, self._no_slower(times, lone.serial_ms, bounds))
        return found

    def _no_slower(self, times: Floats, serial_ms: float, bounds: Bounds) -> Floats:
        """Return times scaled so that their sum exceeds that of no slower format.

        A faster format may have kernels of more serial steps: batch norms of training in bfloat16.
        """
        for slower in bounds.slower:
            other = self._ordered_at(slower)
            most_ms = other.device_ms - other.serial_ms + serial_ms
            times = times * min(1.0, most_ms / max(float(times.sum()), 1e-12))
        return times

    def _point(self, c: Conditions) -> Point:
        return c.device, c.precision, c.mig, c.mode

    def _arithmetic(self, c: Conditions) -> Point:
        return c.device, same_arithmetic(c.device, c.precision)[0], c.mig, c.mode


def _in_eager(c: Conditions) -> Conditions:
    return c.replace(mode="eager")


def _less_limited(found: KernelTimes, device_ms: float) -> KernelTimes:
    """Return times that a power limit slows down less, so that they sum to a lower total."""
    ratio = device_ms / found.device_ms
    limited = found.limited
    if limited is not None:
        limited = replace(limited, log_slowdown=max(0.0, limited.log_slowdown + log(ratio)))
    return replace(_of(found, ratio * found.kernel_ms), limited=limited)


def _of(found: KernelTimes, times: Floats) -> KernelTimes:
    return replace(found, kernel_ms=times, device_ms=float(times.sum()))
