"""`LoadedPredictor`: a checkpoint in memory, for one prediction or many."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Unpack

from dippm import __version__
from dippm.base.progress import tell
from dippm.devices import Device
from dippm.errors import ConversionError, DippmError
from dippm.estimate import pretrained
from dippm.estimate.comparison import Comparison, Failure
from dippm.estimate.conditions import (
    Conditions,
    Phase,
    Precision,
    check_options,
    supported_precisions,
)
from dippm.estimate.grid import Grid, Refused
from dippm.estimate.measure_line import Asked
from dippm.estimate.model_list import Candidate
from dippm.estimate.options import (
    ReadingOptions,
    WarmOptions,
    WarmRunOptions,
    conditions_in,
    read_model,
    reading_in,
    usual_options,
)
from dippm.estimate.place import DEFAULT_DEVICE, DeviceLike, MigLike
from dippm.estimate.prediction import Prediction, Provenance
from dippm.estimate.pretrained.store import for_device, frameworks_of, knows, precisions_of
from dippm.model.convert import until
from dippm.model.frontends.limits import DEFAULT_TIMEOUT_S
from dippm.model.graph import ModelGraph
from dippm.model.graph.float_type import in_float32

if TYPE_CHECKING:
    from dippm.estimate.pretrained import Checkpoint

POINTS_PER_STAGE = 64


@dataclass(frozen=True, slots=True)
class LoadedPredictor:
    """A checkpoint in memory, so that no call loads it again.

    Attributes:
        checkpoint: the loaded checkpoint.
        named: whether the user named the checkpoint. If not, another shipped checkpoint answers
            for a device or a phase that this one does not know.
        device: default device of every call.
        phase: default phase of every call.
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

    @property
    def spelt(self) -> str | None:
        """The name of the checkpoint; None if the user named none."""
        return _spelt(self.checkpoint) if self.named else None

    def predict(
        self, source: Any, *, framework: str | None = None, **options: Unpack[WarmOptions]
    ) -> Prediction:
        """Predict one point; the arguments are those of `dippm.predict`.

        `device` and `phase` are the predictor's own if they are left out or None.
        """
        check_options(options, WarmOptions)
        asked = {n: v for n, v in options.items() if not (v is None and n in ("device", "phase"))}
        asked = usual_options(source, {**asked, "checkpoint": self}) | asked
        conditions = Conditions.of(**conditions_in(asked))
        model = read_model(source, framework, checkpoint=self, **reading_in(asked))
        return self.predict_at(model.graph, conditions, name=model.name, asked=model.asked)

    def predict_at(
        self,
        graph: ModelGraph,
        conditions: Conditions,
        *,
        name: str = "graph",
        asked: Asked | None = None,
    ) -> Prediction:
        """Predict a graph under validated conditions.

        The precision is that of the conditions, whatever the type of the graph's weights.

        Args:
            graph: the model.
            conditions: the point to predict.
            name: name of the model in the answer.
            asked: file or name that the graph was read from, for the line that checks the answer.
        """
        graph = in_float32(graph)
        checkpoint = self.checkpoint_for(conditions.device, conditions.phase)
        estimates = checkpoint.predictor.predict(graph, conditions)
        provenance = _provenance(checkpoint, graph, name)
        return Prediction.of(
            estimates, graph, conditions=conditions, provenance=provenance, asked=asked
        )

    def predict_many(self, sources: Iterable[Any], **options: Unpack[WarmOptions]) -> Comparison:
        """Predict several models under the same conditions, see `predict`."""
        return Comparison(tuple(self.predict(source, **options) for source in sources))

    def predict_grid(
        self,
        source: Any,
        *,
        batches: Iterable[int] | None = None,
        devices: Iterable[DeviceLike] | None = None,
        migs: Iterable[MigLike] | None = None,
        framework: str | None = None,
        precision: str | Sequence[str] | None = None,
        **options: Unpack[WarmRunOptions],
    ) -> Comparison:
        """Predict one model at every (device, slice, precision, batch); without operator tables.

        Args:
            source: see `dippm.predict`.
            batches: batch sizes; None for 1, or for that of a prediction, as for all below.
            devices: GPUs; None for the predictor's own.
            migs: slices; None is the whole GPU. A slice that one of the devices does not have is
                left out for that device.
            framework: see `dippm.predict`.
            precision: one or several; "all" for those that each device has hardware for.
            **options: conditions of every point, see `dippm.Options`.

        Raises:
            UnknownNameError: if none of the devices has one of the slices.
            DippmError: as `predict` does.
        """
        check_options(options, WarmRunOptions)
        named = {"batch": batches, "device": devices, "mig": migs, "precision": precision}
        asked = {n: v for n, v in {**options, **named}.items() if v is not None}
        asked = usual_options(source, {**asked, "checkpoint": self}) | asked
        grid = Grid.of(**conditions_in(asked))
        points, refused = self.points(grid), self.refused(grid)
        model = read_model(source, framework, checkpoint=self, **reading_in(asked))
        found = (*self.predict_points(model.graph, points, model.name, model.asked),)
        return Comparison((*found, *_failures(refused, model.name, strict=True)))

    def predict_points(
        self,
        graph: ModelGraph,
        points: Sequence[Conditions],
        name: str = "graph",
        asked: Asked | None = None,
    ) -> Iterator[Prediction]:
        """Predict a graph at validated points, in their order, without operator tables."""
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
        """Return the precisions of a device's hardware that its checkpoint answers for."""
        listed = precisions_of(self.checkpoint_for(device, phase).config)
        return [p for p in supported_precisions(device) if listed is None or p in listed]

    def points(self, grid: Grid, batches: Iterable[int] | None = None) -> list[Conditions]:
        """Return the points of a grid, see `Grid.points`."""
        return grid.points(batches, supported=self._supported(grid))

    def refused(self, grid: Grid) -> list[Refused]:
        """Return the precisions that devices of a grid lack, see `Grid.refused`."""
        return grid.refused(self._supported(grid))

    def _supported(self, grid: Grid) -> Callable[[Device], list[Precision]]:
        return partial(self.precisions_for, phase=grid.execution.phase)

    def entries(
        self,
        case: Candidate,
        grid: Grid,
        *,
        name: str,
        strict: bool = False,
        asked: Asked | None = None,
        **reading: Unpack[ReadingOptions],
    ) -> Iterator[Prediction | Failure]:
        """Predict one model of a comparison; errors become `Failure`s, or are raised if `strict`.

        The arguments are those of `compare`; `asked` is the source of a graph given as such.
        """
        began = time.monotonic()
        timeout_s = reading.get("timeout_s", DEFAULT_TIMEOUT_S)
        if case.input is not None:
            reading["input"] = case.input
        try:
            points = self.points(grid, case.batches)
            model = read_model(case.model, case.framework, checkpoint=self, **reading)
        except Exception as error:
            if strict:
                raise
            yield Failure(name, _ours(error))
            return
        found: Iterable[Prediction | Failure]
        model_graph, asked = model.graph, asked or model.asked
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

    def _one_by_one(
        self, graph: ModelGraph, points: Sequence[Conditions], name: str, asked: Asked | None
    ) -> Iterator[Prediction | Failure]:
        for point in points:
            try:
                yield from self.predict_points(graph, [point], name, asked)
            except Exception as error:
                yield Failure(name, _ours(error), point)


def _failures(refused: Iterable[Refused], name: str, *, strict: bool) -> Iterator[Failure]:
    """Return refused precisions as entries; raise those asked for by name if `strict`."""
    for one in refused:
        if strict and one.asked:
            raise one.error
        yield Failure(
            name, one.error, device=one.device.name, precision=one.precision, asked=one.asked
        )


def _spelt(checkpoint: Checkpoint) -> str:
    """Return the name and version of a shipped checkpoint, the folder of any other."""
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
    """Return a `DippmError` as it is; wrap any other error, so that other models go on."""
    if isinstance(error, DippmError):
        return error
    found = DippmError(
        f"unexpected {type(error).__name__}: {error}",
        "This is a bug in DIPPM: please report it with the model.",
    )
    found.__cause__ = error
    return found
