"""Phases of a model: how kernels and memory of inference and of a training step are predicted.

A `PhaseModel` is what differs between phases; `ForwardPass` and `TrainingSteps` are the two.
`GraphParts` caches kernels and footprints of the most recent graphs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions, Phase, same_arithmetic
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_table import SETTINGS, KernelGraph, KernelTable
from dippm.estimate.features.kernels.backward.gradients import blocks_of
from dippm.estimate.models.kernel_law import KernelLaw, Law
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.estimate.models.memory import AskedContext, MemoryFootprint, MemoryGpu, MemoryModel
from dippm.estimate.models.predictor import phases_of
from dippm.estimate.models.step_law import StepLaw
from dippm.estimate.models.targets import MemoryParts
from dippm.estimate.models.training_memory import (
    AutogradFootprint,
    StepMemoryModel,
    TrainingFootprint,
)
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.graph.operators import operator

_LAUNCHES = SETTINGS.index("launches")
_FORWARD, _AGAIN = PARTS.index("forward"), PARTS.index("recompute")
_OF_WEIGHTS = PARTS.index("backward_weight")

AUTOGRAD_TIME = (
    "latency and energy are those of a pass under torch.no_grad: autograd adds time of the host"
)
FEW_NORMS = 0.1
"""Norms per convolution below which a file's exporter may have folded norms into them."""
MANY_CONVOLUTIONS = 8
"""Convolutions from which a file's few norms say something: transformers have one or two."""


def folded_norms(graph: ModelGraph) -> list[str]:
    """Return a warning if an exporter may have folded away norms whose results autograd keeps."""
    if graph.program is None or graph.program.called or graph.calls is None:
        return []
    categories = Counter(operator(call.op).category for call in graph.calls.calls)
    convolutions = sum(call.op.startswith("conv") for call in graph.calls.calls)
    if convolutions < MANY_CONVOLUTIONS or categories["norm"] >= FEW_NORMS * convolutions:
        return []
    return [
        f"the file has {convolutions} convolutions and {categories['norm']} norms: if its exporter "
        "folded batch norms, as for inference, time and memory are more than this; give the "
        "module, or a file exported with training=torch.onnx.TrainingMode.TRAINING"
    ]


