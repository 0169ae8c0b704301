"""Memory of training steps, and of forward passes under autograd.

`TrainingMemory`     weights + gradients + states of the optimiser + saved activations, at a batch
`TrainingFootprint`  the same at any batch
`AutogradFootprint`  weights + saved activations: a forward pass without `torch.no_grad`
`StepMemoryModel`    device memory of a training step, with context and workspace
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

from dippm.estimate.conditions import Attention, Optimizer, Precision
from dippm.estimate.features.kernel_table import has_square
from dippm.estimate.features.kernels import sequence_of, training_step
from dippm.estimate.features.kernels.optimizers import UPDATES
from dippm.estimate.models.allocator import reserved_bytes
from dippm.estimate.models.footprint import Alive, MemoryFootprint, MemoryGpu, Usage
from dippm.estimate.models.memory import MIB, AskedContext, Context, MemoryModel, log_sd
from dippm.estimate.models.targets import MemoryParts
from dippm.model.graph.model_graph import ModelGraph

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
HALF: tuple[Precision, ...] = ("fp16", "bf16")
PROBES = (2, 6, 10)
"""Batches that determine saved bytes as a function of the batch; two do if nothing is squared."""
LARGE_PROBES = (512, 1024, 1536)
"""Further batches with checkpointing: the block that keeps most may differ at a large batch."""
PRIME_BATCH = 1009
"""Batch that is a factor of exactly those sizes that grow with it, because it is a large prime."""
_PRODUCTS = ("dense", "batch_matmul", "attention")


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes at the start of the backward pass of a step, with gradients of the previous step.

    Attributes:
        weight_bytes: bytes of the trained parameters.
        gradient_bytes: bytes of the gradients, which have the type of the parameters.
        optimizer_bytes: bytes of the optimiser's states, which have the type of the parameters.
        saved_bytes: bytes of tensors saved for the backward pass; with checkpointing their peak.
        fresh_bytes: bytes of the update's temporary tensors; it runs after saved ones are freed.
        loss_bytes: bytes of the result and of its loss's temporary tensors, see `TrainingStep`.
    """

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    saved_bytes: float
    fresh_bytes: float = 0.0
    loss_bytes: float = 0.0

    @classmethod
    def of(
        cls,
        graph: ModelGraph,
        batch: int,
        precision: Precision = "fp32",
        optimizer: Optimizer = "sgd",
        *,
        checkpointing: bool = False,
        channels_last: bool = False,
        attention: Attention = "fused",
    ) -> TrainingMemory:
        """Return the memory of a step in eager PyTorch.

        Args:
            graph: graph with a symbolic batch, or one at this batch.
            batch: batch size in samples.
            precision: number format, see `Conditions`.
            optimizer: optimiser whose states are kept.
            checkpointing: whether every block is run again in the backward pass, see `blocks_of`.
            channels_last: whether images are in channels-last layout.
            attention: "fused" or "unfused", see `launched`.
        """
        step = training_step(
            sequence_of(graph).at_batch(batch if graph.batch_is_symbolic else graph.batch),
            precision,
            optimizer=optimizer,
            channels_last=channels_last,
            attention=attention,
        )
        weights = float(sum(step.parameters) * (2 if precision in HALF else 4))
        return cls(
            weight_bytes=weights,
            gradient_bytes=weights,
            optimizer_bytes=weights * UPDATES[optimizer].states,
            saved_bytes=step.checkpointed_bytes if checkpointing else step.saved_bytes,
            fresh_bytes=weights * UPDATES[optimizer].fresh,
            loss_bytes=step.loss_bytes,
        )

    @property
    def kept_bytes(self) -> float:
        """Bytes that stay from step to step: parameters, gradients, states."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> float:
        """Sum of all parts at the start of the backward pass, in bytes."""
        return self.kept_bytes + self.saved_bytes + self.loss_bytes


@dataclass(frozen=True, slots=True)
class StepUsage:
    """The memory of a step at one batch.

    Attributes:
        memory: parts of the memory.
        forward_bytes: reserved memory of the forward pass alone, under `torch.no_grad`.
        convolves, multiplies: whether the model has convolutions, and matrix products.
    """

    memory: TrainingMemory
    forward_bytes: float
    convolves: bool
    multiplies: bool


@dataclass(frozen=True, slots=True)
class TrainingFootprint:
    """The memory of a step at any batch.

    Attributes:
        memory: parts of the memory, with saved bytes and loss at some batch.
        saved: saved bytes as polynomials of the batch, of which the largest value holds.
        loss: bytes of the loss as a polynomial of the batch.
        forward: footprint of the forward pass alone, under `torch.no_grad`.
        convolves, multiplies: whether the model has convolutions, and matrix products.
    """

    memory: TrainingMemory
    saved: tuple[Polynomial, ...]
    loss: Polynomial
    forward: MemoryFootprint
    convolves: bool
    multiplies: bool

    @classmethod
    def of(
        cls,
        graph: ModelGraph,
        precision: Precision = "fp32",
        optimizer: Optimizer = "sgd",
        *,
        checkpointing: bool = False,
        channels_last: bool = False,
        attention: Attention = "fused",
    ) -> TrainingFootprint:
        """Return the footprint from steps at a few batches; see `TrainingMemory.of`."""

        def memory(batch: int) -> TrainingMemory:
            return TrainingMemory.of(
                graph,
                batch,
                precision,
                optimizer,
                checkpointing=checkpointing,
                channels_last=channels_last,
                attention=attention,
            )

        operators = {node.op for node in graph.nodes}
        convolves = any(op.startswith("conv") for op in operators)
        multiplies = bool(operators.intersection(_PRODUCTS))
        forward = MemoryFootprint.of(
            graph, precision, attention=attention, channels_last=channels_last
        )
        if not graph.batch_is_symbolic:
            whole = memory(graph.batch)
            fixed = Polynomial([whole.saved_bytes]), Polynomial([whole.loss_bytes])
            return cls(whole, fixed[:1], fixed[1], forward, convolves, multiplies)
        count = 3 if has_square(sequence_of(graph)) else 2
        small, large = PROBES[:count], LARGE_PROBES[:count]
        probes = [memory(batch) for batch in small]
        saved = [_through(small, [probe.saved_bytes for probe in probes])]
        if checkpointing:
            saved.append(_through(large, [memory(batch).saved_bytes for batch in large]))
        loss = _through(small, [probe.loss_bytes for probe in probes])
        return cls(probes[0], tuple(saved), loss, forward, convolves, multiplies)

    def usage(self, batch: int, gpu: MemoryGpu = MemoryGpu()) -> StepUsage:
        """Return the memory at a batch; of the GPU only the workspace of products matters."""
        m = self.memory
        saved, loss = max(p(batch) for p in self.saved), self.loss(batch)
        memory = replace(m, saved_bytes=max(0.0, float(saved)), loss_bytes=max(0.0, float(loss)))
        forward = self.forward.usage(batch, gpu).reserved_bytes
        return StepUsage(memory, forward, self.convolves, self.multiplies)


def _through(batches: Sequence[int], values: Sequence[float]) -> Polynomial:
    """Return the polynomial through the values at some batches."""
    return Polynomial.fit(batches, values, len(batches) - 1).convert()


@dataclass(frozen=True, slots=True)
class AutogradFootprint:
    """The memory of an eager forward pass that keeps the tensors of a backward pass.

    Attributes:
        inference: footprint of the same pass under `torch.no_grad`.
        base, power: coefficients of each kept tensor's size, base · batch^power, shape (T,).
    """

    inference: MemoryFootprint
    base: Floats
    power: Integers

    @classmethod
    def of(
        cls,
        graph: ModelGraph,
        precision: Precision = "fp32",
        *,
        attention: Attention = "fused",
        channels_last: bool = False,
        inference: MemoryFootprint | None = None,
    ) -> AutogradFootprint:
        """Return the footprint from a pass at `PRIME_BATCH`, which shows what grows with the batch.

        Args:
            graph: graph of the model, as for `MemoryFootprint.of`.
            precision: number format.
            attention: "fused" or "unfused".
            channels_last: whether images are in channels-last layout.
            inference: footprint under `torch.no_grad`, if it is known already.
        """
        inference = inference or MemoryFootprint.of(
            graph, precision, attention=attention, channels_last=channels_last
        )

        def kept(batch: int) -> Floats:
            step = training_step(
                sequence_of(graph).at_batch(batch),
                precision,
                channels_last=channels_last,
                attention=attention,
            )
            return np.array(step.saved_tensors, dtype=np.float64)

        if not graph.batch_is_symbolic:
            whole = kept(graph.batch)
            return cls(inference, whole, np.zeros(len(whole), dtype=np.int64))
        whole = kept(PRIME_BATCH)
        power = np.sum([whole % PRIME_BATCH**n == 0 for n in (1, 2)], axis=0)
        return cls(inference, whole / float(PRIME_BATCH) ** power, power)

    def usage(self, batch: int, gpu: MemoryGpu = MemoryGpu(), least: Usage | None = None) -> Usage:
        """Return the memory at a batch, at least that of the pass under `torch.no_grad`.

        Args:
            batch: batch size in samples.
            gpu: GPU that the pass runs on.
            least: memory under `torch.no_grad`, if it is known already.
        """
        least = least or self.inference.usage(batch, gpu)
        sizes = self.sizes(batch)
        count = len(sizes)
        reserved = reserved_bytes(
            sizes.astype(np.int64).tolist(),
            range(count),
            [count] * count,
            residents=self.inference.weights,
            lasting=self.inference.product_workspaces,
        )
        reserved -= self.inference.spared_bytes(gpu)
        if reserved <= least.reserved_bytes:
            return least
        return replace(
            least,
            alive=Alive(float(sizes.sum()), 0.0, None),
            reserved_bytes=float(reserved),
            kept_bytes=reserved - least.reserved_bytes,
        )

    def sizes(self, batch: int) -> Floats:
        """Return the bytes of each kept tensor at a batch, shape (T,)."""
        return np.asarray(self.base * float(batch) ** self.power)


# Device memory of a training step.
#
# memory   = context + reserved, with the context of inference
# reserved = weights + gradients + states + workspace of cuBLAS + the larger of
#            spread · saved activations + result and loss (start of the backward pass),
#            temporary tensors of the update (end of the step);
#            no less than the forward pass alone takes, beside the states
#
# The spread accounts for what the caching allocator and the kernels' own workspaces take in
# addition to saved tensors. Gradients count at the start of the backward pass: if they are not set
# to None, they exist already; if they are, they take the place of activations that are freed.


@dataclass(frozen=True, slots=True)
class StepMemoryModel:
    """Memory model of training steps, with fitted parameters.

    Attributes:
        context: model of the context, which is that of inference.
        spread: ratio of reserved memory to saved activations, at least 1.
        log_error: standard deviation of the log error of the reserved part, measured on held-out
            models; of the whole memory if `context` has no classes of software.
    """

    context: MemoryModel
    spread: float
    log_error: float

    def memory_mb(self, usage: StepUsage, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the device memory in MiB that `nvidia-smi` shows.

        Args:
            usage: usage of a step at a batch.
            gpu: GPU, or slice of it, that the step runs on.
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
        """Return the memory in MiB that PyTorch's allocator reserves."""
        memory = usage.memory
        workspace_mb = gpu.workspace_bytes / MIB if usage.multiplies else 0.0
        begins = self.spread * memory.saved_bytes + memory.loss_bytes
        passing = max(begins, memory.fresh_bytes)
        forward_mb = (usage.forward_bytes + memory.optimizer_bytes) / MIB
        return max(workspace_mb + (memory.kept_bytes + passing) / MIB, forward_mb)

    def parts(
        self, usage: StepUsage, graph: ModelGraph, gpu: MemoryGpu, asked: AskedContext = None
    ) -> MemoryParts:
        """Return the parts of `memory_mb`, which is largest when the backward pass starts."""
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
