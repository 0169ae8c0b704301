"""Device memory: tensors of a pass, the allocator's segments for them, the driver's figure.

driver   = context + reserved
context  = software + multiprocessors · share + libraries of convolutions (if there are any)
reserved = segments of the caching allocator, of weights, tensors and workspaces

The context is what `nvidia-smi` shows beyond the framework's own count: driver, libraries, kernels.
It grows with the multiprocessors of the GPU or slice, which need stacks and local memory each, and
is a matter of the installation: the generation of the software decides most of it. The reserved
part is a matter of the model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any, Self

from dippm.errors import ConditionsError
from dippm.estimate.models.allocator import MIB
from dippm.estimate.models.footprint import MemoryFootprint, MemoryGpu, Usage
from dippm.estimate.models.targets import MemoryParts
from dippm.model.graph.model_graph import ModelGraph

__all__ = ["MIB", "Context", "MemoryFootprint", "MemoryGpu", "MemoryModel", "Usage", "log_sd"]

USUAL_MULTIPROCESSORS = 80
"""Assumed for a GPU whose number of multiprocessors is not known."""
LAZY = "lazy"
GIVEN_LOG_ERROR = 0.03
"""Log error of a measured context: kernels that a model loads later add to it."""
KEPT_LOG_ERROR = 0.05
"""Log error of the tensors that autograd keeps, which follow from the graph. The rows of D3.5's
table 4 are within 2 %, but these are three models, so more is allowed for."""
ONE_CONTEXT = "that of the checkpoint"
"""Name of the class in answers of a checkpoint that knows no classes."""
AskedContext = float | str | None
"""Context that a user states, see `Conditions.context_mb`."""


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one answer.

    Attributes:
        software: class of software, "as given", or `ONE_CONTEXT`.
        context_mb: memory of the process besides the allocator's.
        sd_mb: standard deviation between installations; None if the error of the whole memory says
            it, as in checkpoints that know no classes.
        assumed: whether the context was assumed rather than named.
    """

    software: str
    context_mb: float
    sd_mb: float | None
    assumed: bool


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The fitted parameters.

    Attributes:
        context_mb: context of the default software, without what the multiprocessors need.
        context_mb_per_sm: context of each multiprocessor of the GPU or slice.
        convolution_mb: library that is loaded with the first convolution.
        log_error: standard deviation of the log error of the reserved part, measured on models
            left out; of the whole memory if there is no `software`.
        software: context in MB as `context_mb`, by class of software.
        default: class that an answer assumes; its context is `context_mb`.
        class_sd_mb: standard deviation of the context between installations of a class.
        unknown_sd_mb: root mean square deviation of all measured installations from the default.
    """

    context_mb: float
    context_mb_per_sm: float
    convolution_mb: float
    log_error: float
    software: Mapping[str, float] | None = None
    default: str = ""
    class_sd_mb: float = 0.0
    unknown_sd_mb: float = 0.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the model of a checkpoint, also of one that knows no classes of software."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in config.items() if name in known})

    def memory_mb(self, usage: Usage, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the device memory that `nvidia-smi` shows.

        Args:
            usage: of the model at a batch, on a GPU with its workspace.
            gpu: that it runs on, or a slice of it.
            asked: context that the user states.

        Raises:
            ConditionsError: if a class of software is asked for that is not known.
        """
        context = self.context_of(gpu, convolves=usage.convolves, asked=asked)
        return context.context_mb + usage.reserved_mb

    def log_sd(self, usage: Usage, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the standard deviation of the log error of `memory_mb`, same arguments."""
        context = self.context_of(gpu, convolves=usage.convolves, asked=asked)
        return log_sd(usage.reserved_mb, context, self.log_error, usage.kept_bytes / MIB)

    def parts(
        self, usage: Usage, graph: ModelGraph, gpu: MemoryGpu, asked: AskedContext = None
    ) -> MemoryParts:
        """Return what `memory_mb` is the sum of, and where the activations have their peak."""
        alive = usage.alive
        node = None if alive.node is None else graph.nodes[alive.node]
        weights_mb = (usage.weight_bytes + alive.cast_weight_bytes) / MIB
        activations_mb = alive.activation_bytes / MIB
        context = self.context_of(gpu, convolves=usage.convolves, asked=asked)
        return MemoryParts(
            weights_mb=weights_mb,
            activations_mb=activations_mb,
            workspace_mb=max(0.0, usage.reserved_mb - weights_mb - activations_mb),
            context_mb=context.context_mb,
            peak_node=alive.node,
            peak_op=node.op if node else "",
            peak_path=node.path if node else "",
            context_software=context.software,
            context_sd_mb=context.sd_mb,
            context_assumed=context.assumed,
        )

    def context_of(self, gpu: MemoryGpu, *, convolves: bool, asked: AskedContext = None) -> Context:
        """Return the context of a process.

        Args:
            gpu: that it runs on, or a slice of it.
            convolves: whether the library of convolutions is loaded.
            asked: memory in MiB, which is all of it; a class of software; None for the default, or
                for the newest where the GPU runs with no older one.

        Raises:
            ConditionsError: if a class of software is asked for that is not known.
        """
        if isinstance(asked, float | int):
            return Context("as given", float(asked), GIVEN_LOG_ERROR * asked, assumed=False)
        multiprocessors = USUAL_MULTIPROCESSORS if gpu.sm_count is None else gpu.sm_count
        libraries_mb = self.convolution_mb if convolves else 0.0

        def whole(base_mb: float) -> float:
            return base_mb + self.context_mb_per_sm * multiprocessors + libraries_mb

        if asked is not None:
            if self.software is None or asked not in self.software:
                raise ConditionsError(
                    f"the checkpoint does not know the context of software of the class {asked}",
                    "Give its memory in MiB, context_mb=1800; `dippm doctor` measures it.",
                )
            return Context(asked, whole(self.software[asked]), self.class_sd_mb, assumed=False)
        if gpu.is_lazy and self.software is not None and LAZY in self.software:
            return Context(LAZY, whole(self.software[LAZY]), self.class_sd_mb, assumed=True)
        if self.software is None:
            return Context(ONE_CONTEXT, whole(self.context_mb), None, assumed=True)
        return Context(self.default, whole(self.context_mb), self.unknown_sd_mb, assumed=True)


def log_sd(reserved_mb: float, context: Context, log_error: float, kept_mb: float = 0.0) -> float:
    """Return the standard deviation of the log of reserved memory and context together.

    Args:
        reserved_mb: memory that the allocator reserves.
        context: context of the process.
        log_error: log error of the reserved part.
        kept_mb: reserved memory that autograd alone keeps, whose error is smaller.
    """
    total_mb = reserved_mb + context.context_mb
    if context.sd_mb is None or total_mb <= 0.0:
        return log_error
    errors_mb = log_error * (reserved_mb - kept_mb), KEPT_LOG_ERROR * kept_mb, context.sd_mb
    return hypot(*errors_mb) / total_mb
