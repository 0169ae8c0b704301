"""`hybrid`: roofline × learned efficiency per kernel, host floor, liveness memory, power × time.

t_i = r_i · exp(s_i)             r_i roofline, s_i the kernel law (graph networks and trees)
T   = smoothmax(Σ t_i, launches · h)      then the timer regime
M   = context(multiprocessors) + weights + segments of the allocator for what is alive
E   = P · T with P between idle power and power limit
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import exp, expm1, log, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dippm.devices import (
    Calibration,
    Device,
    HostMachine,
    default_host,
    find,
    is_catalogued,
    smallest_profile,
    unknown_host_log_sd,
)
from dippm.devices.device import FEWEST_LAUNCHES
from dippm.errors import ConditionsError
from dippm.estimate.conditions import EIGHT_BITS, Conditions, same_arithmetic
from dippm.estimate.features.kernel import UNITS
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import (
    KERNEL_FEATURE_VERSION,
    USUAL_CLOCK_MHZ,
    DeviceView,
    roofline_ms,
)
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import KERNEL_VERSION
from dippm.estimate.models.board_power import BoardPower, limit_warnings
from dippm.estimate.models.calibration import time_shares
from dippm.estimate.models.checkpoint_schemas import HybridSchema, check
from dippm.estimate.models.energy_shares import energy_shares
from dippm.estimate.models.engine_law import (
    LAUNCH_SHARE,
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
    FEATURES,
    IntervalLaw,
    IntervalTerms,
    OwnErrors,
    interval_features,
    interval_group,
    own_errors,
)
from dippm.estimate.models.kernel_law import LAW_VERSION, KernelTimes, Law
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.operator_rows import operator_rows
from dippm.estimate.models.order import Order
from dippm.estimate.models.ordered_times import OrderedTimes
from dippm.estimate.models.phases import phase_model
from dippm.estimate.models.power import PowerModel, achieved_shares, idle_power_w, work_ms
from dippm.estimate.models.predictor import phases_of, predictor, refuse_phase
from dippm.estimate.models.step_schemas import StepSchema
from dippm.estimate.models.targets import (
    NOTHING_RUNS,
    TARGETS,
    Estimate,
    Estimates,
    HostUse,
    Interval,
    MemoryParts,
)
from dippm.model.graph.model_graph import ModelGraph

Floats = NDArray[np.float64]
Z90, Z99 = 1.645, 2.326
"""Quantiles of the normal distribution: 90 % lie within ±Z90, 99 % below Z99."""
HOST_DECIDES = 0.5
"""From this share of the latency on, an answer says that it depends on the host."""
CONTEXT_DECIDES = 0.5
"""From this share of the memory on, an answer says that it depends on the context."""
SAME_HOST = 0.05
"""Launch times closer than this are those of the same class of machines."""
_CACHED_GRAPHS = 8
_LAUNCHES = FEATURES.index("log_launches")


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
        self.order = Order(config["seen"]["often"])
        self.boards = BoardPower(self.power, config["seen"]["often"])
        self._graphs: OrderedDict[int, tuple[ModelGraph, dict[Any, Any]]] = OrderedDict()

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

        On a slice it is that of the whole GPU, whose context is larger: how much smaller the
        context of a slice is, one laboratory measured, and another one's was larger throughout.

        Raises:
            ConditionsError: as `predict`.
        """
        self._refuse(c)
        if c.runtime != "pytorch":
            refuse_untaken(graph, c.runtime)
            c = as_pytorch(c)
        usage = self._usage(graph, c, _batch(self._kernels(graph, c)[0], c))
        return self._bound_mb(usage, c)

    def _bound_mb(self, usage: Any, c: Conditions) -> float:
        asked = usage, c.device.sm_count, c.context_mb
        return self.memory.memory_mb(*asked) * exp(Z99 * self.memory.log_sd(*asked))

    def _estimate(self, graph: ModelGraph, c: Conditions, *, with_operators: bool) -> Estimates:
        self._refuse(c)
        if c.runtime != "pytorch":
            return self._engine(graph, c, with_operators=with_operators)
        table, _ = self._kernels(graph, c)
        batch = _batch(table, c)
        view = DeviceView.of(c.device, c.mig)
        found = self._times(graph, c, batch)
        times, device_ms = found.kernel_ms, found.device_ms
        input_bytes = table.input_bytes[0] * batch + table.input_bytes[1]
        used, host = self._host(c.host, c.device)
        launches = self.phase.launches(table)
        work = device_ms, launches, input_bytes, c.timer
        total_ms = latency_ms(*work, host)
        used = replace(used, launches=int(table.launches), share=launch_share(*work, host))
        usage = self._usage(graph, c, batch)
        multiprocessors = _multiprocessors(c)
        asked = usage, multiprocessors, c.context_mb
        memory = _with_interval(self.memory.memory_mb(*asked), Z90 * self.memory.log_sd(*asked))
        memory_bound_mb = self._bound_mb(usage, c)
        parts, absent = None, {"memory_parts": "parts are worked out for one point at a time"}
        if with_operators:
            parts = self.memory.parts(usage, graph, multiprocessors, c.context_mb)
            absent = {}
        if total_ms <= 0.0:
            timed = (target for target in TARGETS if target != "memory_mb")
            return Estimates(
                {"memory_mb": memory},
                absent | dict.fromkeys(timed, NOTHING_RUNS),
                memory_bound_mb,
                warnings=tuple(self._memory_warnings(graph, c, memory.value, parts, batch)),
                memory_parts=parts,
            )
        terms = self._interval_terms(total_ms, found, c, used, launches, table)
        latency = _with_interval(total_ms, terms.half_width(self.intervals, Z90))
        values = {"latency_ms": latency, "memory_mb": memory}
        energy = None
        if c.mig is None and c.device.power_limit_w is not None:
            busy = device_ms / max(total_ms, 1e-12)
            power_w = self._power_w(
                found, achieved_shares(table, batch, view, max(device_ms, 1e-12)), c, busy
            )
            values["power_w"] = _within(
                _with_interval(power_w, Z90 * self.power.log_error),
                idle_power_w(c.device),
                c.device.power_limit_w,
            )
            values["energy_j"] = _energy(values["power_w"], latency)
            if with_operators:
                energy = energy_shares(
                    self.power,
                    self.power.waiting_w(c.device),
                    values["energy_j"].value,
                    total_ms,
                    times,
                    work_ms(table, batch, view),
                )
        else:
            reason = (
                "power is measured for the board, not for a MIG slice"
                if c.mig
                else f"the power limit of {c.device.name} is not known"
            )
            absent |= dict.fromkeys(("power_w", "energy_j"), reason)
        return Estimates(
            values=values,
            absent=absent,
            memory_bound_mb=memory_bound_mb,
            operators=operator_rows(graph, table, batch, view, times, total_ms, energy)
            if with_operators
            else (),
            warnings=(
                *self._warnings(graph, table, c),
                *limit_warnings(c.device, found.limited),
                *_calibration_warnings(c, terms, self.intervals),
                *_host_warnings(used, latency),
                *self._memory_warnings(graph, c, memory.value, parts, batch),
            ),
            memory_parts=parts,
            host=used,
            interval_terms=terms,
        )

    def _engine(self, graph: ModelGraph, c: Conditions, *, with_operators: bool) -> Estimates:
        """Return what a runtime beside PyTorch takes; memory is that of PyTorch."""
        refuse_untaken(graph, c.runtime)
        pytorch = as_pytorch(c)
        other = self._estimate(graph, pytorch, with_operators=with_operators)
        if "latency_ms" not in other.values:
            return other
        run = as_run(c)
        table, view = self._kernels(graph, run)[0], DeviceView.of(run.device, run.mig)
        times = self._engine_times(graph, c)
        launches = 1.0 if c.runtime == "tensorrt" else self.phase.launches(table)
        work = float(times.sum()), launches, float(np.dot(table.input_bytes, (c.batch, 1.0)))
        used, host = self._host(c.host, c.device)
        share = LAUNCH_SHARE.get(c.runtime, 1.0)
        host = replace(host, launch_ms=share * host.launch_ms)
        total_ms, energy = latency_ms(*work, c.timer, host), None
        used = replace(used, launches=int(launches), share=launch_share(*work, c.timer, host))
        eager = other.values["latency_ms"].interval
        half = half_width(c, log(eager.high / eager.low) / 2)
        latency = _with_interval(total_ms, half)
        values = {**other.values, "latency_ms": latency}
        parts = other.memory_parts
        if c.precision in EIGHT_BITS:
            half_mb = values["memory_mb"].value
            values["memory_mb"] = self._narrow_memory(graph, pytorch, values["memory_mb"])
            parts = parts and _narrowed(parts, half_mb - values["memory_mb"].value)
        if "power_w" in values:
            shares = achieved_shares(table, c.batch, view, max(work[0], 1e-12))
            power_w = self.power.power_w(c.device, min(1.0, work[0] / total_ms), shares)
            values["power_w"] = _within(
                _with_interval(power_w, Z90 * self.power.log_error),
                idle_power_w(c.device),
                c.device.power_limit_w or power_w,
            )
            values["energy_j"] = _energy(values["power_w"], latency)
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
            warnings=(*engine_warnings(graph, c, half), *_host_warnings(used, latency)),
            host=used,
            interval_terms=None,
            memory_parts=parts,
        )

    def _engine_times(self, graph: ModelGraph, c: Conditions) -> Floats:
        """Return the times of the kernels of a runtime beside PyTorch, in ms, shape (K,).

        In all TensorRT takes no longer than compiled PyTorch, where it was measured by no more than
        the interval; the table that teaches has norms spelt in steps, which exporters of today keep
        whole. No layer takes longer than in the wider format, in which the engine may keep it.
        """
        run = as_run(c)
        table, view = self._kernels(graph, run)[0], DeviceView.of(run.device, run.mig)
        library = self._times(graph, run, c.batch)
        if c.runtime != "tensorrt":
            return library.kernel_ms
        law = tensorrt()
        most_ms = self._times(graph, as_pytorch(c), c.batch).device_ms
        most_ms *= exp(law.log_half_width) if law.is_own_place(c) else 1.0
        times = law.times(table, run, view, library.kernel_ms)
        times = at_most(times, most_ms, roofline_ms(table, c.batch, view))
        wider = wider_than(c)
        kept = self._engine_times(graph, wider) if wider else times
        return np.minimum(times, kept) if len(kept) == len(times) else times

    def _narrow_memory(self, graph: ModelGraph, c: Conditions, half: Estimate) -> Estimate:
        """Return the memory in 8 bits: as far below 16 as 16 is below 32, halved.

        Layers that stay in 16 bits make it that of 16 at most, the end of its interval.

        Args:
            graph: of the model.
            c: of PyTorch in half precision.
            half: memory there.
        """
        wide = self._usage(graph, c.replace(precision="fp32"), c.batch)
        wide_mb = self.memory.memory_mb(wide, _multiprocessors(c), c.context_mb)
        value = min(half.value, max(half.value - (wide_mb - half.value) / 2, half.value / 2))
        low = half.interval.low * value / half.value
        return replace(half, value=value, interval=replace(half.interval, low=low))

    def class_ms(self, graph: ModelGraph, c: Conditions) -> tuple[Floats, float, float, float]:
        """Return what a measurement of a model is held against.

        Returns:
            Device time by kernel class in the order of KERNEL_CLASSES, shape (C,), the number of
            launches, the host's time for them and the time of copying inputs, in ms; the last two
            are 0 where the timer does not see them.
        """
        self._refuse(c)
        table, _ = self._kernels(graph, c)
        batch = _batch(table, c)
        ordered = OrderedTimes(self.law, self.order, self._kernels_of(graph), batch)
        # A measurement says itself what a power limit does, and how a GPU compares with others.
        times = ordered.at(c.replace(device=_with_no_offsets(c.device))).kernel_ms
        _, host = self._host(c.host, c.device)
        launches = self.phase.launches(table)
        host_ms = 0.0 if c.timer == "kernel" else launches * host.launch_ms
        input_bytes = table.input_bytes[0] * batch + table.input_bytes[1]
        copy_ms = input_bytes / host.copy_bytes_per_ms if c.timer == "wall+copy" else 0.0
        by_class = np.bincount(table.kind, times, len(KERNEL_CLASSES)).astype(np.float64)
        return by_class, launches, host_ms, copy_ms

    def _times(self, graph: ModelGraph, c: Conditions, batch: int) -> KernelTimes:
        """Return the times of the law within what order and power limits allow."""
        kernels_of = self._kernels_of(graph)
        return OrderedTimes(self.law, self.order, kernels_of, batch, self.boards).at(c)

    def _kernels_of(self, graph: ModelGraph) -> Callable[[Conditions], LawKernels]:
        return lambda asked: self._kernels(graph, asked)[1]

    def _interval_terms(
        self,
        total_ms: float,
        found: KernelTimes,
        c: Conditions,
        host: HostUse,
        launches: float,
        table: KernelTable,
    ) -> IntervalTerms:
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
        plain, own, host_log_sd = c, None, host.log_sd
        if c.device.calibration is not None and launches >= FEWEST_LAUNCHES:
            plain = c.replace(device=_uncalibrated(c.device))
            own = self._own_errors(found, c, host, launches, table)
        if own is not None:
            host_log_sd = self._host(c.host, plain.device)[0].log_sd
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
        """Return what the owner's measurements say of a whole model; None if they do not."""
        calibration = c.device.calibration
        if calibration is None or not _was_calibrated(c):
            return None
        by_class = np.bincount(table.kind, found.kernel_ms, len(KERNEL_CLASSES))
        own = [calibration.log_factor(kind, launches) for kind in KERNEL_CLASSES]
        shares = time_shares(by_class / np.exp(own))
        return own_errors(calibration, shares, host.log_sd * host.share)

    def _power_w(
        self, found: KernelTimes, shares: Sequence[float], c: Conditions, busy: float
    ) -> float:
        """Return the mean power; of a board that its limit slows down what the limit leaves."""
        power_w = self.power.power_w(c.device, busy, shares)
        if found.limited is None:
            return power_w
        idle_w = idle_power_w(c.device)
        return max(power_w, idle_w + busy * (found.limited.power_w - idle_w))

    def host_of(self, c: Conditions) -> tuple[HostUse, Host]:
        """Return the machine that launches under some conditions, and its times."""
        return self._host(c.host, c.device)

    def _host(self, asked: HostMachine | None, device: Device) -> tuple[HostUse, Host]:
        """Return the machine that is meant; without one that which such boards usually sit in.

        Of data-centre boards it is the one that the law was fitted to.
        """
        if asked is not None:
            use = HostUse(asked.name, asked.launch_us, asked.log_sd, False, 0, 0.0)
            return use, replace(self.host, launch_ms=asked.launch_us / 1e3)
        if device.calibration is not None:
            _, usual = self._host(None, _uncalibrated(device))
            launch_ms = usual.launch_ms * exp(device.calibration.log_launch)
            log_sd = min(device.calibration.launch_log_sd or 0.0, unknown_host_log_sd())
            use = HostUse(f"that of {device.name}", 1e3 * launch_ms, log_sd, False, 0, 0.0)
            return use, replace(self.host, launch_ms=launch_ms)
        launch_us, default = 1e3 * self.host.launch_ms, default_host(device)
        if default is not default_host():
            use = HostUse(default.name, default.launch_us, unknown_host_log_sd(), True, 0, 0.0)
            return use, replace(self.host, launch_ms=default.launch_us / 1e3)
        is_default = abs(launch_us / default.launch_us - 1) < SAME_HOST
        name = default.name if is_default else "that of the checkpoint"
        return HostUse(name, launch_us, unknown_host_log_sd(), True, 0, 0.0), self.host

    def _cached(self, graph: ModelGraph) -> dict[Any, Any]:
        held = self._graphs.get(id(graph))
        if held is None or held[0] is not graph:
            held = (graph, {})
            self._graphs[id(graph)] = held
            while len(self._graphs) > _CACHED_GRAPHS:
                self._graphs.popitem(last=False)
        return held[1]

    def _kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        held = self._cached(graph)
        key = (same_arithmetic(c.device, c.precision)[0], *self.phase.key(c))
        if key not in held:
            held[key] = self.phase.kernels(graph, c)
        found: tuple[KernelTable, LawKernels] = held[key]
        return found

    def _usage(self, graph: ModelGraph, c: Conditions, batch: int) -> Any:
        held = self._cached(graph)
        how = (c.precision, c.autograd, *self.phase.key(c))
        if ("usage", *how, batch) not in held:
            known = (self._usage(graph, c.replace(autograd=False), batch),) if c.autograd else ()
            held["usage", *how, batch] = self._footprint(graph, c).usage(batch, *known)
        return held["usage", *how, batch]

    def _footprint(self, graph: ModelGraph, c: Conditions) -> Any:
        held, key = self._cached(graph), ("footprint", c.precision, c.autograd, *self.phase.key(c))
        if key not in held:
            without = self._footprint(graph, c.replace(autograd=False)) if c.autograd else None
            held[key] = self.phase.footprint(graph, c, without)
        return held[key]

    def _memory_warnings(
        self,
        graph: ModelGraph,
        c: Conditions,
        memory_mb: float,
        parts: MemoryParts | None,
        batch: int,
    ) -> Iterator[str]:
        """Tell what the memory of one point hangs on: an assumed context, `torch.no_grad`."""
        if parts is None:
            return
        spread_mb = parts.context_sd_mb if parts.context_assumed else None
        if spread_mb is not None and parts.context_mb >= CONTEXT_DECIDES * memory_mb:
            yield (
                f"{parts.context_mb:,.0f} MB of this memory are the context of driver and "
                f"libraries, assumed to be that of {parts.context_software}; installations differ "
                f"by {Z90 * spread_mb:,.0f} MB either way: name yours (`--context-mb`, "
                "`dippm doctor` measures it)"
            )
        if c.phase == "inference" and c.mode == "eager" and not c.autograd:
            yield from self._autograd_warnings(graph, c, batch)

    def _autograd_warnings(self, graph: ModelGraph, c: Conditions, batch: int) -> Iterator[str]:
        """Tell if a pass without `torch.no_grad` needs a larger slice, or does not fit."""
        usage = self._usage(graph, c, batch)
        place = _place(self._bound_mb(usage, c), c)
        if place is None:
            return
        # What keeps every result keeps more; where that changes nothing, nothing else is followed.
        all_kept = self._footprint(graph, c).all_kept(batch, usage)
        if _place(self._bound_mb(all_kept, c), c) == place:
            return
        bound_mb = self._bound_mb(self._usage(graph, c.replace(autograd=True), batch), c)
        other = _place(bound_mb, c)
        if other != place:
            needs = f"without torch.no_grad this needs up to {bound_mb:,.0f} MB at 99 %"
            yield f"{needs}: {other or f'more than {c.mig or c.device.name} has'} (`--autograd`)"

    def _refuse(self, c: Conditions) -> None:
        _refuse_cpu(c.device)
        refuse_phase(self.config, c)
        self.phase.refuse(c)

    def _warnings(self, graph: ModelGraph, table: KernelTable, c: Conditions) -> tuple[str, ...]:
        seen = self.config["seen"]
        warnings = []
        unknown = dict(graph.unknown_ops)
        if unknown:
            listed = ", ".join(f"{name} ×{count}" for name, count in sorted(unknown.items()))
            warnings.append(f"operators without a cost rule, taken as memory-bound: {listed}")
        classes = tuple(KERNEL_CLASSES)
        launched = {classes[k] for k in set(table.kind.tolist())}
        unseen = sorted(launched - set(seen["kernel_classes"]))
        if unseen:
            warnings.append(f"kernel classes never measured: {', '.join(unseen)}")
        if (table.unit == UNITS.index("int8")).any():
            rate = "rate" if "int8" in c.device.peak_tflops else "rate, taken as that of fp16,"
            warnings.append(
                f"8-bit products were never measured: estimated by {c.device.name}'s int8 {rate} "
                "with the efficiency of half precision"
            )
        precisions = seen["devices"].get(c.device.name)
        changed = _changed(c.device)
        if changed:
            warnings.append(f"{c.device.name} differs from the catalogue's in {', '.join(changed)}")
        if c.device.boost_clock_mhz is None:
            warnings.append(
                f"the boost clock of {c.device.name} is not known: short kernels are taken to run "
                f"at {USUAL_CLOCK_MHZ:,} MHz (boost_clock_mhz)"
            )
        if c.device.calibration:
            launches = self.phase.launches(self._kernels(graph, c)[0])
            if launches >= FEWEST_LAUNCHES and not c.device.calibration.has_models:
                warnings.append(
                    f"{c.device.name} was calibrated with single operators alone, which say little "
                    "of whole models: about ten models say more"
                )
        elif precisions is None:
            warnings.append(self.phase.never_measured(c.device.name))
        elif not set(precisions).intersection(same_arithmetic(c.device, c.precision)):
            warnings.append(
                f"{c.precision} was never measured on {c.device.name}, only {', '.join(precisions)}"
            )
        if c.device.is_of_another_vendor:
            warnings.append(
                f"{c.device.name} is no NVIDIA GPU: which kernels are launched, memory and power "
                "follow laws of NVIDIA's, and so do the intervals"
            )
        warnings += self.phase.warnings(graph, c)
        low, high = seen["batch_range"]
        if not low <= c.batch <= high:
            warnings.append(f"batch {c.batch} is outside of what was measured ({low} to {high})")
        return tuple(warnings)


