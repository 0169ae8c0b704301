"""`hybrid`: roofline × learned efficiency per kernel, host floor, liveness memory, power × time.

t_i = r_i · exp(s_i)             r_i roofline, s_i the kernel law (graph networks and trees)
T   = smoothmax(Σ t_i, launches · h)      then the timer regime
M   = context(multiprocessors) + weights + segments of the allocator for what is alive
E   = P · T with P between idle power and power limit
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dippm.devices import (
    Calibration,
    Device,
    HostMachine,
    default_host,
    named_host_log_sd,
    unknown_host_log_sd,
)
from dippm.devices.device import FEWEST_LAUNCHES
from dippm.errors import ConditionsError
from dippm.estimate.conditions import EIGHT_BITS, Conditions, same_arithmetic
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import KERNEL_FEATURE_VERSION, DeviceView, roofline_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import KERNEL_VERSION
from dippm.estimate.models.answer_warnings import HOST_DECIDES as HOST_DECIDES
from dippm.estimate.models.answer_warnings import (
    batch_warnings,
    calibration_warnings,
    device_warnings,
    graph_warnings,
    host_warnings,
    layout_warnings,
)
from dippm.estimate.models.calibration import time_shares
from dippm.estimate.models.checkpoint_schemas import HybridSchema, StepSchema, check
from dippm.estimate.models.engine_law import (
    LAUNCH_SHARE,
    RUNTIME_LOG_SD,
    as_pytorch,
    as_run,
    at_most,
    engine_warnings,
    half_width,
    refuse_untaken,
    tensorrt,
    wider_than,
)
from dippm.estimate.models.host import Host, latency_ms, launch_share
from dippm.estimate.models.intervals import (
    COVERAGE,
    IntervalLaw,
    IntervalTerms,
    OwnErrors,
    interval_features,
    interval_group,
    own_errors,
)
from dippm.estimate.models.intervals import Z90 as Z90
from dippm.estimate.models.intervals import Z99 as Z99
from dippm.estimate.models.kernel_law import LAW_VERSION, KernelTimes, Law
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.memory_answer import MemoryAnswers
from dippm.estimate.models.monotonic_bounds import MonotonicBounds
from dippm.estimate.models.operator_rows import operator_rows
from dippm.estimate.models.ordered_times import OrderedTimes
from dippm.estimate.models.phases import GraphParts, phase_model
from dippm.estimate.models.power import (
    PowerModel,
    absent_power,
    achieved_shares,
    energy_estimate,
    energy_shares,
    idle_power_w,
    power_estimate,
    work_ms,
)
from dippm.estimate.models.power_limit import BoardPower, limit_warnings
from dippm.estimate.models.predictor import phases_of, predictor, refuse_phase
from dippm.estimate.models.targets import (
    NOTHING_RUNS,
    TARGETS,
    Estimate,
    Estimates,
    HostUse,
    OperatorCost,
)
from dippm.model.graph.model_graph import ModelGraph

Floats = NDArray[np.float64]
SAME_HOST = 0.05
"""Relative difference of launch times below which two machines count as one class."""
ONE_POINT = "parts are worked out for one point at a time"


@predictor("hybrid")
class Hybrid:
    """The gray-box predictor; see the module docstring for its equations."""

    feature_version = f"{KERNEL_VERSION}.{KERNEL_FEATURE_VERSION}.{LAW_VERSION}"
    tensor_library = "numpy"

    def __init__(self, law: Law, config: Mapping[str, Any]) -> None:
        self.law, self.config = law, config
        self.phase = phase_model(config)
        self.host, self.memory = Host(**config["host"]), self.phase.memory
        power = config["power"]
        self.power = PowerModel(**{**power, "coefficients": tuple(power["coefficients"])})
        intervals = config["intervals"]["latency_ms"]
        self.intervals = IntervalLaw(tuple(intervals["coefficients"]), intervals["quantile"])
        self.monotonic_bounds = MonotonicBounds(config["seen"]["often"])
        self.boards = BoardPower(self.power, config["seen"]["often"])
        self._parts = GraphParts.shared(self.phase)
        self._memory_answers = MemoryAnswers(self.memory, self._parts)

    @classmethod
    def from_checkpoint(cls, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        """Build from the arrays of the phase's law and the configuration.

        Raises:
            CheckpointError: if the configuration or the arrays are not as they should be.
        """
        trains = phases_of(config) == ("train",)
        check(config, StepSchema if trains else HybridSchema, "the configuration")
        return cls(phase_model(config).law(tensors, config), config)

    def predict(self, graph: ModelGraph, conditions: Conditions) -> Estimates:
        """Predict one point, with its operator table.

        Raises:
            ConditionsError: if the file fixes another batch than the one asked for, if the device
                is a CPU, or if the phase is another one than that of the checkpoint.
        """
        return self._estimate(graph, conditions, with_operators=True)

    def predict_many(self, graph: ModelGraph, conditions: Sequence[Conditions]) -> list[Estimates]:
        """Predict many points of one model, without operator tables."""
        return [self._estimate(graph, c, with_operators=False) for c in conditions]

    def memory_bound_mb(self, graph: ModelGraph, c: Conditions) -> float:
        """Return the 99 % bound of the memory alone, as `predict` has it, without its other work.

        Raises:
            ConditionsError: as `predict`.
        """
        self._refuse(c)
        if c.runtime != "pytorch":
            refuse_untaken(graph, c.runtime)
            c = as_pytorch(c)
        _check_batch(self._kernels(graph, c)[0], c)
        return self._memory_answers.bound_mb(graph, c)

    def _estimate(self, graph: ModelGraph, c: Conditions, *, with_operators: bool) -> Estimates:
        """Return the answer for PyTorch, its parts in the order of the equations above."""
        self._refuse(c)
        if c.runtime != "pytorch":
            return self._engine(graph, c, with_operators=with_operators)
        table, _ = self._kernels(graph, c)
        _check_batch(table, c)
        found = self._times(graph, c)
        total_ms, host = self._latency_ms(found, table, c)
        memory = self._memory_answers.answer(graph, c, with_parts=with_operators)
        absent = {} if with_operators else {"memory_parts": ONE_POINT}
        if total_ms <= 0.0:
            timed = (target for target in TARGETS if target != "memory_mb")
            return Estimates(
                {"memory_mb": memory.estimate},
                absent | dict.fromkeys(timed, NOTHING_RUNS),
                memory.bound_mb,
                warnings=tuple(self._memory_answers.warnings(graph, c, memory)),
                memory_parts=memory.parts,
            )
        terms = self._interval_terms(total_ms, found, c, host, table)
        latency = Estimate.around(total_ms, terms.half_width(self.intervals, Z90), COVERAGE)
        view = DeviceView.of(c.device, c.mig)
        values = {"latency_ms": latency, "memory_mb": memory.estimate}
        reason = absent_power(c)
        if reason is None:
            values["power_w"] = self._power(found, table, c, view, total_ms)
            values["energy_j"] = energy_estimate(values["power_w"], latency)
        else:
            absent |= dict.fromkeys(("power_w", "energy_j"), reason)
        return Estimates(
            values=values,
            absent=absent,
            memory_bound_mb=memory.bound_mb,
            operators=self._operators(graph, table, view, c, found, values)
            if with_operators
            else (),
            warnings=(
                *self._warnings(graph, table, c),
                *limit_warnings(c.device, found.limited),
                *calibration_warnings(c, terms, self.intervals),
                *host_warnings(host, latency, c.phase),
                *layout_warnings(table, c, total_ms, found.serial_ms),
                *self._memory_answers.warnings(graph, c, memory),
            ),
            memory_parts=memory.parts,
            host=host,
            interval_terms=terms,
        )

    def _latency_ms(
        self, found: KernelTimes, table: KernelTable, c: Conditions
    ) -> tuple[float, HostUse]:
        """Return T = smoothmax(Σ t_i, launches · h) in ms as the timer shows it, and the host.

        Source: `host.latency_ms`; the host's share is d log T / d log h, see `host.launch_share`.
        """
        used, host = self._host(c.host, c.device)
        work = found.device_ms, self.phase.launches(table), _input_bytes(table, c), c.timer
        used = replace(used, launches=int(table.host_launches), share=launch_share(*work, host))
        return latency_ms(*work, host), used

    def _power(
        self,
        found: KernelTimes,
        table: KernelTable,
        c: Conditions,
        view: DeviceView,
        total_ms: float,
    ) -> Estimate:
        """Return the mean power P in W; of a board that its limit slows down what the limit leaves.

        Source: the law of `power`, with busy = Σ t_i / T; the limit's is that of `power_limit`.
        """
        busy = found.device_ms / max(total_ms, 1e-12)
        shares = achieved_shares(table, c.batch, view, max(found.device_ms, 1e-12))
        power_w = self.power.power_w(c.device, busy, shares)
        if found.limited is not None:
            idle_w = idle_power_w(c.device)
            power_w = max(power_w, idle_w + busy * (found.limited.power_w - idle_w))
        return power_estimate(self.power, c.device, power_w)

    def _operators(
        self,
        graph: ModelGraph,
        table: KernelTable,
        view: DeviceView,
        c: Conditions,
        found: KernelTimes,
        values: Mapping[str, Estimate],
    ) -> tuple[OperatorCost, ...]:
        """Return the rows of operators and host, whose times sum to T and energies to E."""
        total_ms, energy = values["latency_ms"].value, None
        if "energy_j" in values:
            energy = energy_shares(
                self.power,
                self.power.waiting_w(c.device),
                values["energy_j"].value,
                total_ms,
                found.kernel_ms,
                work_ms(table, c.batch, view),
            )
        return operator_rows(graph, table, c.batch, view, found.kernel_ms, total_ms, energy)

    def _warnings(self, graph: ModelGraph, table: KernelTable, c: Conditions) -> Iterator[str]:
        """Yield warnings about unmeasured parts, and those of the phase."""
        seen = self.config["seen"]
        yield from graph_warnings(graph, table, c.device, seen["kernel_classes"])
        yield from device_warnings(c, seen["devices"], self.phase, self.phase.launches(table))
        yield from self.phase.warnings(graph, c)
        yield from batch_warnings(c.batch, seen["batch_range"])

    def _engine(self, graph: ModelGraph, c: Conditions, *, with_operators: bool) -> Estimates:
        """Return the answer for a runtime other than PyTorch; memory is that of PyTorch."""
        refuse_untaken(graph, c.runtime)
        pytorch = as_pytorch(c)
        other = self._estimate(graph, pytorch, with_operators=with_operators)
        if "latency_ms" not in other.values:
            return other
        run = as_run(c)
        table, view = self._kernels(graph, run)[0], DeviceView.of(run.device, run.mig)
        times = self._engine_times(graph, c)
        launches = 1.0 if c.runtime == "tensorrt" else self.phase.launches(table)
        work = float(times.sum()), launches, _input_bytes(table, c)
        used, host = self._host(c.host, c.device)
        share = LAUNCH_SHARE.get(c.runtime, 1.0)
        host = replace(host, launch_ms=share * host.launch_ms)
        total_ms, energy = latency_ms(*work, c.timer, host), None
        used = replace(used, launches=int(launches), share=launch_share(*work, c.timer, host))
        eager = other.values["latency_ms"].interval
        half = half_width(c, log(eager.high / eager.low) / 2)
        latency = Estimate.around(total_ms, half, COVERAGE)
        values, parts = {**other.values, "latency_ms": latency}, other.memory_parts
        if c.precision in EIGHT_BITS:
            narrow = self._memory_answers.in_eight_bits(graph, pytorch, values["memory_mb"], parts)
            values["memory_mb"], parts = narrow
        if "power_w" in values:
            shares = achieved_shares(table, c.batch, view, max(work[0], 1e-12))
            power_w = self.power.power_w(c.device, min(1.0, work[0] / total_ms), shares)
            values["power_w"] = power_estimate(self.power, c.device, power_w)
            values["energy_j"] = energy_estimate(values["power_w"], latency)
            energy = energy_shares(
                self.power,
                self.power.waiting_w(c.device),
                values["energy_j"].value,
                total_ms,
                times,
                work_ms(table, c.batch, view),
            )
        rows = operator_rows(graph, table, c.batch, view, times, total_ms, energy)
        return replace(
            other,
            values=values,
            operators=rows if with_operators else (),
            warnings=(*engine_warnings(graph, c, half), *host_warnings(used, latency, c.phase)),
            host=used,
            interval_terms=None,
            memory_parts=parts,
        )

    def _engine_times(self, graph: ModelGraph, c: Conditions) -> Floats:
        """Return the times of the kernels of a runtime other than PyTorch, in ms, shape (K,).

        The total of ONNX Runtime, which has no more kernels and the same libraries, exceeds that of
        eager PyTorch in the same layout nowhere, and that of compiled PyTorch by no more than what
        its interval has beyond eager's. That of TensorRT exceeds compiled PyTorch's by at
        most the interval on a measured GPU, and not at all on others: the measured models have
        norms as single operators, which exporters of today keep whole. No layer takes longer than
        in the wider format, which the engine may keep.
        """
        run = as_run(c)
        table, view = self._kernels(graph, run)[0], DeviceView.of(run.device, run.mig)
        library, least = self._times(graph, run), roofline_ms(table, c.batch, view)
        if c.runtime != "tensorrt":
            eager = as_pytorch(c).replace(channels_last=run.channels_last)
            most_ms = self._times(graph, eager).device_ms
            if c.runtime == "onnxruntime":
                compiled = self._times(graph, eager.replace(mode="compiled"))
                most_ms = min(most_ms, compiled.device_ms * exp(Z90 * RUNTIME_LOG_SD[c.runtime]))
            return at_most(library.kernel_ms, most_ms, least)
        law = tensorrt()
        most_ms = self._times(graph, as_pytorch(c)).device_ms
        most_ms *= exp(law.log_half_width) if law.is_own_place(c) else 1.0
        times = law.times(table, run, view, library.kernel_ms)
        times = at_most(times, most_ms, least)
        wider = wider_than(c)
        kept = self._engine_times(graph, wider) if wider else times
        return np.minimum(times, kept) if len(kept) == len(times) else times

    def class_ms(self, graph: ModelGraph, c: Conditions) -> tuple[Floats, float, float, float]:
        """Return the predicted times that a measurement of a model is compared with.

        Returns:
            Device time by kernel class in the order of KERNEL_CLASSES, shape (C,), the number of
            launches, the host's time for them and the time of copying inputs, in ms; the last two
            are 0 where the timer does not see them.
        """
        self._refuse(c)
        table, _ = self._kernels(graph, c)
        _check_batch(table, c)
        ordered = OrderedTimes(self.law, self.monotonic_bounds, self._kernels_of(graph), c.batch)
        # a measurement contains the effect of a power limit, and needs no bounds by other GPUs
        times = ordered.at(c.replace(device=_with_no_offsets(c.device))).kernel_ms
        _, host = self._host(c.host, c.device)
        launches = self.phase.launches(table)
        host_ms = 0.0 if c.timer == "kernel" else launches * host.launch_ms
        copy_ms = _input_bytes(table, c) / host.copy_bytes_per_ms if c.timer == "wall+copy" else 0.0
        by_class = np.bincount(table.kind, times, len(KERNEL_CLASSES)).astype(np.float64)
        return by_class, launches, host_ms, copy_ms

    def _times(self, graph: ModelGraph, c: Conditions) -> KernelTimes:
        """Return the times of the law within monotonic bounds and power limits."""
        kernels_of = self._kernels_of(graph)
        bounds = self.monotonic_bounds
        return OrderedTimes(self.law, bounds, kernels_of, c.batch, self.boards).at(c)

    def _kernels_of(self, graph: ModelGraph) -> Callable[[Conditions], LawKernels]:
        return lambda asked: self._kernels(graph, asked)[1]

    def _interval_terms(
        self, total_ms: float, found: KernelTimes, c: Conditions, host: HostUse, table: KernelTable
    ) -> IntervalTerms:
        """Return the terms of the width of the latency's interval, see `intervals`."""
        launches = self.phase.launches(table)
        launch_ms = 0.0 if c.timer == "kernel" else launches * host.launch_us / 1e3
        learned = self.config["seen"]["devices"]
        group, gpu_novelty = interval_group(
            c.device, learned, found.novelty, launches, has_head=self.law.has_head(c)
        )
        described = interval_features(
            found.spread,
            launch_ms / total_ms,
            found.extrapolated,
            c.mode == "compiled",
            host.launches,
            found.novelty.on_any,
            gpu_novelty,
        )
        limit = found.limited.log_error * max(0.0, 1.0 - host.share) if found.limited else 0.0
        plain, own, used = c, None, host
        if c.device.calibration is not None and launches >= FEWEST_LAUNCHES:
            plain = c.replace(device=_uncalibrated(c.device))
            own = self._own_errors(found, c, host, launches, table)
        if own is not None:
            used = self._host(c.host, plain.device)[0]
        named = named_host_log_sd(c.phase, used.log_sd)
        host_log_sd = used.log_sd if used.assumed else named
        return IntervalTerms(
            described,
            group,
            limit,
            host_log_sd * host.share,
            self.law.laboratory_log_sd(plain) * max(0.0, 1.0 - host.share),
            own,
        )

    def _own_errors(
        self, found: KernelTimes, c: Conditions, host: HostUse, launches: float, table: KernelTable
    ) -> OwnErrors | None:
        """Return the error of a whole model by the owner's measurements; None without any."""
        calibration = c.device.calibration
        if calibration is None or not _was_calibrated(c):
            return None
        by_class = np.bincount(table.kind, found.kernel_ms, len(KERNEL_CLASSES))
        own = [calibration.log_factor(kind, launches) for kind in KERNEL_CLASSES]
        shares = time_shares(by_class / np.exp(own))
        return own_errors(calibration, shares, host.log_sd * host.share)

    def host_of(self, c: Conditions) -> tuple[HostUse, Host]:
        """Return the machine that launches under some conditions, and its times."""
        return self._host(c.host, c.device)

    def _host(self, asked: HostMachine | None, device: Device) -> tuple[HostUse, Host]:
        """Return the machine asked for, or the default one of such boards.

        For data-centre boards the default is the machine that the law was fitted to.
        """
        if asked is not None:
            use = HostUse(asked.name, asked.launch_us, asked.log_sd, False, 0, 0.0)
            return use, replace(self.host, launch_ms=asked.launch_us / 1e3)
        if device.calibration is not None:
            _, default = self._host(None, _uncalibrated(device))
            launch_ms = default.launch_ms * exp(device.calibration.log_launch)
            log_sd = min(device.calibration.launch_log_sd or 0.0, unknown_host_log_sd())
            use = HostUse(f"that of {device.name}", 1e3 * launch_ms, log_sd, False, 0, 0.0)
            return use, replace(self.host, launch_ms=launch_ms)
        launch_us, machine = 1e3 * self.host.launch_ms, default_host(device)
        if machine is not default_host():
            use = HostUse(machine.name, machine.launch_us, unknown_host_log_sd(), True, 0, 0.0)
            return use, replace(self.host, launch_ms=machine.launch_us / 1e3)
        is_default = abs(launch_us / machine.launch_us - 1) < SAME_HOST
        name = machine.name if is_default else "that of the checkpoint"
        return HostUse(name, launch_us, unknown_host_log_sd(), True, 0, 0.0), self.host

    def _kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        return self._parts.kernels(graph, c)

    def _refuse(self, c: Conditions) -> None:
        _refuse_cpu(c.device)
        refuse_phase(self.config, c)
        self.phase.refuse(c)


