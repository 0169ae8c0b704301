"""radT's listeners, defined as views of DIPPM's sources.

Three sections: the tables of listeners and their metrics; the sources to sample for requested
listeners, checked on this machine (`sources_of`); the series of a run under radT's names and in its
units (`named_series`).

A metric lists several series where several sources can provide it. The first one that a run has is
used, and recorded as its origin.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dippm.errors import ListenerError, UnknownNameError
from dippm.measure.readings import Readings
from dippm.measure.sources.registry import BUILT_IN, OF_A_GPU, OF_A_TREE, names, open_source
from dippm.runs.store.columns import Column

How = Literal["value", "rate", "growth"]


class ListenerMetric(NamedTuple):
    """One metric of a listener.

    Attributes:
        name: radT's name; "{}" is replaced by what "*" matches in the series.
        series: full names of series, the preferred one first; "*" matches a disk or a core.
        unit: unit of the metric.
        per: divisor from the unit of the series to that of the metric, 1024 for MiB to GiB.
        how: derivation: "value" takes the values themselves, "rate" the growth of a counter per
            second, "growth" its growth since the start.
        part_of: series of which the value is a percentage; "" for an absolute value.
    """

    name: str
    series: tuple[str, ...]
    unit: str
    per: float = 1.0
    how: How = "value"
    part_of: str = ""


class Listener(NamedTuple):
    """One of radT's listeners.

    Attributes:
        sources: groups of alternative sources; of each group, the first that works is sampled.
        needs: sources of which at least one must give a value.
        metrics: metrics of the listener.
    """

    sources: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...]
    metrics: tuple[ListenerMetric, ...]


UNITS = ("gpm", "dcgm")
"""Sources that report the activity of a GPU's functional units, the preferred one first."""
TRANSFERRED = ("read_mb", "written_mb")
"""Quantities of the source "disks" that count transferred MiB."""


def _unit_activity_metric(name: str, quantity: str, unit: str = "%") -> ListenerMetric:
    return ListenerMetric(
        f"DCGMI - {name}", tuple(f"{source}.{quantity}" for source in UNITS), unit
    )


def _host_memory_metric(name: str, quantity: str) -> ListenerMetric:
    return ListenerMetric(f"Free - {name} GB", (f"host.{quantity}_mb",), "GiB", 1024)


def _disk_metrics(head: str, disk: str) -> tuple[ListenerMetric, ...]:
    transfers, read, written = (f"disks.{disk}_{name}" for name in ("transfers", *TRANSFERRED))
    return (
        ListenerMetric(f"{head}tps", (transfers,), "transfers/s", how="rate"),
        ListenerMetric(f"{head}MB read/s", (read,), "MiB/s", how="rate"),
        ListenerMetric(f"{head}MB written/s", (written,), "MiB/s", how="rate"),
        ListenerMetric(f"{head}MB read", (read,), "MiB", how="growth"),
        ListenerMetric(f"{head}MB written", (written,), "MiB", how="growth"),
    )