def _narrowed(parts: MemoryParts, saved_mb: float) -> MemoryParts:
    """Return the parts of memory with what 8 bits save taken from the tensors."""
    tensors_mb = parts.weights_mb + parts.activations_mb
    left = max(0.0, 1.0 - saved_mb / tensors_mb) if tensors_mb else 1.0
    return replace(
        parts, weights_mb=left * parts.weights_mb, activations_mb=left * parts.activations_mb
    )


def _multiprocessors(c: Conditions) -> int | None:
    return c.mig.sm_count if c.mig else c.device.sm_count


def _uncalibrated(device: Device) -> Device:
    """Return a device as it would have been measured."""
    return replace(device, name=device.measured_name, calibration=None)


def _with_no_offsets(device: Device) -> Device:
    """Return a device as a calibration that changes nothing has it: not held between others."""
    return replace(device, calibration=Calibration(base=device.measured_name, log_slowdown=0.0))


def _was_calibrated(c: Conditions) -> bool:
    """Tell whether a calibration has rows of the phase, the mode and the precision of a question.

    A calibration that does not say of which its rows are has them of any.
    """
    found = c.device.calibration
    if found is None or c.phase != "inference":
        return False
    alike = {f"{c.mode} {precision}" for precision in same_arithmetic(c.device, c.precision)}
    return not found.regimes or not alike.isdisjoint(found.regimes)


