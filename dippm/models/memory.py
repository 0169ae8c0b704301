"""Device memory: what a pass keeps, what the allocator takes for it, what the driver shows.

driver  = context + reserved
context = base + multiprocessors · share + libraries of convolutions (if there are any)
reserved = weights + workspace of cuBLAS + segments of the caching allocator

The context is what `nvidia-smi` shows beyond the framework's own count: driver, libraries, kernels.
It grows with the multiprocessors of the GPU or slice, which need stacks and local memory each.
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.graph.model_graph import ModelGraph
from dippm.models.footprint import MemoryFootprint, Usage
from dippm.models.targets import MemoryParts

__all__ = ["MIB", "MemoryFootprint", "MemoryModel", "Usage"]

MIB = 2.0**20
PRODUCT_WORKSPACE = 8_519_680
"""Bytes that PyTorch gives cuBLAS with the first matrix product, CUBLAS_WORKSPACE_CONFIG unset."""
USUAL_MULTIPROCESSORS = 80
"""Taken for a GPU of which nobody says how many it has."""


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The fitted part.

    Attributes:
        context_mb: driver context and framework, without what the multiprocessors need.
        context_mb_per_sm: what each multiprocessor of the GPU or slice needs.
        convolution_mb: library that is loaded with the first convolution.
        log_error: standard deviation of the log error, measured on models left out.
    """

    context_mb: float
    context_mb_per_sm: float
    convolution_mb: float
    log_error: float

    def memory_mb(self, usage: Usage, sm_count: int | None) -> float:
        """Return the device memory that `nvidia-smi` shows.

        Args:
            usage: of the model at a batch.
            sm_count: multiprocessors of the GPU or slice, None if nobody says.
        """
        return self.context_of(sm_count, convolves=usage.convolves) + reserved_mb(usage)

    def parts(self, usage: Usage, graph: ModelGraph, sm_count: int | None) -> MemoryParts:
        """Return what `memory_mb` is the sum of, and where the activations have their peak."""
        alive = usage.alive
        node = None if alive.node is None else graph.nodes[alive.node]
        weights_mb = (usage.weight_bytes + alive.cast_weight_bytes) / MIB
        activations_mb = alive.activation_bytes / MIB
        return MemoryParts(
            weights_mb=weights_mb,
            activations_mb=activations_mb,
            workspace_mb=max(0.0, reserved_mb(usage) - weights_mb - activations_mb),
            context_mb=self.context_of(sm_count, convolves=usage.convolves),
            peak_node=alive.node,
            peak_op=node.op if node else "",
            peak_path=node.path if node else "",
        )

    def context_of(self, sm_count: int | None, *, convolves: bool) -> float:
        """Return the context of a process, in MB.

        Args:
            sm_count: multiprocessors of the GPU or slice, None if nobody says.
            convolves: whether the library of convolutions is loaded.
        """
        multiprocessors = USUAL_MULTIPROCESSORS if sm_count is None else sm_count
        libraries = self.convolution_mb if convolves else 0.0
        return self.context_mb + self.context_mb_per_sm * multiprocessors + libraries


def reserved_mb(usage: Usage) -> float:
    """Return what PyTorch's allocator reserves: `torch.cuda.max_memory_reserved`."""
    workspace = PRODUCT_WORKSPACE if usage.multiplies else 0
    return (usage.weight_bytes + workspace + usage.reserved_bytes) / MIB
