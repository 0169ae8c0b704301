"""`TrainingMemory`: what a training step keeps in memory, part by part.

weights + gradients + states of the optimiser + activations saved for the gradients
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.conditions import Attention, Optimizer, Precision
from dippm.features.kernels import sequence_of, training_step
from dippm.features.kernels.optimizers import UPDATES
from dippm.graph.model_graph import ModelGraph

HALF: tuple[Precision, ...] = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes at the end of the forward pass of a step, gradients of the last one included.

    Attributes:
        weight_bytes: parameters that are trained.
        gradient_bytes: as many of the same type.
        optimizer_bytes: its states, of the same type.
        saved_bytes: what autograd keeps; with checkpointing the most that is alive of it.
    """

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    saved_bytes: float

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
        """Follow a step of eager PyTorch.

        Args:
            graph: a graph that follows the batch, or one at this batch.
            batch: samples.
            precision: see `Conditions`.
            optimizer: whose states are kept.
            checkpointing: every block is run again in the backward pass, see `blocks_of`.
            channels_last: images are held so.
            attention: see `launched`.
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
        )

    @property
    def total_bytes(self) -> float:
        """Return the sum of all parts."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.saved_bytes
