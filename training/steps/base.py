"""What a published law of inference says of a kernel: where the law of training steps starts.

Of that law the boosted trees and the effects of GPUs are taken: the trees see a kernel alone, the
networks look along the data flow of a forward pass, and have seen no backward pass. A step that is
held out starts from a fold of inference that did not see its architecture either.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dippm.estimate import pretrained
from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.gpu_effects import effect_of_kernels
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.kernel_law import KernelLaw
from training.steps.examples import StepExamples

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint of inference.

    Attributes:
        law: its trees, and the effects of GPUs.
        predictor: predictor of inference, whose host launches and copies.
    """

    law: KernelLaw
    predictor: Hybrid

    @classmethod
    def load(cls, checkpoint: Path) -> Base:
        """Read the folder of a checkpoint."""
        predictor = pretrained.load(checkpoint).predictor
        assert isinstance(predictor, Hybrid)
        assert isinstance(predictor.law, KernelLaw)
        return cls(predictor.law, predictor)

    def log_slowdown(self, features: NDArray[np.float32]) -> Floats:
        """Return the log slow-down of kernels by the shared law, within what was measured, (K,)."""
        kind = features[:, :N_KINDS].argmax(axis=1)
        slow = self.law.trees.log_slowdown(features)
        bounded = np.clip(slow, self.law.lowest[kind], self.law.highest[kind])
        return np.asarray(bounded, dtype=np.float64)

    def added(self, examples: StepExamples) -> Floats:
        """Return what the GPU of its row adds to the log slow-down of each kernel, (K,)."""
        kind, found = examples.kind, np.zeros(len(examples.part))
        for row, (first, end) in zip(
            examples.rows, zip(examples.start, examples.start[1:], strict=False), strict=True
        ):
            mine = slice(first, end)
            effects = self.law.effects.of(row.conditions_of_pass)
            given = kind[mine], examples.column[mine], examples.share[mine]
            found[mine] = effect_of_kernels(effects, *given)
        return found

    def launch_ms(self, examples: StepExamples) -> Floats:
        """Return the time of a launch on the machine that the GPU of each row usually has, (R,)."""
        hosts = [self.predictor.host_of(row.conditions_of_pass)[1] for row in examples.rows]
        return np.array([host.launch_ms for host in hosts], dtype=np.float64)

    @property
    def copy_bytes_per_ms(self) -> float:
        """Return the rate at which inputs are copied to the device."""
        return self.predictor.host.copy_bytes_per_ms
