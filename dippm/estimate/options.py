"""The options of every verb, and the model that a question is about.

A model is a file, a name, an object, a `ModelGraph`, or a `Prediction`, which stands for its own
model under its own conditions, unless the question names others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, cast

from dippm.base.progress import stage
from dippm.estimate.conditions import (
    CONDITIONS,
    NAMES,
    Attention,
    ConditionOptions,
    Mode,
    Optimizer,
    Phase,
    PointOptions,
    Precision,
    RunOptions,
    Runtime,
    Timer,
    check_options,
    spelt,
)
from dippm.estimate.measure_line import Asked
from dippm.estimate.place import ContextLike, DeviceLike, HostLike, MigLike, device_of
from dippm.estimate.prediction import Prediction
from dippm.model.convert import Input, read_graph, source_name
from dippm.model.graph import ModelGraph

P = ParamSpec("P")
T = TypeVar("T")
Pair: TypeAlias = "T | tuple[T, T] | list[T]"
"""One value for both sides of a difference, or one for each."""


class WarmPredictor(Protocol):
    """A checkpoint in memory, as `dippm.load` returns it, with its defaults."""

    @property
    def device(self) -> DeviceLike:
        """Default device."""

    @property
    def phase(self) -> Phase:
        """Default phase."""

    @property
    def spelt(self) -> str | None:
        """Name of the checkpoint; None if the user named none."""


CheckpointLike = str | Path | WarmPredictor | None


class ReadingOptions(TypedDict, total=False):
    """How a model is read, see `Options`."""

    input: Input
    trust: bool
    timeout_s: float
    memory_limit_mb: int


class WarmOptions(ConditionOptions, ReadingOptions, total=False):
    """Options of a loaded predictor, see `Options`."""


class WarmRunOptions(RunOptions, ReadingOptions, total=False):
    """Options of a loaded predictor for many points, see `Options`."""


class Options(WarmOptions, total=False):
    """The options of every verb; verbs that take several values of one document it themselves.

    Defaults are those of a `Prediction` given as the model, device and phase of a loaded predictor
    given as the checkpoint; else:

    Attributes:
        input: sizes of an input without the batch: "3,224,224", a tuple, a list of several
            ([(712, 33), (33, 334)]), or a mapping by input name; "bool:12" also says what an
            input holds (bool, int or float). Left out: the sizes that the model states.
        batch: samples per forward pass or training step, 1 to 1,000,000; 1.
        device: name of the GPU, see `dippm devices`; a `Device`; or the path of a device file, see
            `dippm.devices.read_device`; "A100".
        checkpoint: name, "name@version" or folder, or a predictor that is loaded; left out: the
            shipped one that knows device and phase, by the rule of
            `dippm.estimate.pretrained.store`.
        precision: number formats: "fp32", "fp32-ieee", "tf32", "fp16", "bf16", "amp" or
            "amp-bf16", see `PRECISIONS`; "fp32".
        mode: "eager" or "compiled"; "eager".
        timer: what the latency includes: "kernel", "event", "wall" or "wall+copy", see
            `Conditions`; "wall".
        mig: a slice of the GPU, by name; left out: the whole GPU.
        channels_last: memory layout of images; False.
        host: the machine that launches the kernels: a class of `dippm hosts`, or microseconds per
            launch; left out: one is assumed, and the answer says which.
        attention: "fused", or "unfused" where software or masks keep attention from fused kernels;
            "fused".
        phase: "inference", or "train" for a step of training: forward, backward and update.
        optimizer: "sgd" (with momentum), "adam" or "adamw"; of a training step.
        checkpointing: whether blocks of a training step are run again in the backward pass; False.
        autograd: whether the forward pass of eager inference runs without `torch.no_grad` and keeps
            the tensors that a backward pass would need; False.
        context_mb: memory in MiB that the process takes besides PyTorch's allocator, as
            `dippm doctor` measures it, or a class of software: "cuda-10", "cuda-11" or "lazy", see
            `SOFTWARE_CLASSES`; left out: one is assumed, and the answer says which.
        runtime: "pytorch", "torchscript", "onnxruntime" or "tensorrt", see
            `docs/method/engines.md`.
        trust: allow a file that can run code when it is read; False.
        timeout_s: wall time in s that conversion, graph and features may take; 120.
        memory_limit_mb: private memory in MiB that the conversion may use; 4096.

    Raises:
        UnknownOptionError: if the name of an option is unknown; the hint has the closest.
    """

    checkpoint: CheckpointLike


class SharedOptions(WarmRunOptions, total=False):
    """Options of every point where devices, precisions and batches vary, see `Options`."""

    checkpoint: CheckpointLike


class SweepOptions(PointOptions, ReadingOptions, total=False):
    """Options of every batch, see `Options`."""

    checkpoint: CheckpointLike


class ChoiceOptions(SharedOptions, total=False):
    """Options of every GPU and slice, see `Options`.

    Attributes:
        batch: samples per step; of several ("1:256", see `dippm.sweep`) each place takes its best.
        precision: number format, see `Options`.
    """

    batch: int | str | Iterable[int]
    precision: Precision


class SliceOptions(ChoiceOptions, total=False):
    """Options of every slice of a GPU, see `Options`.

    Attributes:
        device: a GPU with MIG.
    """

    device: DeviceLike


class ProcessOptions(SharedOptions, total=False):
    """Options of several processes on one GPU, see `Options`.

    Attributes:
        device: the GPU.
        batch: batch size of all processes, or one for each model.
        mig: a slice that all of them share; left out: the whole GPU.
        precision: number format of all processes.
    """

    device: DeviceLike
    batch: int | Sequence[int]
    mig: MigLike
    precision: Precision


class GridOptions(SharedOptions, total=False):
    """Options of one question about many points, see `Options`.

    Attributes:
        device: one GPU or several.
        batch: one size or several.
        mig: slices; None for the whole GPU. A slice that one of the devices does not have is left
            out for that device.
        precision: one or several; "all" for those that each device has hardware for.
    """

    device: DeviceLike | Iterable[DeviceLike]
    batch: int | Iterable[int]
    mig: MigLike | Iterable[MigLike]
    precision: str | Iterable[str]


class PairOptions(ReadingOptions, total=False):
    """Options of a difference, see `Options`; a condition has one value, or one for each side."""

    checkpoint: CheckpointLike
    batch: Pair[int]
    device: Pair[DeviceLike]
    precision: Pair[Precision]
    mode: Pair[Mode]
    timer: Pair[Timer]
    mig: Pair[MigLike]
    channels_last: Pair[bool]
    host: Pair[HostLike]
    attention: Pair[Attention]
    phase: Pair[Phase]
    optimizer: Pair[Optimizer]
    checkpointing: Pair[bool]
    autograd: Pair[bool]
    context_mb: Pair[ContextLike]
    runtime: Pair[Runtime]


READING = tuple(ReadingOptions.__annotations__)
OPTIONS = tuple(Options.__annotations__)
GOES_WITH = {
    "device": ("mig",),
    "phase": ("optimizer", "checkpointing", "autograd"),
    "mode": ("autograd",),
    "runtime": ("mode", "autograd"),
}
"""Conditions of a prediction that lose their meaning when another one is changed."""


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A model after reading.

    Attributes:
        graph: graph of the model.
        name: name of the model in answers.
        asked: file or name that the model was read from; None if it is not known.
    """

    graph: ModelGraph
    name: str
    asked: Asked | None


