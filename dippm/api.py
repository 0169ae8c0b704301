"""The public functions `predict`, `load` and `compare`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Unpack, cast

from dippm.base.progress import stage, tell
from dippm.errors import ConditionsError
from dippm.estimate import pretrained
from dippm.estimate.comparison import Comparison, Failure
from dippm.estimate.conditions import (
    Attention,
    Conditions,
    Mode,
    Optimizer,
    Phase,
    Precision,
    Runtime,
    Timer,
    check_options,
    phase_of,
)
from dippm.estimate.grid import Grid
from dippm.estimate.model_list import Candidate, cases_of
from dippm.estimate.models.predictor import phases_of
from dippm.estimate.options import (
    CheckpointLike,
    GridOptions,
    Options,
    checkpoint_of,
    conditions_in,
    name_of,
    question,
    read_model,
    reading_in,
    usual_options,
)
from dippm.estimate.place import (
    DEFAULT_DEVICE,
    ContextLike,
    DeviceLike,
    HostLike,
    MigLike,
    device_of,
)
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.estimate.pretrained.store import for_device
from dippm.model.convert import Input, read_graph, source_name, until
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S
from dippm.model.frontends.worker_errors import no_process_error
from dippm.model.graph import ModelGraph

__all__ = [
    "DEFAULT_DEVICE",
    "Input",
    "LoadedPredictor",
    "compare",
    "graph_at",
    "load",
    "predict",
    "read_graph",
    "source_name",
]


@question(Options)
def predict(
    source: Any = None,
    framework: str | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    input: Input = None,
    batch: int = 1,
    device: DeviceLike = DEFAULT_DEVICE,
    checkpoint: CheckpointLike = None,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    timer: Timer = "wall",
    mig: MigLike = None,
    channels_last: bool = False,
    host: HostLike = None,
    attention: Attention = "fused",
    phase: Phase = "inference",
    optimizer: Optimizer = "sgd",
    checkpointing: bool = False,
    autograd: bool = False,
    context_mb: ContextLike = None,
    runtime: Runtime = "pytorch",
    trust: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> Prediction:
    """Predict memory, energy, latency and MIG profile of a model on a GPU.

    Args:
        source: path of a model file, a specification such as "timm:resnet50", a model object of a
            framework, a `ModelGraph`, or a `Prediction`, which stands for its model and, where no
            others are given, its conditions.
        framework: "pytorch", "onnx", "tensorflow", "paddle", ...; inferred if None.
        path: the same as `source`.
        input: sizes of an input without the batch: "3,224,224", a tuple, a list of several
            ([(712, 33), (33, 334)]), or a mapping by input name; "bool:12" also gives the type
            of an input (bool, int or float). None takes the sizes that the model states.
        batch: samples per forward pass.
        device: name of the GPU, see `dippm devices`; a `Device`; or the path of a device file, see
            `dippm.devices.read_device`.
        checkpoint: name, "name@version" or folder, or a loaded predictor; None takes the shipped
            one for the device and phase, by the rule of
            `dippm.estimate.pretrained.store`.
        precision: precision, see `Conditions`.
        mode: "eager" or "compiled".
        timer: timer that defines the latency, see `Conditions`.
        mig: MIG slice of the GPU; None for the whole GPU.
        channels_last: memory layout of images.
        host: machine that launches the kernels: a class of `dippm hosts`, or µs per launch; None
            takes a default, which the answer names.
        attention: "fused", or "unfused" where software or masks prevent fused kernels, see
            `Conditions`.
        phase: "inference", or "train" for a training step: forward, backward and update.
        optimizer: optimiser of a training step: "sgd" (with momentum), "adam" or "adamw".
        checkpointing: whether a training step recomputes blocks in the backward pass.
        autograd: whether eager inference runs without `torch.no_grad`, and keeps the activations
            for a backward pass.
        context_mb: memory in MiB of the process outside PyTorch's allocator, as `dippm doctor`
            measures it, or a class of software: "cuda-10", "cuda-11" or "lazy", see `Conditions`;
            None takes a default, which the answer names.
        runtime: "pytorch", "torchscript", "onnxruntime" or "tensorrt"; see
            `docs/method/engines.md`.
        trust: allow a file that can run code when it is read.
        timeout_s: limit of the wall time of conversion, graph and features, in s.
        memory_limit_mb: limit of the private memory of the conversion, in MiB.

    Raises:
        ModelFileError: if the model cannot become a graph.
        UnknownNameError: if device, slice, checkpoint or framework is not known.
        DeviceError: if a device file is not valid, or lacks a value that the answer needs.
        ConditionsError: if batch, precision, mode, timer, attention or phase cannot be predicted.
        CheckpointError: if the checkpoint is damaged or of another version.
    """
    conditions = Conditions.of(
        device=device,
        batch=batch,
        precision=precision,
        mode=mode,
        timer=timer,
        mig=mig,
        channels_last=channels_last,
        host=host,
        attention=attention,
        phase=phase,
        optimizer=optimizer,
        checkpointing=checkpointing,
        autograd=autograd,
        context_mb=context_mb,
        runtime=runtime,
    )
    model = _one_source(source, path)
    own = (model.conditions, checkpoint_of(model)) if isinstance(model, Prediction) else ()
    if own == (conditions, checkpoint) and model.operators:
        return model  # type: ignore[no-any-return]
    began = time.monotonic()
    warm = checkpoint if isinstance(checkpoint, LoadedPredictor) else None
    info = None if warm else _found(checkpoint, conditions)
    # The conversion runs in another process; meanwhile this one imports and loads the predictor.
    with ThreadPoolExecutor(max_workers=1) as background:
        try:
            loading = info and background.submit(pretrained.load, info.path)
        except RuntimeError as error:  # no further thread: a shell may limit their number
            raise no_process_error(error) from error
        read = read_model(
            model,
            framework,
            checkpoint=checkpoint,
            input=input,
            trust=trust,
            timeout_s=timeout_s,
            memory_limit_mb=memory_limit_mb,
        )
        if info and loading:
            tell(f"loading checkpoint {info.name}")
            warm = LoadedPredictor(loading.result())
    assert warm is not None
    tell("predicting")
    with until(began, timeout_s, len(read.graph.nodes), "its features"):
        return warm.predict_at(read.graph, conditions, name=read.name, asked=read.asked)


def load(
    name: CheckpointLike = None, *, device: DeviceLike = DEFAULT_DEVICE, phase: Phase | None = None
) -> LoadedPredictor:
    """Load a checkpoint once for many predictions.

    Args:
        name: checkpoint, see `predict`. None loads the one for `device` and `phase`; other devices
            and phases load another shipped one on demand. A loaded predictor is returned as it is.
        device: default device of calls.
        phase: default phase of calls: "inference" or "train"; None takes that of the named
            checkpoint, or inference.

    Raises:
        UnknownNameError: if no checkpoint has this name, or none supports the device.
        ConditionsError: if there is no such phase, or no shipped checkpoint predicts it.
        CheckpointError: if it is damaged or of another version.
    """
    if isinstance(name, LoadedPredictor):
        return name
    asked, named = phase and phase_of(phase), cast(str | Path | None, name)
    info = pretrained.find(named) if named else for_device(device_of(device), asked or "inference")
    tell(f"loading checkpoint {info.name}")
    usual = asked or phase_of(phases_of(info.config)[0])
    return LoadedPredictor(pretrained.load(info.path), bool(name), device, usual)


def compare(
    sources: Iterable[Any], *, strict: bool = False, **options: Unpack[GridOptions]
) -> Comparison:
    """Predict several models, each for every device, slice, precision and batch.

    A model that cannot be read, or a point that cannot be predicted, is a `Failure` in the answer,
    and the others are still predicted; a question that fails for all models (an unknown device) is
    an error.

    Args:
        sources: models as `predict` takes them, or `Candidate`s with inputs of their own.
        strict: raise the first failure instead.
        **options: see `dippm.Options`; device, slice (`mig`), precision and batch may be one or
            several, see `GridOptions`. Input sizes apply to models without their own, limits to
            each conversion.

    Raises:
        UnknownNameError: if a device, slice, checkpoint or option is not known.
        ConditionsError: if a batch, precision, mode, timer, attention or phase cannot be predicted.
        DippmError: if `strict`, as `predict` does.
    """
    check_options(options, GridOptions)
    shared = _grid(None, options)  # raises what fails for all models, once
    cases = cases_of(sources)
    if not cases:
        raise ConditionsError("there is no model to compare", "Give one at least: compare([path]).")
    entries: list[Prediction | Failure] = []
    reading = reading_in(options)
    for number, (case, name) in enumerate(zip(cases, _names(cases), strict=True), 1):
        own = isinstance(case.model, Prediction)
        loaded, grid = _grid(case.model, options) if own else shared
        with stage(f"{number} of {len(cases)}: {name}"):
            entries += loaded.entries(case, grid, name=name, strict=strict, **reading)
    return Comparison(tuple(entries))


def _grid(source: Any, options: GridOptions) -> tuple[LoadedPredictor, Grid]:
    """Return the predictor and the grid of a model."""
    asked = usual_options(source, options) | {**options}
    grid = Grid.of(**{"device": DEFAULT_DEVICE, **conditions_in(asked)})
    place, phase = grid.places[0], grid.execution.phase
    loaded = load(asked.get("checkpoint"), device=place.device, phase=phase)
    loaded.points(grid)
    return loaded, grid


def graph_at(
    source: Any,
    framework: str | None = None,
    *,
    batch: int = 1,
    input: Input = None,
    trust: bool = False,
) -> ModelGraph:
    """Convert a model to its canonical graph at a batch size.

    Raises:
        ConditionsError: if the batch is out of range, or the file fixes another one.
        ModelFileError: if the model cannot become a graph.
    """
    Conditions(batch=batch)  # refuses an invalid batch
    with stage(f"converting {source_name(source)}"):
        model_graph = read_graph(source, framework, input=input, trust=trust)
    return model_graph if model_graph.batch == batch else model_graph.at_batch(batch)


def _found(checkpoint: Any, conditions: Conditions) -> pretrained.CheckpointInfo:
    if checkpoint:
        return pretrained.find(checkpoint)
    return for_device(conditions.device, conditions.phase)


def _one_source(source: Any, path: str | os.PathLike[str] | None) -> Any:
    if (source is None) == (path is None):
        raise TypeError("give the model once: as the first argument or as path=")
    return path if source is None else source


def _names(cases: Sequence[Candidate]) -> list[str]:
    """Return the name of each model: its file name, or a longer one if that is not unique."""
    names = [name_of(case.model) for case in cases]
    count, seen = Counter(names), Counter[str]()
    for i, (case, name) in enumerate(zip(cases, names, strict=True)):
        if count[name] == 1:
            continue
        if isinstance(case.model, str | os.PathLike):
            names[i] = os.fspath(case.model)
        else:
            seen[name] += 1
            names[i] = f"{name} #{seen[name]}"
    return names