def _calibration_warnings(c: Conditions, terms: IntervalTerms, law: IntervalLaw) -> Iterator[str]:
    """Say what is wide about the interval of a calibrated device."""
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


def _host_warnings(host: HostUse, latency: Estimate) -> Iterator[str]:
    """Say that a latency depends on its host, and how much of the interval is the host's."""
    if host.share < HOST_DECIDES:
        return
    text = (
        f"the host decides this latency: {host.launches:,} launches at {host.launch_us:.1f} µs each"
    )
    if host.assumed:
        machines = Z90 * host.log_sd
        whole = log(latency.interval.high / latency.value)
        rest = sqrt(max(whole**2 - (machines * host.share) ** 2, 0.0))
        text += (
            f", the time of {host.name}, which was assumed; machines differ by a factor of "
            f"{exp(machines):.1f} either way: name yours (`--host`, `dippm hosts` lists them), and "
            f"the interval is a factor of {exp(rest):.2f} either way, not {exp(whole):.2f}; the "
            "rest is not the host's"
        )
    yield f"{text}; a larger batch or compiled mode is less bound to it"


def _place(bound_mb: float, c: Conditions) -> str | None:
    """Return what holds a memory: the slice that is asked for, else the smallest one or the GPU.

    None if it does not fit.
    """
    if bound_mb > c.capacity_mb:
        return None
    smallest = None if c.mig else smallest_profile(bound_mb, c.device)
    return str(smallest or c.mig or c.device.name)


