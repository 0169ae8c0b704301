"""`LoadedPredictor`: a checkpoint in memory, for one prediction or many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dippm import __version__
from dippm.base.progress import stage, tell
from dippm.devices import Device, MigProfile, host_of
from dippm.errors import ConversionError, DippmError
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
    phase_of,
    supported_precisions,
)
from dippm.estimate.grid import (
    DEFAULT_DEVICE,
    ContextLike,
    DeviceLike,
    Grid,
    HostLike,
    Refused,
    conditions_of,
)
from dippm.estimate.measure_line import Asked
from dippm.estimate.model_list import Candidate
from dippm.estimate.prediction import Prediction, Provenance
from dippm.estimate.pretrained.choice import for_device, frameworks_of, knows, precisions_of
from dippm.model.convert import Input, read_graph, source_name, until
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S
from dippm.model.graph import ModelGraph
from dippm.model.graph.float_type import in_float32

if TYPE_CHECKING:
    from dippm.estimate.pretrained import Checkpoint

POINTS_PER_STAGE = 64


@dataclass(frozen=True, slots=True)
class LoadedPredictor:
    """A checkpoint in memory: every call of it is a warm one.

    Attributes:
        checkpoint: what was loaded.
        named: whether it was asked for by name. If not, another shipped checkpoint answers for a
            device or a phase that this one does not know.
        device: what is predicted for where a call names no device.
        phase: that is predicted where a call names none.
    """

    checkpoint: Checkpoint
    named: bool = True
    device: DeviceLike = DEFAULT_DEVICE
    phase: Phase = "inference"

    def checkpoint_for(self, device: Device, phase: Phase = "inference") -> Checkpoint:
        """Return the checkpoint that answers for a device and a phase.

        Raises:
            UnknownNameError: if none was named, and no shipped one knows the device.
            ConditionsError: if none was named, and no shipped one predicts the phase on it.
        """
        if self.named or knows(self.checkpoint.config, device, phase):
            return self.checkpoint
        info = for_device(device, phase)
        tell(f"loading checkpoint {info.name}")
        return pretrained.load(info.path)

    def predict(
        self,
        source: Any,
        *,
        framework: str | None = None,
        input: Input = None,
        batch: int = 1,
        device: DeviceLike | None = None,
        precision: Precision = "fp32",
        mode: Mode = "eager",
        timer: Timer = "wall",
        mig: str | MigProfile | None = None,
        channels_last: bool = False,
        host: HostLike = None,
        attention: Attention = "fused",
        phase: Phase | None = None,
        optimizer: Optimizer = "sgd",
        checkpointing: bool = False,
        autograd: bool = False,
        context_mb: ContextLike = None,
        runtime: Runtime = "pytorch",
        trust: bool = False,
    ) -> Prediction:
        """Predict one point; the arguments are those of `dippm.predict`.

        `device` and `phase` are the predictor's own if they are None.
        """
        conditions = conditions_of(
            self.device if device is None else device,
            batch=batch,
            precision=precision,
            mode=mode,
            timer=timer,
            mig=mig,
            channels_last=channels_last,
            host=host,
            attention=attention,
            phase=self.phase if phase is None else phase_of(phase),
            optimizer=optimizer,
            checkpointing=checkpointing,
            autograd=autograd,
            context_mb=context_mb,
            runtime=runtime,
        )
        name = source_name(source)
        with stage(f"converting {name}"):
            model_graph = read_graph(source, framework, input=input, trust=trust)
        asked = self._asked(source, input, trust)
        return self.predict_at(model_graph, conditions, name=name, asked=asked)

    def predict_at(
        self,
        graph: ModelGraph,
        conditions: Conditions,
        *,
        name: str = "graph",
        asked: Asked | None = None,
    ) -> Prediction:
        """Predict a ready graph under ready conditions; `name` is what the answer calls it.

        `asked` is what the graph was read from, for the line that would check the answer.

        The precision is that of the conditions, whatever type the graph's weights are held in.
        """
        graph = in_float32(graph)
        checkpoint = self.checkpoint_for(conditions.device, conditions.phase)
        estimates = checkpoint.predictor.predict(graph, conditions)
        provenance = _provenance(checkpoint, graph, name)
        return Prediction.of(
            estimates, graph, conditions=conditions, provenance=provenance, asked=asked
        )

    def predict_many(self, sources: Iterable[Any], **arguments: Any) -> Comparison:
        """Predict several models under the same conditions, see `predict`."""
        return Comparison(tuple(self.predict(source, **arguments) for source in sources))

    def predict_grid(
        self,
        source: Any,
        *,
        batches: Iterable[int] = (1,),
        devices: Iterable[DeviceLike] | None = None,
        migs: Iterable[str | MigProfile | None] = (None,),
        framework: str | None = None,
        input: Input = None,
        precision: str | Sequence[str] = "fp32",
        mode: Mode = "eager",
        timer: Timer = "wall",
        channels_last: bool = False,
        host: HostLike = None,
        attention: Attention = "fused",
        phase: Phase | None = None,
        optimizer: Optimizer = "sgd",
        checkpointing: bool = False,
        autograd: bool = False,
        context_mb: ContextLike = None,
        runtime: Runtime = "pytorch",
        trust: bool = False,
    ) -> Comparison:
        """Predict one model at every (device, slice, precision, batch); without operator tables.

        Args:
            source: see `dippm.predict`.
            batches: batch sizes.
            devices: GPUs; None is the predictor's own.
            migs: slices; None is the whole GPU. A slice that one of the devices does not have is
                left out for that device.
            framework: see `dippm.predict`.
            input: see `dippm.predict`.
            precision: one or several; "all" is what each device has hardware for.
            mode: see `Conditions`.
            timer: see `Conditions`.
            channels_last: see `Conditions`.
            host: see `dippm.predict`.
            attention: see `dippm.predict`.
            phase: see `dippm.predict`; None is the predictor's own.
            optimizer: see `dippm.predict`.
            checkpointing: see `dippm.predict`.
            autograd: see `dippm.predict`.
            context_mb: see `dippm.predict`.
            runtime: see `dippm.predict`.
            trust: see `dippm.predict`.

        Raises:
            UnknownNameError: if none of the devices has one of the slices.
            DippmError: as `predict` does.
        """
        grid = Grid.of(
            [self.device] if devices is None else devices,
            migs,
            precision,
            batches,
            mode=mode,
            timer=timer,
            channels_last=channels_last,
            host=host_of(host),
            attention=attention,
            phase=self.phase if phase is None else phase_of(phase),
            optimizer=optimizer,
            checkpointing=checkpointing,
            autograd=autograd,
            context_mb=context_mb,
            runtime=runtime,
        )
        points = self.points(grid)
        name = source_name(source)
        with stage(f"converting {name}"):
            model_graph = read_graph(source, framework, input=input, trust=trust)
        refused = self.refused(grid)
        asked = self._asked(source, input, trust)
        found = (*self.predict_points(model_graph, points, name, asked),)
        return Comparison((*found, *_failures(refused, name, strict=True)))

    def predict_points(
        self,
        graph: ModelGraph,
        points: Sequence[Conditions],
        name: str = "graph",
        asked: Asked | None = None,
    ) -> Iterator[Prediction]:
        """Predict a ready graph at ready points, without operator tables, in their order."""
        graph, done = in_float32(graph), 0
        for (device, phase), group in groupby(points, key=lambda p: (p.device, p.phase)):
            checkpoint = self.checkpoint_for(device, phase)
            provenance = _provenance(checkpoint, graph, name)
            same = list(group)
            for start in range(0, len(same), POINTS_PER_STAGE):
                part = same[start : start + POINTS_PER_STAGE]
                done += len(part)
                tell(f"predicting {done:,} of {len(points):,}")
                answers = checkpoint.predictor.predict_many(graph, part)
                for answer, point in zip(answers, part, strict=True):
                    yield Prediction.of(
                        answer, graph, conditions=point, provenance=provenance, asked=asked
                    )

    def precisions_for(self, device: Device, phase: Phase = "inference") -> list[Precision]:
        """Return what a device has hardware for, as far as its checkpoint answers for it."""
        listed = precisions_of(self.checkpoint_for(device, phase).config)
        return [p for p in supported_precisions(device) if listed is None or p in listed]

    def points(self, grid: Grid, batches: Iterable[int] | None = None) -> list[Conditions]:
        """Return the points of a grid, see `Grid.points`."""
        return grid.points(batches, supported=self._supported(grid))

    def refused(self, grid: Grid) -> list[Refused]:
        """Return the precisions that devices of a grid lack, see `Grid.refused`."""
        return grid.refused(self._supported(grid))

    def _supported(self, grid: Grid) -> Callable[[Device], list[Precision]]:
        return partial(self.precisions_for, phase=phase_of(grid.phase))

    def entries(
        self,
        case: Candidate,
        grid: Grid,
        *,
        name: str,
        input: Input = None,
        trust: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
        strict: bool = False,
        asked: Asked | None = None,
    ) -> Iterator[Prediction | Failure]:
        """Predict one model of a comparison; what fails is a `Failure`, or raised if `strict`.

        The arguments are those of `compare`; `asked` is what a ready graph was read from.
        """
        began = time.monotonic()
        sizes = input if case.input is None else case.input
        try:
            points = self.points(grid, case.batches)
            model_graph = read_graph(
                case.model,
                case.framework,
                input=sizes,
                trust=trust,
                timeout_s=timeout_s,
                memory_limit_mb=memory_limit_mb,
            )
        except Exception as error:
            if strict:
                raise
            yield Failure(name, _ours(error))
            return
        found: Iterable[Prediction | Failure]
        asked = asked or self._asked(case.model, sizes, trust)
        limit_s = timeout_s * max(len(points), 1)
        try:
            with until(began, limit_s, len(model_graph.nodes), "its features"):
                found = list(self.predict_points(model_graph, points, name, asked))
        except ConversionError as error:  # out of time: another attempt would be too
            if strict:
                raise
            found = [Failure(name, error)]
        except Exception:
            if strict:
                raise
            found = self._one_by_one(model_graph, points, name, asked)
        yield from found
        yield from _failures(self.refused(grid), name, strict=strict)

    def _asked(self, source: Any, input: Input, trust: bool) -> Asked:
        """Return what was asked about; the checkpoint is said if it was asked for by name."""
        named = _spelt(self.checkpoint) if self.named else None
        return Asked.of(source, input, trust=trust, checkpoint=named)

    def _one_by_one(
        self, graph: ModelGraph, points: Sequence[Conditions], name: str, asked: Asked | None
    ) -> Iterator[Prediction | Failure]:
        for point in points:
            try:
                yield from self.predict_points(graph, [point], name, asked)
            except Exception as error:
                yield Failure(name, _ours(error), point)


def _failures(refused: Iterable[Refused], name: str, *, strict: bool) -> Iterator[Failure]:
    """Return what the devices do not have as entries; raise what was asked for if `strict`."""
    for one in refused:
        if strict and one.asked:
            raise one.error
        yield Failure(
            name, one.error, device=one.device.name, precision=one.precision, asked=one.asked
        )


def _spelt(checkpoint: Checkpoint) -> str:
    """Return what names a checkpoint: name and version of one that is shipped, else its folder."""
    name = f"{checkpoint.name}@{checkpoint.version}"
    try:
        shipped = pretrained.find(name).path
    except DippmError:
        return str(checkpoint.path)
    return name if shipped == checkpoint.path else str(checkpoint.path)


def _provenance(checkpoint: Checkpoint, graph: ModelGraph, source: str) -> Provenance:
    return Provenance(
        source=source,
        checkpoint=f"{checkpoint.name} {checkpoint.version}",
        kind=checkpoint.kind,
        sha256=str(checkpoint.config["sha256"]),
        graph_version=graph.version,
        dippm_version=__version__,
        frameworks=frameworks_of(checkpoint.config),
    )


def _ours(error: Exception) -> DippmError:
    """Return an error of ours; anything else is a fault of ours that must not end the rest."""
    if isinstance(error, DippmError):
        return error
    found = DippmError(
        f"unexpected {type(error).__name__}: {error}",
        "This is a fault of DIPPM: please report it with the model.",
    )
    found.__cause__ = error
    return found
