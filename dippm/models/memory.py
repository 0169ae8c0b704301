"""Device memory: what must be there at once, and what allocator and context add."""

from __future__ import annotations

from dataclasses import dataclass

from dippm.conditions import Precision
from dippm.graph.liveness import peak, peak_activation_bytes
from dippm.graph.model_graph import ModelGraph
from dippm.models.targets import MemoryParts

MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """Bytes that follow from the graph alone, at float32 widths.

    Attributes:
        weight_bytes: parameters.
        peak_bytes: activations alive at once, at most, per sample and fixed.
    """

    weight_bytes: float
    peak_bytes_per_sample: float
    peak_bytes_fixed: float

    @classmethod
    def of(cls, graph: ModelGraph) -> MemoryFootprint:
        """Measure a graph; the peak is affine in the batch."""
        if not graph.batch_is_symbolic:
            return cls(float(graph.param_bytes), 0.0, float(peak_activation_bytes(graph)))
        low, high = (peak_activation_bytes(graph.at_batch(b)) for b in (2, 6))
        slope = (high - low) / 4
        return cls(float(graph.param_bytes), slope, max(0.0, low - 2 * slope))

    def peak_bytes(self, batch: int) -> float:
        """Return the activations alive at once for a batch."""
        return self.peak_bytes_fixed + batch * self.peak_bytes_per_sample


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The fitted part.

    Attributes:
        context_mb: driver context, libraries and framework on the device.
        activation_factor: reserved over alive: caching allocator, workspaces, fragmentation.
        log_error: standard deviation of the log error, measured on models left out.
    """

    context_mb: float
    activation_factor: float
    log_error: float

    def parts(
        self, footprint: MemoryFootprint, graph: ModelGraph, batch: int, precision: Precision
    ) -> MemoryParts:
        """Return what `memory_mb` is the sum of, and where the activations have their peak.

        Args:
            footprint: of the graph.
            graph: the model.
            batch: samples per pass.
            precision: number formats.
        """
        weights, activations = widths(precision)
        alive_mb = activations * footprint.peak_bytes(batch) / MIB
        bound = graph.at_batch(batch) if graph.batch_is_symbolic else graph
        place = peak(bound).node
        node = None if place is None else bound.nodes[place]
        return MemoryParts(
            weights_mb=weights * footprint.weight_bytes / MIB,
            activations_mb=alive_mb,
            allocator_mb=(self.activation_factor - 1) * alive_mb,
            context_mb=self.context_mb,
            peak_node=place,
            peak_op=node.op if node else "",
            peak_path=node.path if node else "",
        )

    def memory_mb(self, footprint: MemoryFootprint, batch: int, precision: Precision) -> float:
        """Return the device memory that the driver shows, in MB."""
        weights, activations = widths(precision)
        allocated = (
            weights * footprint.weight_bytes
            + self.activation_factor * activations * footprint.peak_bytes(batch)
        )
        return self.context_mb + allocated / MIB


def widths(precision: Precision) -> tuple[float, float]:
    """Return bytes per element of (weights, activations), relative to float32.

    Autocast keeps float32 weights and a half-precision copy of each.
    """
    if precision in ("fp16", "bf16"):
        return 0.5, 0.5
    if precision in ("amp", "amp-bf16"):
        return 1.5, 0.6
    return 1.0, 1.0
