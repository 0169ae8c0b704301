"""The listeners of radT: their sources, and radT's names of the series.

A metric has several series where several sources can give it; the first one that a run has is used,
and named as its origin. Series of the host keep "host." in their name.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

How = Literal["value", "rate", "growth"]


class ListenerMetric(NamedTuple):
    """One metric of a listener.

    Attributes:
        name: radT's name; "{}" is replaced by what "*" matches in the series.
        series: full names of series, the preferred one first; "*" matches a disk or a core.
        unit: unit of the metric.
        per: units of the series in one unit of the metric.
        how: the value itself, the growth of a counter per second, or its growth since the start.
        part_of: series of which the value is a percentage.
    """

    name: str
    series: tuple[str, ...]
    unit: str
    per: float = 1.0
    how: How = "value"
    part_of: str = ""


class Listener(NamedTuple):
    """One listener.

    Attributes:
        sources: sources to sample; of an inner tuple, the first that works here.
        needs: sources of which at least one must give a value.
        metrics: metrics of the listener.
    """

    sources: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...]
    metrics: tuple[ListenerMetric, ...]


UNITS = ("gpm", "dcgm")
"""Sources with the activity of a GPU's units."""
MOVED = ("read_mb", "written_mb")


def _of_units(name: str, quantity: str, unit: str = "%") -> ListenerMetric:
    return ListenerMetric(
        f"DCGMI - {name}", tuple(f"{source}.{quantity}" for source in UNITS), unit
    )


def _gb(name: str, quantity: str) -> ListenerMetric:
    return ListenerMetric(f"Free - {name} GB", (f"host.{quantity}_mb",), "GiB", 1024)


def _of_disk(head: str, disk: str) -> tuple[ListenerMetric, ...]:
    transfers, read, written = (f"disks.{disk}_{name}" for name in ("transfers", *MOVED))
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
    _of_units("PCIE TX Throughput", "pcie_tx_mb_s", "MiB/s"),
    _of_units("PCIE RX Throughput", "pcie_rx_mb_s", "MiB/s"),
    ListenerMetric("DCGMI - GPU Utilization", ("nvml.utilization_percent",), "%"),
    ListenerMetric("DCGMI - Memory Copy Utilization", ("nvml.memory_utilization_percent",), "%"),
    _of_units("GR Engine Active", "graphics_active_percent"),
    _of_units("SM Active", "sm_active_percent"),
    _of_units("SM Occupancy", "sm_occupancy_percent"),
    _of_units("Tensor Active", "tensor_active_percent"),
    _of_units("DRAM Active", "dram_active_percent"),
    _of_units("FP64 Active", "fp64_active_percent"),
    _of_units("FP32 Active", "fp32_active_percent"),
    _of_units("FP16 Active", "fp16_active_percent"),
    _of_units("PCIE TX Bytes", "pcie_tx_mb_s", "MiB/s"),
    _of_units("PCIE RX Bytes", "pcie_rx_mb_s", "MiB/s"),
    _of_units("NVlink TX Bytes", "nvlink_tx_mb_s", "MiB/s"),
    _of_units("NVlink RX Bytes", "nvlink_rx_mb_s", "MiB/s"),
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
    _gb("Mem Total", "memory_total"),
    _gb("Mem Used", "memory_used"),
    _gb("Mem Free", "memory_free"),
    _gb("Mem Shared", "memory_shared"),
    _gb("Mem Buff", "memory_buffers"),
    _gb("Mem Cache", "memory_cached"),
    _gb("Mem Available", "memory_available"),
    _gb("Swap Total", "swap_total"),
    _gb("Swap Used", "swap_used"),
    _gb("Swap Free", "swap_free"),
)
IOSTAT = (
    *_of_disk("{} - ", "*"),
    *_of_disk("iostat - Total ", "total"),
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
NAMES = tuple(LISTENERS)