def _changed(device: Device) -> list[str]:
    """Return the fields in which a device is not the one of the catalogue that has its name."""
    if not is_catalogued(device.name):
        return []
    known = find(device.name)
    return [f.name for f in fields(device) if getattr(device, f.name) != getattr(known, f.name)]


def _refuse_cpu(device: Device) -> None:
    if device.kind == "cpu":
        raise ConditionsError(
            f"this checkpoint predicts GPUs, {device.name} is a CPU",
            "Name a checkpoint that was trained on that CPU; `dippm models` lists them.",
        )


def _batch(table: KernelTable, c: Conditions) -> int:
    if table.batch is not None and table.batch != c.batch:
        raise ConditionsError(
            f"the model file fixes the batch to {table.batch}, {c.batch} was asked for",
            f"Ask for batch {table.batch}, or export the model with a dynamic batch dimension.",
        )
    return c.batch


def _with_interval(value: float, log_half_width: float) -> Estimate:
    factor = exp(log_half_width)
    return Estimate(value, Interval(value / factor, value * factor, COVERAGE))


def _within(estimate: Estimate, least: float, most: float) -> Estimate:
    low, high = max(estimate.interval.low, least), min(estimate.interval.high, most)
    return Estimate(estimate.value, Interval(low, high, estimate.interval.coverage))


def _energy(power_w: Estimate, latency: Estimate) -> Estimate:
    value = power_w.value * latency.value / 1e3
    half = np.hypot(
        np.log(power_w.interval.high / power_w.value),
        np.log(latency.interval.high / latency.value),
    )
    return _with_interval(value, float(half))