class Memory(Protocol):
    """A memory model; `usage` is the value that the footprint of the phase returns."""

    def memory_mb(self, usage: Any, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the device memory in MB that `nvidia-smi` shows."""

    def log_sd(self, usage: Any, gpu: MemoryGpu, asked: AskedContext = None) -> float:
        """Return the standard deviation of the log error of `memory_mb`."""

    def parts(
        self, usage: Any, graph: ModelGraph, gpu: MemoryGpu, asked: AskedContext = None
    ) -> MemoryParts:
        """Return the parts that `memory_mb` is the sum of."""


class PhaseModel(Protocol):
    """The parts of a prediction that differ between phases.

    Attributes:
        name: name of the phase.
        memory: memory model of the phase.
    """

    name: Phase
    memory: Memory

    def law(self, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Law:
        """Read the law of a checkpoint."""

    def key(self, c: Conditions) -> tuple[Any, ...]:
        """Return the conditions, besides the precision, that decide which kernels run."""

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a model, and the arrays of them that the law reads."""

    def launches(self, table: KernelTable) -> float:
        """Return the launches of the kernels, in units of a launch of a forward pass."""

    def footprint(self, graph: ModelGraph, c: Conditions, without: Any = None) -> Any:
        """Return the footprint at any batch; `memory` takes the value of its `usage(batch, gpu)`.

        Args:
            graph: graph of the model.
            c: conditions.
            without: with autograd, the footprint without it, if it is known already.
        """

    def refuse(self, c: Conditions) -> None:
        """Check that conditions can be predicted.

        Raises:
            ConditionsError: if they cannot.
        """

    def never_measured(self, name: str) -> str:
        """Return the warning for a GPU without measurements."""

    def warnings(self, graph: ModelGraph, c: Conditions) -> list[str]:
        """Return the warnings for an answer of this phase."""


class ForwardPass:
    """Inference: a forward pass."""

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
        """Return the number of launches, see `KernelTable.host_launches`."""
        return table.host_launches

    def footprint(self, graph: ModelGraph, c: Conditions, without: Any = None) -> Any:
        """Return the footprint of a pass, with or without autograd."""
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
        """Return the warning that the GPU is extrapolated from other GPUs."""
        return f"{name} was never measured: extrapolated from other GPUs"

    def warnings(self, graph: ModelGraph, c: Conditions) -> list[str]:
        """Return the warning that the time of autograd itself is not predicted."""
        return [AUTOGRAD_TIME, *folded_norms(graph)] if c.autograd else []


BACKWARD = tuple(i for i, part in enumerate(PARTS) if part.startswith("backward"))
"""Indices in `PARTS` of the parts of a step that compute gradients."""


HOST_TERMS = ("forward", "later", "layer")
"""What occupies the host in a training step, in the order of `step_launches`."""


def launch_weights(step: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the host time of `step_launches`, in launches of inference, shape (3,).

    Args:
        step: part "step" of a configuration. One that has "launch_share" was written when a step
            cost the host no more than its launches, those outside of the forward pass a share.
    """
    if "launch_share" in step:
        return np.array([1.0, step["launch_share"], 0.0])
    return np.array([step["launches"][name] for name in HOST_TERMS])


def step_launches(table: KernelTable) -> NDArray[np.float64]:
    """Return how often a training step has each of HOST_TERMS, shape (3,).

    Returns:
        Launches of the forward pass, launches of the rest without what is run again, and layers
        whose weights have gradients.
    """
    part, counts = table.part, table.settings[:, _LAUNCHES]
    forward = counts[part == _FORWARD].sum()
    later = counts[(part != _FORWARD) & (part != _AGAIN)].sum()
    layers = len(np.unique(table.node[part == _OF_WEIGHTS]))
    return np.array([forward, later, layers], dtype=np.float64)


class TrainingSteps:
    """Training steps: forward pass, backward pass and update."""

    name: Phase = "train"

    def __init__(self, config: Mapping[str, Any]) -> None:
        memory = config["memory"]
        self.memory: Memory = StepMemoryModel(
            MemoryModel.from_config(memory), memory["spread"], memory["log_error"]
        )
        self._launch_weights = launch_weights(config["step"])
        self._measured: Mapping[str, Sequence[str]] = config["seen"]["devices"]

    def law(self, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Law:
        """Read trees of inference and of training steps."""
        return StepLaw.from_checkpoint(tensors, config)

    def key(self, c: Conditions) -> tuple[Any, ...]:
        """Return layout, attention, optimiser and checkpointing."""
        return c.channels_last, c.attention, c.optimizer, c.checkpointing

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a step.

        Raises:
            ConditionsError: if the model has weights, and no result has a gradient.
        """
        table = KernelTable.of_training(
            graph,
            same_arithmetic(c.device, c.precision)[0],
            c.optimizer,
            channels_last=c.channels_last,
            attention=c.attention,
            checkpointing=c.checkpointing,
        )
        if graph.param_bytes and not np.isin(table.part, BACKWARD).any():
            last = graph.nodes[-1].op if graph.nodes else "nothing"
            raise ConditionsError(
                f"no result of the model has a gradient (its last operator is {last}), so there "
                "is nothing to train",
                "Give the model that is trained, which returns scores or a loss, or ask for "
                "phase=inference.",
            )
        return table, LawKernels.of(KernelGraph.of(table, 0))

    def launches(self, table: KernelTable) -> float:
        """Return the host time of a step, in launches of inference.

        Autograd records each launch of the forward pass and walks back along it; each layer with
        weights has gradients to store and to clear, and an update. What is run again is launched as
        an inference is.
        """
        counts = step_launches(table)
        again = table.launches - counts[:2].sum()
        inner = table.host_launches - table.launches
        return float(self._launch_weights @ counts + again + inner)

    def footprint(self, graph: ModelGraph, c: Conditions, without: Any = None) -> Any:
        """Return the footprint of a step."""
        return TrainingFootprint.of(
            graph,
            c.precision,
            c.optimizer,
            checkpointing=c.checkpointing,
            channels_last=c.channels_last,
            attention=c.attention,
        )

    def refuse(self, c: Conditions) -> None:
        """Check that a step is not compiled, because the kernels of compiled steps are not known.

        Raises:
            ConditionsError: if it is compiled.
        """
        if c.mode == "compiled":
            raise ConditionsError(
                "compiled training steps are not predicted: there are no measurements of them",
                "Ask for mode=eager.",
            )

    def never_measured(self, name: str) -> str:
        """Return the warning that names what the GPU is extrapolated from."""
        return (
            f"no training step was measured on {name}: extrapolated from inference and from "
            f"training steps on {', '.join(sorted(self._measured))}"
        )

    def warnings(self, graph: ModelGraph, c: Conditions) -> list[str]:
        """Return warnings that power was not measured, and that a model has no blocks."""
        found = ["power and energy follow the law of inference: of no step the power was measured"]
        if c.checkpointing and not any(blocks_of({node.path for node in graph.nodes}).values()):
            found.append(
                "checkpointing changes nothing: the model has no numbered blocks, by the paths of "
                "its modules"
            )
        return [*found, *folded_norms(graph)]


def phase_model(config: Mapping[str, Any]) -> PhaseModel:
    """Return the phase that a checkpoint predicts."""
    return TrainingSteps(config) if phases_of(config) == ("train",) else ForwardPass(config)


# Cache of kernels and footprints for the most recent graphs.
#
# Grids, sweeps and searches predict one graph under many conditions, few of which decide which
# kernels run and what is in memory. Neither depends on a checkpoint, so the predictors of a process
# share the cache.

KEPT_GRAPHS = 8
"""Number of graphs in the cache."""
_shared: dict[Phase, GraphParts] = {}


class GraphParts:
    """Cache of kernels and memory footprints of graphs.

    Args:
        phase: phase of the kernels and footprints.
    """

    def __init__(self, phase: PhaseModel) -> None:
        self._phase = phase
        self._kept: deque[tuple[ModelGraph, dict[Any, Any]]] = deque(maxlen=KEPT_GRAPHS)

    @classmethod
    def shared(cls, phase: PhaseModel) -> GraphParts:
        """Return the cache that all predictors of a phase share."""
        return _shared.setdefault(phase.name, cls(phase))

    def kernels(self, graph: ModelGraph, c: Conditions) -> tuple[KernelTable, LawKernels]:
        """Return the kernels of a graph, and the arrays of them that the law reads."""
        kept = self._kept_of(graph)
        key = (same_arithmetic(c.device, c.precision)[0], *self._phase.key(c))
        if key not in kept:
            kept[key] = self._phase.kernels(graph, c)
        found: tuple[KernelTable, LawKernels] = kept[key]
        return found

    def footprint(self, graph: ModelGraph, c: Conditions) -> Any:
        """Return the footprint of a graph at any batch, see `PhaseModel.footprint`."""
        kept = self._kept_of(graph)
        key = ("footprint", c.precision, c.autograd, *self._phase.key(c))
        if key not in kept:
            without = self.footprint(graph, c.replace(autograd=False)) if c.autograd else None
            kept[key] = self._phase.footprint(graph, c, without)
        return kept[key]

    def usage(self, graph: ModelGraph, c: Conditions) -> Any:
        """Return the memory usage of a graph at the batch of the conditions."""
        kept = self._kept_of(graph)
        gpu = MemoryGpu(compute_capability=c.device.compute_capability)
        key = "usage", c.precision, c.autograd, *self._phase.key(c), c.batch, gpu.workspace_bytes
        if key not in kept:
            known = (self.usage(graph, c.replace(autograd=False)),) if c.autograd else ()
            kept[key] = self.footprint(graph, c).usage(c.batch, gpu, *known)
        return kept[key]

    def _kept_of(self, graph: ModelGraph) -> dict[Any, Any]:
        for known, kept in self._kept:
            if known is graph:
                return kept
        self._kept.append((graph, {}))
        return self._kept[-1][1]
