"""The public verbs, as the stages in reading order: load, build, predict."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm import __version__, devices, frontends, graph, pretrained
from dippm.comparison import Comparison
from dippm.conditions import Conditions, Mode, Precision, Timer
from dippm.devices import Device, MigProfile
from dippm.errors import UnknownNameError
from dippm.frontends import InputSpec
from dippm.frontends.worker import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S
from dippm.graph import ModelGraph
from dippm.prediction import Prediction, Provenance

if TYPE_CHECKING:
    from dippm.pretrained import Checkpoint

Input = str | Iterable[int] | Mapping[str, Any] | InputSpec | None
DEFAULT_DEVICE = "A100"


def predict(
    source: Any = None,
    framework: str | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    input: Input = None,
    batch: int = 1,
    device: str | Device = DEFAULT_DEVICE,
    checkpoint: str | Path | None = None,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    timer: Timer = "wall",
    mig: str | MigProfile | None = None,
    channels_last: bool = False,
    trust: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> Prediction:
    """Predict memory, energy, latency and MIG profile of a model on a GPU.

    Args:
        source: path of a model file, a specification such as "timm:resnet50", a model object of a
            framework, or a `ModelGraph`.
        framework: "pytorch", "onnx", "tensorflow", "paddle", ...; inferred if None.
        path: the same as `source`, as D3.5 spells it.
        input: sizes of an input without the batch: "3,224,224", a tuple, or a mapping by input
            name; None takes the sizes that the model states.
        batch: samples per forward pass.
        device: name of the GPU, see `dippm devices`.
        checkpoint: name, "name@version" or folder; None takes the default.
        precision: number formats, see `Conditions`.
        mode: "eager" or "compiled".
        timer: what the latency includes, see `Conditions`.
        mig: a slice of the GPU to predict for; None is the whole GPU.
        channels_last: memory layout of images.
        trust: allow a file that can run code when it is read.
        timeout_s: wall time that the conversion may take.
        memory_limit_mb: private memory that the conversion may use.

    Raises:
        ModelFileError: if the model cannot become a graph.
        UnknownNameError: if device, slice, checkpoint or framework is not known.
        ConditionsError: if batch, precision, mode or timer cannot be predicted.
        CheckpointError: if the checkpoint is damaged or for another version.
    """
    conditions = conditions_of(
        device,
        batch=batch,
        precision=precision,
        mode=mode,
        timer=timer,
        mig=mig,
        channels_last=channels_last,
    )
    model = _one_source(source, path)
    info = pretrained.find(checkpoint)
    # The conversion runs in another process; meanwhile this one imports and loads the predictor.
    with ThreadPoolExecutor(max_workers=1) as background:
        loading = background.submit(pretrained.load, info.path)
        model_graph = read_graph(
            model,
            framework,
            input=input,
            trust=trust,
            timeout_s=timeout_s,
            memory_limit_mb=memory_limit_mb,
        )
        predictor = LoadedPredictor(loading.result())
    return predictor.predict_at(model_graph, conditions, name=source_name(model))


def load(name: str | Path | None = None) -> LoadedPredictor:
    """Load a checkpoint once, for many predictions.

    Raises:
        UnknownNameError: if no checkpoint has this name.
        CheckpointError: if it is damaged or for another version.
    """
    return LoadedPredictor(pretrained.load(name))


def compare(
    sources: Iterable[Any],
    *,
    device: str | Device | Sequence[str | Device] = DEFAULT_DEVICE,
    batch: int | Sequence[int] = 1,
    input: Input = None,
    checkpoint: str | Path | None = None,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    trust: bool = False,
) -> Comparison:
    """Predict several models, each for every device and batch.

    Raises:
        DippmError: as `predict` does.
    """
    predictor = load(checkpoint)
    points: list[Prediction] = []
    for source in sources:
        points += predictor.predict_grid(
            source,
            batches=[batch] if isinstance(batch, int) else batch,
            devices=[device] if isinstance(device, str | Device) else device,
            input=input,
            precision=precision,
            mode=mode,
            trust=trust,
        )
    return Comparison(tuple(points))


def read_graph(
    source: Any,
    framework: str | None = None,
    *,
    input: Input = None,
    trust: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> ModelGraph:
    """Convert a model to its canonical graph, or return the graph that was given.

    The graph is at the batch of its conversion, which can be a marker; see `ModelGraph.at_batch`.
    The arguments are those of `predict`.

    Raises:
        ModelFileError: if the model cannot become a graph.
    """
    if isinstance(source, ModelGraph):
        return source
    raw = frontends.load(
        source,
        InputSpec.parse(input),
        framework=framework,
        trust=trust,
        timeout_s=timeout_s,
        memory_limit_mb=memory_limit_mb,
    )
    return graph.build(raw)


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
    Conditions(devices.find(DEFAULT_DEVICE), batch)
    model_graph = read_graph(source, framework, input=input, trust=trust)
    return model_graph if model_graph.batch == batch else model_graph.at_batch(batch)


@dataclass(frozen=True, slots=True)
class LoadedPredictor:
    """A checkpoint in memory: every call of it is a warm one.

    Attributes:
        checkpoint: what was loaded.
    """

    checkpoint: Checkpoint

    def predict(
        self,
        source: Any,
        *,
        framework: str | None = None,
        input: Input = None,
        batch: int = 1,
        device: str | Device = DEFAULT_DEVICE,
        precision: Precision = "fp32",
        mode: Mode = "eager",
        timer: Timer = "wall",
        mig: str | MigProfile | None = None,
        channels_last: bool = False,
        trust: bool = False,
    ) -> Prediction:
        """Predict one point; the arguments are those of `dippm.predict`."""
        conditions = conditions_of(
            device,
            batch=batch,
            precision=precision,
            mode=mode,
            timer=timer,
            mig=mig,
            channels_last=channels_last,
        )
        model_graph = read_graph(source, framework, input=input, trust=trust)
        return self.predict_at(model_graph, conditions, name=source_name(source))

    def predict_at(
        self, graph: ModelGraph, conditions: Conditions, *, name: str = "graph"
    ) -> Prediction:
        """Predict a ready graph under ready conditions; `name` is what the answer calls it."""
        estimates = self.checkpoint.predictor.predict(graph, conditions)
        return Prediction.of(
            estimates, graph, conditions=conditions, provenance=self._provenance(graph, name)
        )

    def predict_many(self, sources: Iterable[Any], **arguments: Any) -> Comparison:
        """Predict several models under the same conditions, see `predict`."""
        return Comparison(tuple(self.predict(source, **arguments) for source in sources))

    def predict_grid(
        self,
        source: Any,
        *,
        batches: Iterable[int] = (1,),
        devices: Iterable[str | Device] = (DEFAULT_DEVICE,),
        migs: Iterable[str | MigProfile | None] = (None,),
        framework: str | None = None,
        input: Input = None,
        precision: Precision = "fp32",
        mode: Mode = "eager",
        timer: Timer = "wall",
        trust: bool = False,
    ) -> Comparison:
        """Predict one model at every (device, slice, batch); without operator tables.

        Args:
            source: see `dippm.predict`.
            batches: batch sizes.
            devices: GPUs.
            migs: slices; None is the whole GPU. A slice that one of the devices does not have is
                left out for that device.
            framework: see `dippm.predict`.
            input: see `dippm.predict`.
            precision: see `Conditions`.
            mode: see `Conditions`.
            timer: see `Conditions`.
            trust: see `dippm.predict`.

        Raises:
            UnknownNameError: if none of the devices has one of the slices.
            DippmError: as `predict` does.
        """
        places = _places([_device(d) for d in devices], list(migs))
        points = [
            Conditions(gpu, batch, precision, mode, timer, mig)
            for (gpu, mig), batch in product(places, list(batches))
        ]
        model_graph = read_graph(source, framework, input=input, trust=trust)
        provenance = self._provenance(model_graph, source_name(source))
        answers = self.checkpoint.predictor.predict_many(model_graph, points)
        return Comparison(
            tuple(
                Prediction.of(answer, model_graph, conditions=point, provenance=provenance)
                for answer, point in zip(answers, points, strict=True)
            )
        )

    def _provenance(self, graph: ModelGraph, source: str) -> Provenance:
        return Provenance(
            source=source,
            checkpoint=f"{self.checkpoint.name} {self.checkpoint.version}",
            kind=self.checkpoint.kind,
            sha256=str(self.checkpoint.config["sha256"]),
            graph_version=graph.version,
            dippm_version=__version__,
        )


def conditions_of(
    device: str | Device,
    *,
    batch: int,
    precision: Precision,
    mode: Mode,
    timer: Timer,
    mig: str | MigProfile | None,
    channels_last: bool,
) -> Conditions:
    """Return the conditions that names stand for.

    Raises:
        UnknownNameError: if device or slice is not known.
        ConditionsError: if one of the others cannot be predicted.
    """
    gpu = _device(device)
    return Conditions(gpu, batch, precision, mode, timer, _slice(gpu, mig), channels_last)


def source_name(source: Any) -> str:
    """Return what a prediction calls its model."""
    if isinstance(source, ModelGraph):
        return "graph"
    if isinstance(source, str | os.PathLike):
        return os.path.basename(os.fspath(source).rstrip("/\\")) or str(source)
    return type(source).__name__


def _one_source(source: Any, path: str | os.PathLike[str] | None) -> Any:
    if (source is None) == (path is None):
        raise TypeError("give the model once: as the first argument or as path=")
    return path if source is None else source


def _device(device: str | Device) -> Device:
    return device if isinstance(device, Device) else devices.find(device)


def _slice(device: Device, mig: str | MigProfile | None) -> MigProfile | None:
    name = mig.name if isinstance(mig, MigProfile) else mig
    if name is None:
        return None
    profiles = {profile.name: profile for profile in device.mig_profiles}
    if name not in profiles:
        hint = "" if profiles else f"{device.name} cannot be sliced. `dippm devices` lists slices."
        raise UnknownNameError.of(f"MIG slice of {device.name}", name, profiles, hint)
    return profiles[name]


def _places(
    gpus: Sequence[Device], migs: Sequence[str | MigProfile | None]
) -> list[tuple[Device, MigProfile | None]]:
    places: list[tuple[Device, MigProfile | None]] = []
    for mig in migs:
        name = mig.name if isinstance(mig, MigProfile) else mig
        owners = [g for g in gpus if name is None or name in {p.name for p in g.mig_profiles}]
        if not owners:
            _slice(gpus[0], mig)
        places += [(gpu, _slice(gpu, mig)) for gpu in owners]
    return sorted(places, key=lambda place: gpus.index(place[0]))