SMI = (
    ListenerMetric("SMI - Power Draw", ("nvml.power_w",), "W"),
    ListenerMetric("SMI - GPU Util", ("nvml.utilization_percent",), "%"),
    ListenerMetric("SMI - Mem Util", ("nvml.memory_utilization_percent",), "%"),
    ListenerMetric("SMI - Mem Used", ("nvml.memory_used_mb",), "MiB"),
    ListenerMetric("SMI - Performance State", ("nvml.performance_state",), "P"),
)
DCGMI = (
    ListenerMetric("DCGMI - Power Usage", ("nvml.power_w",), "W"),
    ListenerMetric("DCGMI - Total Energy Consumption", ("nvml.energy_j",), "J"),
    _unit_activity_metric("PCIE TX Throughput", "pcie_tx_mb_s", "MiB/s"),
    _unit_activity_metric("PCIE RX Throughput", "pcie_rx_mb_s", "MiB/s"),
    ListenerMetric("DCGMI - GPU Utilization", ("nvml.utilization_percent",), "%"),
    ListenerMetric("DCGMI - Memory Copy Utilization", ("nvml.memory_utilization_percent",), "%"),
    _unit_activity_metric("GR Engine Active", "graphics_active_percent"),
    _unit_activity_metric("SM Active", "sm_active_percent"),
    _unit_activity_metric("SM Occupancy", "sm_occupancy_percent"),
    _unit_activity_metric("Tensor Active", "tensor_active_percent"),
    _unit_activity_metric("DRAM Active", "dram_active_percent"),
    _unit_activity_metric("FP64 Active", "fp64_active_percent"),
    _unit_activity_metric("FP32 Active", "fp32_active_percent"),
    _unit_activity_metric("FP16 Active", "fp16_active_percent"),
    _unit_activity_metric("PCIE TX Bytes", "pcie_tx_mb_s", "MiB/s"),
    _unit_activity_metric("PCIE RX Bytes", "pcie_rx_mb_s", "MiB/s"),
    _unit_activity_metric("NVlink TX Bytes", "nvlink_tx_mb_s", "MiB/s"),
    _unit_activity_metric("NVlink RX Bytes", "nvlink_rx_mb_s", "MiB/s"),
)
TOP = (
    ListenerMetric("TOP - CPU Utilization", ("tree.cpu_percent",), "%"),
    ListenerMetric(
        "TOP - Memory Utilization", ("tree.rss_mb",), "%", part_of="host.memory_total_mb"
    ),
    ListenerMetric("TOP - Memory Usage GB", ("tree.rss_mb",), "GiB", 1024),
    ListenerMetric("TOP - Swap Memory GB", ("host.swap_used_mb",), "GiB", 1024),
    ListenerMetric("TOP - Host CPU Utilization", ("host.cpu_percent",), "%"),
)
FREE = (
    _host_memory_metric("Mem Total", "memory_total"),
    _host_memory_metric("Mem Used", "memory_used"),
    _host_memory_metric("Mem Free", "memory_free"),
    _host_memory_metric("Mem Shared", "memory_shared"),
    _host_memory_metric("Mem Buff", "memory_buffers"),
    _host_memory_metric("Mem Cache", "memory_cached"),
    _host_memory_metric("Mem Available", "memory_available"),
    _host_memory_metric("Swap Total", "swap_total"),
    _host_memory_metric("Swap Used", "swap_used"),
    _host_memory_metric("Swap Free", "swap_free"),
)
IOSTAT = (
    *_disk_metrics("{} - ", "*"),
    *_disk_metrics("iostat - Total ", "total"),
)
PS = (
    ListenerMetric("PS - CPU {}", ("cores.core_*_percent",), "%"),
    ListenerMetric("PS - MEM {}", ("cores.core_*_rss_mb",), "%", part_of="host.memory_total_mb"),
)

LISTENERS = {
    "smi": Listener((("nvml",),), ("nvml",), SMI),
    "dcgmi": Listener((UNITS, ("nvml",)), UNITS, DCGMI),
    "top": Listener((("tree",), ("host",)), ("tree",), TOP),
    "free": Listener((("host",),), ("host",), FREE),
    "iostat": Listener((("disks",), ("tree",)), ("disks",), IOSTAT),
    "ps": Listener((("cores",), ("processes",), ("tree",), ("host",)), ("cores",), PS),
}
ALSO = {"dcgm": "dcgmi", "nvidia-smi": "smi"}
"""Alternative spellings in radT's documentation."""
PROFILERS = ("nsys", "nsysraw", "ncu", "ncuraw", "ncuattach")
"""Names that radT lists among its listeners, but that select a profiler."""


# The sources of requested listeners, checked on this machine.


BETWEEN_S = 0.1
"""Seconds between two readings of a source that compares them; dcgmi starts slowly."""
TRIES = 20
"""Maximum number of further readings until a source has a value."""
APPLE = "macmon"
ATTACHED = "ncuattach"
SHORT = len("GPU-01234567")
"""Length of the UUID prefix that names a device in its series."""


def sources_of(names: Sequence[str], *, devices: Sequence[str] = ("0",)) -> tuple[str, ...]:
    """Return the sources to sample for listeners, as `RunConfig.metrics` takes them.

    Each source is opened and read once to check that it works on this machine.

    Args:
        names: names of listeners as in radT: "smi", "dcgmi", "top", "free", "iostat", "ps"; one
            word may join several ("smi+top"), and "@HZ" sets a lower sampling rate. Names of
            sources are passed through; "" and "-" are ignored.
        devices: index or UUID of each GPU; with several, each has its own series.

    Returns:
        Sources: "nvml", "nvml@1", or "nvml:GPU-0a1b2c3d" for one of several devices.

    Raises:
        UnknownNameError: if a listener does not exist.
        ListenerError: if a listener cannot work on this machine, with the reason.
    """
    chosen: dict[str, str] = {}
    for word in _split_words(names):
        name, at, hz = word.partition("@")
        key = ALSO.get(name.casefold(), name.casefold())
        if key not in LISTENERS:
            chosen.setdefault(_check_source(name), f"{at}{hz}")
            continue
        for source in _working_sources(key, LISTENERS[key], devices):
            chosen.setdefault(source, f"{at}{hz}")
    return tuple(f"{source}{at_hz}" for source, at_hz in chosen.items())