def read_model(
    source: Any,
    framework: str | None = None,
    *,
    checkpoint: CheckpointLike = None,
    **reading: Unpack[ReadingOptions],
) -> ReadModel:
    """Convert a model, or return the graph that is given or that of a prediction.

    Raises:
        ModelFileError: if the model cannot become a graph.
    """
    named = _named(checkpoint)
    if isinstance(source, Prediction):
        asked = source.asked and replace(source.asked, checkpoint=named or "")
        return ReadModel(source.source_graph, source.provenance.source, asked)
    name = name_of(source)
    with stage(f"converting {name}"):
        graph = read_graph(source, framework, **reading)
    trust = reading.get("trust", False)
    return ReadModel(
        graph, name, Asked.of(source, reading.get("input"), trust=trust, checkpoint=named)
    )


def name_of(source: Any) -> str:
    """Return the name of a model in answers."""
    return source.provenance.source if isinstance(source, Prediction) else source_name(source)


def conditions_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are conditions."""
    return {name: options[name] for name in CONDITIONS if name in options}


def reading_in(options: Mapping[str, Any]) -> ReadingOptions:
    """Return the options of reading a model."""
    return cast(ReadingOptions, {name: options[name] for name in READING if name in options})


def checkpoint_of(prediction: Prediction) -> str | None:
    """Return the checkpoint that was named for a prediction; None if the default one answered."""
    if prediction.asked is None:
        return prediction.provenance.checkpoint.replace(" ", "@")
    return prediction.asked.checkpoint or None


def usual_options(source: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a question, as `Options` documents them."""
    found: dict[str, Any] = {}
    warm = given.get("checkpoint")
    if warm is not None and not isinstance(warm, str | os.PathLike):
        found |= {"device": warm.device, "phase": warm.phase}
    if isinstance(source, Prediction):
        found |= source.conditions.options
        found["checkpoint"] = checkpoint_of(source)
        for name, others in GOES_WITH.items():
            if name in given and _differs(name, given[name], found[name]):
                found = {n: v for n, v in found.items() if n not in others}
    return found


def question(options: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a verb, whose first argument is a model, take a `Prediction` and a loaded predictor.

    Args:
        options: typed dictionary of the verb's options; other names are refused.
    """

    def decorate(verb: Callable[P, T]) -> Callable[P, T]:
        parameters = signature(verb).parameters.values()
        own = [p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD]

        @wraps(verb)
        def ask(*args: P.args, **given: P.kwargs) -> T:
            wrong = (name for name in given if name not in own)
            check_options(wrong, options)
            usual = usual_options(args[0] if args else given.get(own[0]), given)
            filled: Any = {n: v for n, v in usual.items() if n in options.__annotations__}
            return verb(*args, **filled | given)

        return ask

    return decorate


def _differs(name: str, new: Any, old: Any) -> bool:
    if name == "device" and not isinstance(new, list | tuple):
        new = device_of(new)
    if name in NAMES:
        new = spelt(name, new, NAMES[name])
    return bool(new != old)


def _named(checkpoint: CheckpointLike) -> str | None:
    if checkpoint is None:
        return None
    if isinstance(checkpoint, str | os.PathLike):
        return os.fspath(checkpoint)
    return checkpoint.spelt
