"""Metrics that are sampled: views on `dippm.measure.sources`, each a column, unit and scope."""

from __future__ import annotations

from dippm.umlaut.metric import Sampled


class MemoryMetric(Sampled):
    """Resident memory of the process and everything that it started."""

    measure_type, name, unit = "memory", "tree.rss_mb", "MiB"
    source, quantity, reducer = "tree", "rss_mb", "max"
    about = "resident memory of the process tree; one value is the most"


class CPUMetric(Sampled):
    """CPU use of the process and everything that it started."""

    measure_type, name, unit = "cpu", "tree.cpu_percent", "%"
    source, quantity, reducer, factor = "tree", "cpu_s", "rate", 100.0
    about = "CPU time of the process tree by wall time; 100 % is one core"


class EnergyMetric(Sampled):
    """Energy of the host's CPU packages; UMLAUT's number is in µJ."""

    measure_type, name, unit = "energy", "rapl.package_energy_j", "J"
    source, quantity, reducer = "rapl", "package_energy_j", "delta"
    about = "RAPL package counter of the whole host"


class PowerMetric(Sampled):
    """Power of the host's CPU packages."""

    measure_type, name, unit = "power", "rapl.package_power_w", "W"
    source, quantity, reducer = "rapl", "package_energy_j", "rate"
    about = "RAPL package counter of the whole host by time"


class _OnGpu(Sampled):
    """Of one GPU, or MIG slice."""

    def __init__(self, description: str = "", interval: float = 1.0, id: int | str = 0) -> None:
        super().__init__(description, interval, id)


class GPUMetric(_OnGpu):
    """Time in which the GPU ran any kernel."""

    measure_type, name, unit = "gpu", "nvml.utilization_percent", "%"
    source, quantity, reducer = "nvml", "utilization_percent", "mean"
    about = "of the whole GPU, all processes"


class GPUMemoryMetric(_OnGpu):
    """Memory in use on a GPU."""

    measure_type, name, unit = "gpumemory", "nvml.memory_used_mb", "MiB"
    source, quantity, reducer = "nvml", "memory_used_mb", "max"
    about = "of the whole GPU or slice, all processes; one value is the most"


class GPUPowerMetric(_OnGpu):
    """Power that a GPU draws."""

    measure_type, name, unit = "gpupower", "nvml.power_w", "W"
    source, quantity, reducer = "nvml", "power_w", "mean"
    about = "of the whole board"


class GPUEnergyMetric(_OnGpu):
    """Energy that a GPU takes; UMLAUT has none."""

    measure_type, name, unit = "gpuenergy", "nvml.energy_j", "J"
    source, quantity, reducer = "nvml", "energy_j", "delta"
    about = "the board's energy counter"
