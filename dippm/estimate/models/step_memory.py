"""Device memory of a training step.

driver   = context + reserved, the context as of inference
reserved = weights + gradients + states + workspace of cuBLAS + the greater of
           spread · saved activations + result and loss (the backward pass begins),
           what the update makes (end of the step)

The spread is what the caching allocator and the kernels' own workspaces take beyond what is saved.
Gradients are counted where most is saved: they are there already if they are not set to None, and
take the place of what is freed if they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.estimate.models.memory import (
    MIB,
    AskedContext,
    Context,
    MemoryGpu,
    MemoryModel,
    log_sd,
)
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.models.training_memory import StepUsage
from dippm.model.graph.model_graph import ModelGraph


@dataclass(frozen=True, slots=True)
class StepMemoryModel:
    """The fitted parameters.

    Attributes:
        context: model of the context, as for inference.
        spread: ratio of reserved to saved activations, at least 1.
        log_error: standard deviation of the log error of the reserved part, measured on models
            left out; of the whole memory if the context knows no classes of software.
    """

    context: MemoryModel
    spread: float
    log_error: float

    def memory_mb(self, usage: StepUsage, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the device memory that `nvidia-smi` shows.

        Args:
            usage: of a step at a batch.
            gpu: that it runs on, or a slice of it.
            asked: context that the user states.
        """
        return self._context(usage, gpu, asked).context_mb + self.reserved_mb(usage, gpu)

    def log_sd(self, usage: StepUsage, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the standard deviation of the log error of `memory_mb`, same arguments."""
        context = self._context(usage, gpu, asked)
        return log_sd(self.reserved_mb(usage, gpu), context, self.log_error)

    def _context(self, usage: StepUsage, gpu: MemoryGpu, asked: AskedContext) -> Context:
        return self.context.context_of(gpu, convolves=usage.convolves, asked=asked)

    def reserved_mb(self, usage: StepUsage, gpu: MemoryGpu) -> float:
        """Return what PyTorch's allocator reserves."""
        memory = usage.memory
        workspace_mb = gpu.workspace_bytes / MIB if usage.multiplies else 0.0
        begins = self.spread * memory.saved_bytes + memory.loss_bytes
        passing = max(begins, memory.fresh_bytes)
        return workspace_mb + (memory.kept_bytes + passing) / MIB

    def parts(
        self,
        usage: StepUsage,
        graph: ModelGraph,
        gpu: MemoryGpu,
        asked: AskedContext = None,
    ) -> MemoryParts:
        """Return what `memory_mb` is the sum of; it is most where the backward pass begins."""
        memory = usage.memory
        rest = self.reserved_mb(usage, gpu) - memory.total_bytes / MIB
        context = self._context(usage, gpu, asked)
        return MemoryParts(
            weights_mb=memory.weight_bytes / MIB,
            activations_mb=(memory.saved_bytes + memory.loss_bytes) / MIB,
            workspace_mb=max(0.0, rest),
            context_mb=context.context_mb,
            peak_node=None,
            peak_op="",
            peak_path="",
            gradients_mb=memory.gradient_bytes / MIB,
            optimizer_mb=memory.optimizer_bytes / MIB,
            context_software=context.software,
            context_sd_mb=context.sd_mb,
            context_assumed=context.assumed,
        )
