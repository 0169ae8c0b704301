"""`PhaseModel`: kernels and memory of a model in a forward pass or a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions, Phase, same_arithmetic
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_graph import KernelGraph
from dippm.estimate.features.kernel_table import SETTINGS, KernelTable
from dippm.estimate.features.kernels.backward.checkpointing import blocks_of
from dippm.estimate.models.kernel_law import KernelLaw, Law
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.memory import AskedContext, MemoryFootprint, MemoryGpu, MemoryModel
from dippm.estimate.models.predictor import phases_of
from dippm.estimate.models.step_law import StepLaw
from dippm.estimate.models.step_memory import StepMemoryModel
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.models.training_memory import AutogradFootprint, TrainingFootprint
from dippm.model.graph.model_graph import ModelGraph

_LAUNCHES = SETTINGS.index("launches")
_FROM_PYTHON = [PARTS.index("forward"), PARTS.index("recompute")]
"""Parts whose kernels Python launches one by one."""


AUTOGRAD_TIME = (
    "latency and energy are those of a pass under torch.no_grad: autograd adds time of the host"
)


class Memory(Protocol):
    """A model of memory; `usage` is the value that the footprint of the phase returns."""

    def memory_mb(self, usage: Any, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the device memory that `nvidia-smi` shows."""

    def log_sd(self, usage: Any, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the standard deviation of its log error."""

    def parts(
        self, usage: Any, graph: ModelGraph, gpu: MemoryGpu, asked: AskedContext = None
    ) -> MemoryParts:
        """Return the parts of that memory."""


class PhaseModel(Protocol):
    """The parts of a prediction that differ between phases.

    Attributes:
        name: name of the phase.
        memory: model of its memory.
    """

    name: Phase
    memory: Memory

    def law(self, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Law:
        """Read the law of a checkpoint."""

    def key(self, c: Conditions) -> tuple[Any, ...]:
        """Return the conditions, besides the precision, that decide which kernels run."""

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a model, and the arrays that the law needs of them."""

    def launches(self, table: KernelTable) -> float:
        """Return the launches of the kernels, counted as those of a forward pass."""

    def footprint(self, graph: ModelGraph, c: Conditions, without: Any = None) -> Any:
        """Return the footprint at any batch, whose `usage(batch, gpu)` is for `memory`.

        Under autograd `without` is the footprint without it, if that is known already.
        """

    def refuse(self, c: Conditions) -> None:
        """Refuse conditions that the phase cannot answer.

        Raises:
            ConditionsError: if it is asked for.
        """

    def never_measured(self, name: str) -> str:
        """Return the warning for a GPU of which nothing was measured."""

    def warnings(self, graph: ModelGraph, c: Conditions) -> list[str]:
        """Return what to know about an answer of this phase."""


class ForwardPass:
    """Inference."""

    name: Phase = "inference"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.memory: Memory = MemoryModel.from_config(config["memory"])

    def law(self, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Law:
        """Read networks and trees."""
        return KernelLaw.from_checkpoint(tensors, config)

    def key(self, c: Conditions) -> tuple[Any, ...]:
        """Return mode, layout and attention, and the runtime."""
        return c.mode, c.channels_last, c.attention, c.runtime

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a pass."""
        precision = same_arithmetic(c.device, c.precision)[0]
        if c.runtime == "pytorch":
            table = KernelTable.of(
                graph, precision, c.mode, channels_last=c.channels_last, attention=c.attention
            )
        else:
            table = KernelTable.of_engine(
                graph, precision, attention=c.attention, runtime=c.runtime
            )
        return table, LawKernels.of(KernelGraph.of(table, ROUNDS))

    def launches(self, table: KernelTable) -> float:
        """Return how many there are, those inside of library calls by what they take."""
        return table.host_launches

    def footprint(self, graph: ModelGraph, c: Conditions, without: Any = None) -> Any:
        """Return the tensors of a pass."""
        if c.autograd:
            return AutogradFootprint.of(
                graph,
                c.precision,
                attention=c.attention,
                channels_last=c.channels_last,
                inference=without,
            )
        return MemoryFootprint.of(
            graph, c.precision, c.mode, channels_last=c.channels_last, attention=c.attention
        )

    def refuse(self, c: Conditions) -> None:
        """Refuse nothing."""

    def never_measured(self, name: str) -> str:
        """Return that other GPUs stand for it."""
        return f"{name} was never measured: extrapolated from other GPUs"

    def warnings(self, graph: ModelGraph, c: Conditions) -> list[str]:
        """Yield what autograd does besides keeping tensors."""
        return [AUTOGRAD_TIME] if c.autograd else []


class TrainingSteps:
    """Forward, backward and update."""

    name: Phase = "train"

    def __init__(self, config: Mapping[str, Any]) -> None:
        memory = config["memory"]
        self.memory: Memory = StepMemoryModel(
            MemoryModel.from_config(memory), memory["spread"], memory["log_error"]
        )
        self._launch_share = float(config["step"]["launch_share"])
        self._measured: Mapping[str, Sequence[str]] = config["seen"]["devices"]

    def law(self, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Law:
        """Read trees of inference and of training steps."""
        return StepLaw.from_checkpoint(tensors, config)

    def key(self, c: Conditions) -> tuple[Any, ...]:
        """Return layout, attention, optimiser and checkpointing."""
        return c.channels_last, c.attention, c.optimizer, c.checkpointing

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a step."""
        table = KernelTable.of_training(
            graph,
            same_arithmetic(c.device, c.precision)[0],
            c.optimizer,
            channels_last=c.channels_last,
            attention=c.attention,
            checkpointing=c.checkpointing,
        )
        return table, LawKernels.of(KernelGraph.of(table, 0))

    def launches(self, table: KernelTable) -> float:
        """Return launches, those that no line of Python makes by what they take."""
        counts = table.settings[:, _LAUNCHES]
        inside = float(counts[np.isin(table.part, _FROM_PYTHON)].sum())
        outside = self._launch_share * (float(counts.sum()) - inside)
        return inside + outside + table.host_launches - table.launches

    def footprint(self, graph: ModelGraph, c: Conditions, without: Any = None) -> Any:
        """Return what a step keeps."""
        return TrainingFootprint.of(
            graph,
            c.precision,
            c.optimizer,
            checkpointing=c.checkpointing,
            channels_last=c.channels_last,
            attention=c.attention,
        )

    def refuse(self, c: Conditions) -> None:
        """Refuse compiled training, whose kernels are not known.

        Raises:
            ConditionsError: if it is asked for.
        """
        if c.mode == "compiled":
            raise ConditionsError(
                "compiled training steps are not predicted: there are no measurements of them",
                "Ask for mode=eager.",
            )

    def never_measured(self, name: str) -> str:
        """Return what stands for its training steps."""
        return (
            f"no training step was measured on {name}: extrapolated from inference and from "
            f"training steps on {', '.join(sorted(self._measured))}"
        )

    def warnings(self, graph: ModelGraph, c: Conditions) -> list[str]:
        """Tell of power, which was not measured, and of models without blocks to checkpoint."""
        found = ["power and energy follow the law of inference: of no step the power was measured"]
        if c.checkpointing and not any(blocks_of({node.path for node in graph.nodes}).values()):
            found.append(
                "checkpointing changes nothing: the model has no numbered blocks, by the paths of "
                "its modules"
            )
        return found


def phase_model(config: Mapping[str, Any]) -> PhaseModel:
    """Return the phase that a checkpoint answers for."""
    return TrainingSteps(config) if phases_of(config) == ("train",) else ForwardPass(config)