def _uncalibrated(device: Device) -> Device:
    """Return a device without its calibration, as the measured one."""
    return replace(device, name=device.measured_name, calibration=None)


def _with_no_offsets(device: Device) -> Device:
    """Return a device with a calibration of zero, which exempts it from monotonic bounds."""
    return replace(device, calibration=Calibration(base=device.measured_name, log_slowdown=0.0))


def _was_calibrated(c: Conditions) -> bool:
    """Tell whether a calibration has rows of the phase, the mode and the precision of a question.

    A calibration without regimes counts as one with rows of any.
    """
    found = c.device.calibration
    if found is None or c.phase != "inference":
        return False
    alike = {f"{c.mode} {precision}" for precision in same_arithmetic(c.device, c.precision)}
    return not found.regimes or not alike.isdisjoint(found.regimes)


def _refuse_cpu(device: Device) -> None:
    if device.kind == "cpu":
        raise ConditionsError(
            f"this checkpoint predicts GPUs, {device.name} is a CPU",
            "Name a checkpoint that was trained on that CPU; `dippm models` lists them.",
        )


def _check_batch(table: KernelTable, c: Conditions) -> None:
    """Refuse a batch other than the one that the model file fixes."""
    if table.batch is not None and table.batch != c.batch:
        raise ConditionsError(
            f"the model file fixes the batch to {table.batch}, and batch {c.batch} was requested",
            f"Use batch {table.batch}, or export the model with a dynamic batch dimension.",
        )


def _input_bytes(table: KernelTable, c: Conditions) -> float:
    """Return the bytes of the inputs of a pass."""
    per_sample, once = table.input_bytes
    return per_sample * c.batch + once
