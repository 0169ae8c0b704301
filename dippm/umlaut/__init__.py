"""UMLAUT's gestures on DIPPM's runs: a script of UMLAUT's needs its import line changed.

>>> from dippm.umlaut import Benchmark, BenchmarkSupervisor, TimeMetric
>>> bm = Benchmark("KAI.db", description="how it is used")  # doctest: +SKIP
>>> @BenchmarkSupervisor([TimeMetric("time")], bm)  # doctest: +SKIP
... def train(): ...
"""

from dippm.umlaut.benchmark import Benchmark, VisualizationBenchmark
from dippm.umlaut.clocks import GPUTimeMetric, LatencyMetric, ThroughputMetric, TimeMetric
from dippm.umlaut.metric import Metric, PerEntry, Sampled
from dippm.umlaut.sampled import (
    CPUMetric,
    EnergyMetric,
    GPUEnergyMetric,
    GPUMemoryMetric,
    GPUMetric,
    GPUPowerMetric,
    MemoryMetric,
    PowerMetric,
)
from dippm.umlaut.supervisor import BenchmarkSupervisor
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
