"""The memory of an answer: value, interval, bound, parts and warnings.

    M          = context + weights + segments of the allocator      the law of `memory`
    interval   = M · exp(±Z90 · sd)
    99 % bound = M of the whole GPU · exp(Z99 · sd)

with sd the standard deviation of log M. A slice is held to the bound of the whole GPU, whose
context is larger: how much smaller the context of a slice is, one laboratory measured, and another
one's was larger throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from dippm.devices import smallest_profile
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.intervals import COVERAGE, Z90, Z99
from dippm.estimate.models.memory import MIB, MemoryGpu
from dippm.estimate.models.phases import GraphParts, Memory
from dippm.estimate.models.targets import Estimate, MemoryParts
from dippm.model.graph.model_graph import ModelGraph

CONTEXT_DECIDES = 0.5
"""Share of the memory from which on an answer says that it depends on the context."""


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The memory of one point.

    Attributes:
        estimate: memory in MB, as `nvidia-smi` shows it.
        bound_mb: one-sided 99 % upper bound.
        parts: summands of the estimate; None if they were not asked for.
    """

    estimate: Estimate
    bound_mb: float
    parts: MemoryParts | None


class MemoryAnswers:
    """Answers for the memory of one phase.

    Args:
        memory: the model of memory.
        parts: kernels and footprints of graphs.
    """

    def __init__(self, memory: Memory, parts: GraphParts) -> None:
        self._memory, self._parts = memory, parts

    def answer(self, graph: ModelGraph, c: Conditions, *, with_parts: bool) -> MemoryAnswer:
        """Return the memory under some conditions, see the module docstring for the formulas."""
        usage = self._parts.usage(graph, c)
        gpu = _gpu(c)
        asked = usage, gpu, c.context_mb
        estimate = Estimate.around(
            self._memory.memory_mb(*asked), Z90 * self._memory.log_sd(*asked), COVERAGE
        )
        parts = None
        if with_parts:
            parts = self._memory.parts(usage, graph, gpu, c.context_mb)
        return MemoryAnswer(estimate, self._bound_of(usage, c), parts)

    def bound_mb(self, graph: ModelGraph, c: Conditions) -> float:
        """Return the one-sided 99 % upper bound of the memory, in MB."""
        return self._bound_of(self._parts.usage(graph, c), c)

    def in_eight_bits(
        self, graph: ModelGraph, c: Conditions, half: Estimate, parts: MemoryParts | None
    ) -> tuple[Estimate, MemoryParts | None]:
        """Return the memory in 8 bits, and its parts.

        Its tensors are as far below those of 16 bits as these are below those of 32, halved. Layers
        that stay in 16 bits make it that of 16 at most, the end of its interval.

        Args:
            graph: of the model.
            c: of PyTorch in half precision.
            half: memory there.
            parts: of it.
        """
        usages = (self._parts.usage(graph, one) for one in (c.replace(precision="fp32"), c))
        wide, narrow = (usage.weight_bytes + usage.alive.total_bytes for usage in usages)
        saved_mb = max(0.0, wide - narrow) / 2 / MIB
        value = max(half.value - saved_mb, half.value / 2)
        low = half.interval.low * value / half.value
        found = replace(half, value=value, interval=replace(half.interval, low=low))
        return found, parts and _narrowed(parts, half.value - value)

    def _bound_of(self, usage: Any, c: Conditions) -> float:
        asked = usage, _gpu(c, whole=True), c.context_mb
        return self._memory.memory_mb(*asked) * exp(Z99 * self._memory.log_sd(*asked))

    def warnings(self, graph: ModelGraph, c: Conditions, answer: MemoryAnswer) -> Iterator[str]:
        """Yield what the memory of one point depends on: an assumed context, `torch.no_grad`."""
        parts = answer.parts
        if parts is None:
            return
        spread_mb = parts.context_sd_mb if parts.context_assumed else None
        if spread_mb is not None and parts.context_mb >= CONTEXT_DECIDES * answer.estimate.value:
            yield (
                f"{parts.context_mb:,.0f} MB of this memory are the context of driver and "
                f"libraries, assumed to be that of {parts.context_software}; installations differ "
                f"by {Z90 * spread_mb:,.0f} MB either way: name yours (`--context-mb`, "
                "`dippm doctor` measures it)"
            )
        if c.phase == "inference" and c.mode == "eager" and not c.autograd:
            yield from self._autograd_warnings(graph, c, answer.bound_mb)

    def _autograd_warnings(
        self, graph: ModelGraph, c: Conditions, bound_mb: float
    ) -> Iterator[str]:
        """Tell if a pass without `torch.no_grad` needs a larger slice, or does not fit."""
        place = _place(bound_mb, c)
        if place is None:
            return
        # What keeps every result keeps more; where that changes nothing, nothing else is followed.
        usage = self._parts.usage(graph, c)
        all_kept = self._parts.footprint(graph, c).all_kept(c.batch, usage)
        if _place(self._bound_of(all_kept, c), c) == place:
            return
        kept_mb = self._bound_of(self._parts.usage(graph, c.replace(autograd=True)), c)
        other = _place(kept_mb, c)
        if other != place:
            needs = f"without torch.no_grad this needs up to {kept_mb:,.0f} MB at 99 %"
            yield f"{needs}: {other or f'more than {c.mig or c.device.name} has'} (`--autograd`)"


def _place(bound_mb: float, c: Conditions) -> str | None:
    """Return the place that holds a memory: the slice asked for, else the smallest one or the GPU.

    None if it does not fit.
    """
    if bound_mb > c.capacity_mb:
        return None
    smallest = None if c.mig else smallest_profile(bound_mb, c.device)
    return str(smallest or c.mig or c.device.name)


def _gpu(c: Conditions, *, whole: bool = False) -> MemoryGpu:
    """Return the properties of the slice, or the whole GPU, that memory depends on."""
    sm_count = c.mig.sm_count if c.mig and not whole else c.device.sm_count
    return MemoryGpu(sm_count, c.device.compute_capability)


def _narrowed(parts: MemoryParts, saved_mb: float) -> MemoryParts:
    """Return the parts of memory, the tensors reduced by what 8 bits save."""
    tensors_mb = parts.weights_mb + parts.activations_mb
    left = max(0.0, 1.0 - saved_mb / tensors_mb) if tensors_mb else 1.0
    return replace(
        parts, weights_mb=left * parts.weights_mb, activations_mb=left * parts.activations_mb
    )
