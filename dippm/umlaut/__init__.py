"""UMLAUT's API on DIPPM's runs: a script for UMLAUT only needs another import line.

>>> from dippm.umlaut import Benchmark, BenchmarkSupervisor, TimeMetric
>>> bm = Benchmark("KAI.db", description="how it is used")  # doctest: +SKIP
>>> @BenchmarkSupervisor([TimeMetric("time")], bm)  # doctest: +SKIP
... def train(): ...
"""

from dippm.umlaut.benchmark import Benchmark, BenchmarkSupervisor, VisualizationBenchmark
from dippm.umlaut.metric import (
    CPUMetric,
    EnergyMetric,
    GPUEnergyMetric,
    GPUMemoryMetric,
    GPUMetric,
    GPUPowerMetric,
    GPUTimeMetric,
    LatencyMetric,
    MemoryMetric,
    Metric,
    PerEntry,
    PowerMetric,
    Sampled,
    ThroughputMetric,
    TimeMetric,
)
from dippm.umlaut.trackers import (
    ConfusionMatrixTracker,
    HyperparameterTracker,
    LossTracker,
    TimedTTATracker,
    TTATracker,
)

__all__ = [
    "Benchmark",
    "BenchmarkSupervisor",
    "CPUMetric",
    "ConfusionMatrixTracker",
    "EnergyMetric",
    "GPUEnergyMetric",
    "GPUMemoryMetric",
    "GPUMetric",
    "GPUPowerMetric",
    "GPUTimeMetric",
    "HyperparameterTracker",
    "LatencyMetric",
    "LossTracker",
    "MemoryMetric",
    "Metric",
    "PerEntry",
    "PowerMetric",
    "Sampled",
    "TTATracker",
    "ThroughputMetric",
    "TimeMetric",
    "TimedTTATracker",
    "VisualizationBenchmark",
]