def check_names(names: Sequence[str]) -> None:
    """Check that listeners exist, but not that they work on this machine.

    Raises:
        UnknownNameError: if a listener does not exist.
        ListenerError: if DIPPM does not support it.
    """
    for word in _split_words(names):
        name = word.partition("@")[0]
        if ALSO.get(name.casefold(), name.casefold()) not in LISTENERS:
            _check_source(name)


def split_profiler(names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Split radT's names into listeners and the profiler, "" for none.

    Raises:
        ListenerError: if there are several profilers, or an unsupported one.
    """
    words = tuple(_split_words(names))
    profilers = [word.casefold() for word in words if word.casefold() in PROFILERS]
    if len(profilers) > 1:
        raise ListenerError(
            f"{' and '.join(profilers)} cannot both look at one run", "Give each a run of its own."
        )
    if profilers == [ATTACHED]:
        raise ListenerError(
            f"{ATTACHED} attaches to a process of others, which DIPPM does not do",
            "Name ncu: it starts the command.",
        )
    return tuple(word for word in words if word.casefold() not in PROFILERS), "".join(profilers)


def _split_words(names: Sequence[str]) -> Iterable[str]:
    for word in names:
        yield from (part for piece in word.split("+") if (part := piece.strip()) not in ("", "-"))


def _check_source(name: str) -> str:
    """Return the name of a source.

    Raises:
        ListenerError: if the name is that of a profiler or of an unsupported listener.
        UnknownNameError: if it is neither a source nor a listener.
    """
    folded = name.casefold()
    if folded in PROFILERS:
        raise ListenerError(
            f"{name} is a profiler, and no listener: it slows what it looks at",
            'Use it in a run of its own: profile="nsys".',
        )
    if folded == APPLE:
        raise ListenerError(
            "macmon reads Apple's chips, which DIPPM does not",
            'Leave it out; "top" and "free" tell of processor and memory.',
        )
    source = name.partition(":")[0]
    if source not in BUILT_IN and source not in (every := names()):
        raise UnknownNameError.of("source", source, {*LISTENERS, *every})
    return name


def _working_sources(key: str, listener: Listener, devices: Sequence[str]) -> list[str]:
    """Return the first working source of each group, for each device that the listener reads.

    Raises:
        ListenerError: if none of the required sources gives a value.
    """
    several = len(devices) > 1
    found = []
    for device in devices if _reads_gpu(listener) else devices[:1]:
        reasons: dict[str, str] = {}
        for group in listener.sources:
            for source in group:
                reason = _why_no_value(source, device)
                if not reason:
                    apart = several and source in OF_A_GPU
                    found.append(f"{source}:{_short_uuid(device, devices)}" if apart else source)
                    break
                reasons[source] = reason
        missing = [source for source in listener.needs if source in reasons]
        if len(missing) == len(listener.needs):
            raise ListenerError(
                f"the listener {key} cannot work here"
                + (f" on device {device}: " if _reads_gpu(listener) else ": ")
                + "; ".join(f"{source}: {reasons[source]}" for source in missing),
                "Leave it out, or mend what is missing; `dippm doctor` tells of every counter.",
            )
    return found


def _reads_gpu(listener: Listener) -> bool:
    return any(source in OF_A_GPU for source in listener.needs)


def _why_no_value(name: str, device: str) -> str:
    """Return why a source gives no value here; "" if it gives one."""
    where: dict[str, object] = {}
    if name in OF_A_GPU:
        where["device"] = device
    if name in OF_A_TREE:
        where["pid"] = os.getpid()
    source = open_source(name, **where)
    try:
        reading = source.read()
        for _ in range(TRIES):
            if reading.values or not _may_follow(reading):
                break
            time.sleep(BETWEEN_S)
            reading = source.read()
    finally:
        source.close()
    if reading.values:
        return ""
    return next(iter(reading.absent.values()), getattr(source, "reason", "it tells nothing"))


def _may_follow(reading: Readings) -> bool:
    """Return whether a later reading may have the values that this one lacks."""
    return any("read again" in reason for reason in reading.absent.values())


def _short_uuid(device: str, devices: Sequence[str]) -> str:
    """Return a prefix of a GPU's UUID that is unique among the devices, to name its series."""
    if not device.startswith("GPU-"):
        return device
    head = device[:SHORT]
    return head if sum(other.startswith(head) for other in devices) == 1 else device


# The series of a run under radT's names and in its units.


TOTAL = "total"
"""Pseudo-disk with the sum of all disks, which "*" does not match."""


@dataclass(frozen=True, slots=True)
class ListenerSeries:
    """One series of a run under radT's name.

    Attributes:
        name: radT's name, such as "SMI - Power Draw"; with several devices "... [1]".
        origin: full name of the series that it is derived from: "gpm.sm_active_percent".
        unit: unit of the values.
        scope: what is measured: "tree", "host", "device" or "slice".
        time_ns: monotonic time of each reading, int64, [n].
        values: float64, [n]; NaN where absent, never 0 or -1.
        reason: reason for missing values, "" if there are none.
    """

    name: str
    origin: str
    unit: str
    scope: str
    time_ns: Any
    values: Any
    reason: str = ""


def named_series(
    columns: Iterable[Column], listeners: Iterable[str] = ()
) -> tuple[ListenerSeries, ...]:
    """Return the series that radT's listeners would have recorded for a run.

    Args:
        columns: series of the run, `StoredRun.columns`.
        listeners: radT's names; by default all that the run has series for.

    Raises:
        ListenerError: if the run has no series of a named listener.
    """
    wanted = tuple(listeners)
    held = tuple(columns)
    found: list[ListenerSeries] = []
    for listener in wanted or LISTENERS:
        if listener not in LISTENERS:
            raise ListenerError(
                f"there is no listener {listener!r}", f"There are: {', '.join(LISTENERS)}."
            )
        of_it = [
            one for metric in LISTENERS[listener].metrics for one in _find_series(metric, held)
        ]
        if wanted and not of_it:
            raise ListenerError(
                f"the run has no series of the listener {listener}",
                f'Ask for it when it runs: metrics=("{listener}",).',
            )
        found += of_it
    return tuple(found)


def _find_series(metric: ListenerMetric, columns: tuple[Column, ...]) -> Iterator[ListenerSeries]:
    done: set[tuple[str, str]] = set()
    for series in metric.series:
        pattern = re.compile(re.escape(series).replace(r"\*", "(.+)"))
        for column in columns:
            source, _, quantity = column.series.partition(".")
            source, _, device = source.partition(":")
            match = pattern.fullmatch(f"{source}.{quantity}")
            part = match[1] if match and "*" in series else ""
            if match is None or part == TOTAL or (part, device) in done:
                continue
            done.add((part, device))
            name = metric.name.replace("{}", part) + (f" [{device}]" if device else "")
            yield _to_series(name, metric, column, columns)


def _to_series(
    name: str, metric: ListenerMetric, column: Column, columns: tuple[Column, ...]
) -> ListenerSeries:
    import numpy as np

    time_ns, values = column.time_ns, column.values / metric.per
    reason = column.reasons[-1][1] if column.reasons and np.isnan(column.values).any() else ""
    if metric.how == "growth":
        there = values[np.isfinite(values)]
        values = values - there[0] if len(there) else values
    elif metric.how == "rate":
        time_ns, values = _rate(time_ns, values)
    elif metric.part_of:
        whole = next((c for c in columns if c.series == metric.part_of), None)
        if whole is None:
            values, reason = np.full(len(values), np.nan), f"{metric.part_of} was not sampled"
        else:
            there = whole.values[np.isfinite(whole.values)]
            values = 100 * values / (there[-1] if len(there) else np.nan)
            reason = reason if len(there) else f"{metric.part_of} has no value"
    return ListenerSeries(name, column.series, metric.unit, column.scope, time_ns, values, reason)


def _rate(time_ns: Any, values: Any) -> tuple[Any, Any]:
    """Return the growth per second between distinct readings, at the later of the two.

    Repeated readings are skipped: counters are updated less often than they are read. A counter
    that stands still to the end has the rate 0 there.
    """
    import numpy as np

    there = np.isfinite(values)
    time_ns, values = time_ns[there], values[there]
    if len(values) < 2:
        return time_ns[:0], values[:0]
    fresh = np.concatenate(([True], np.diff(values) != 0))
    fresh[-1] = True
    time_ns, values = time_ns[fresh], values[fresh]
    return time_ns[1:], np.diff(values) / (np.diff(time_ns) / 1e9)
