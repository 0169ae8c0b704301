"""`pack`: several models on one GPU, each on a MIG slice of its own.

Every model is predicted on every slice. Of all assignments of models to slices that can coexist
(`dippm.devices.arrangements`), the best places the most models; then has the least geometric mean
of latencies; then takes the least memory of the GPU. The search is exact: dynamic programming over
the models, with the multisets of profiles that occur in arrangements as states. Slices share
neither multiprocessors nor memory, so each latency is that of the slice alone; the power limit and
the host, which they do share, are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from dippm.base.answer import Answer
from dippm.base.printable import printable
from dippm.decide.choice.choice import Choice
from dippm.decide.choice.contender import Contender
from dippm.decide.choice.limits import Limits, SloAt
from dippm.decide.choice.ranking import choose
from dippm.devices import Device, Placement, arrange, arrangements, places
from dippm.errors import (
    ConditionsError,
    ConstraintError,
    DippmError,
    ModelFileError,
    NothingFeasibleError,
)
from dippm.estimate.conditions import check_options
from dippm.estimate.model_list import Candidate
from dippm.estimate.options import SliceOptions, name_of, question
from dippm.estimate.place import DEFAULT_DEVICE, device_of

Counts = tuple[int, ...]
Score = tuple[int, int, int]
STEPS_OF_LOG = 1e9
"""Resolution at which logs of latencies are summed: as integers, so that the order of the models
changes no sum and equal packings tie exactly."""
MOST_MODELS = 1_000


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model and the slice that it is assigned to.

    Attributes:
        source: name of the model.
        contender: the slice with its prediction; None if the model was left out.
        placement: position of the slice; None if the model was left out.
        slowdown: predicted latency over that on the whole GPU; None if either is absent.
        reason: why the model was left out; "" if it was not.
        error: why the model cannot be predicted at all; None if it can.
    """

    source: str
    contender: Contender | None = None
    placement: Placement | None = None
    slowdown: float | None = None
    reason: str = ""
    error: DippmError | None = None

    def row(self) -> dict[str, Any]:
        """Return a flat mapping, as JSON-ready data."""
        c, at = self.contender, self.placement
        latency = c.estimate("latency_ms") if c else None
        return {
            "source": self.source,
            "slice": at and at.profile,
            "start": None if at is None else at.start,
            "size": None if at is None else at.size,
            "batch": c and c.batch,
            "latency_ms": latency and latency.value,
            "latency_ms_low": latency and latency.interval.low,
            "latency_ms_high": latency and latency.interval.high,
            "slowdown": self.slowdown,
            "memory_bound_mb": c and c.memory_bound_mb,
            "usable_mb": c and c.capacity_mb,
            "capacity_mb": c and c.capacity_mb,
            "reason": self.reason or None,
            "error": self.error and self.error.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Packing(Answer):
    """Models on the slices of one GPU; `pack` makes it.

    Attributes:
        device: the GPU.
        conditions: batch, precision, mode and phase in a few words; "" without a prediction.
        limits: limits of every model.
        models: the models in the order given.
        warnings: warnings of the chosen predictions, each once.
    """

    device: Device
    conditions: str
    limits: Limits
    models: tuple[PackedModel, ...]
    warnings: tuple[str, ...] = ()

    @property
    def placed(self) -> tuple[PackedModel, ...]:
        """Models that were assigned a slice."""
        return tuple(model for model in self.models if model.placement is not None)

    @property
    def left_out(self) -> tuple[PackedModel, ...]:
        """Models without a slice, each with its reason."""
        return tuple(model for model in self.models if model.placement is None)

    @property
    def free_memory_slices(self) -> int:
        """Memory slices of the GPU that no model takes."""
        taken = sum(model.placement.size for model in self.placed if model.placement)
        return self.device.memory_slices - taken

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per model."""
        return [model.row() for model in self.models]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "device": self.device.name,
            "conditions": self.conditions,
            "limits": asdict(self.limits),
            "placed": len(self.placed),
            "left_out": len(self.left_out),
            "free_memory_slices": self.free_memory_slices,
            "models": self.rows(),
            "warnings": list(self.warnings),
        }

    @property
    def title(self) -> str:
        """GPU, models and conditions in one printable line."""
        several = f"{len(self.placed)} of {len(self.models)} models"
        return printable(" · ".join(filter(None, (self.device.name, several, self.conditions))))

    @property
    def footer(self) -> str:
        """The checkpoints that answered, in one printable line."""
        predictions = [m.contender.prediction for m in self.placed if m.contender]
        names = dict.fromkeys(p.provenance.checkpoint for p in predictions if p)
        return printable(", ".join(names))


def pack(
    sources: Sequence[Any],
    framework: str | None = None,
    *,
    slo_ms: float | None = None,
    slo_at: SloAt = "upper",
    max_memory_mb: float | None = None,
    copies: int = 1,
    **options: Unpack[SliceOptions],
) -> Packing:
    """Assign several models to MIG slices of one GPU.

    Args:
        sources: models as `dippm.predict` takes them, or `Candidate`s with their own input and
            batch; one may occur several times.
        framework: see `dippm.predict`.
        slo_ms: see `dippm.choose`, as the next two.
        slo_at: value compared with `slo_ms`.
        max_memory_mb: largest memory of each model.
        copies: processes of each model on its slice, see `dippm.choose`.
        **options: see `dippm.Options`; the device is a GPU with MIG.

    Raises:
        ConstraintError: if no model is given, or a limit is not valid.
        ConditionsError: if the GPU has no slices, or precision, mode, ... cannot be predicted.
        UnknownNameError: if a device or checkpoint is not known.
    """
    check_options(options, SliceOptions)
    rest: dict[str, Any] = {**options}
    gpu = device_of(rest.pop("device", DEFAULT_DEVICE))
    rest |= {"slo_ms": slo_ms, "slo_at": slo_at, "max_memory_mb": max_memory_mb, "copies": copies}
    cases = [source if isinstance(source, Candidate) else Candidate(source) for source in sources]
    if not 0 < len(cases) <= MOST_MODELS:
        raise ConstraintError(
            f"{len(cases)} models cannot be packed", f"Give one to {MOST_MODELS:,} models."
        )
    limits = Limits(slo_ms, slo_at, max_memory_mb)
    known: list[tuple[Candidate, _SliceChoice]] = []
    for case in cases:
        again = next((found for other, found in known if other == case), None)
        known.append((case, again or _choose_slice(case, framework, gpu, rest)))
    asked = [found for _, found in known]
    taken = _best([found.choice for found in asked], gpu)
    seats = [(number, contender) for number, contender in enumerate(taken) if contender is not None]
    where = arrange([c.mig.name for _, c in seats if c.mig], places(gpu))
    assert where is not None, "the multiset is that of an arrangement"
    at = {number: place for (number, _), place in zip(seats, where, strict=True)}
    models = tuple(
        _packed_model(found, contender, at.get(number))
        for number, (found, contender) in enumerate(zip(asked, taken, strict=True))
    )
    conditions = next((found.choice.conditions for found in asked if found.choice), "")
    warned = [w for _, c in seats if c.prediction for w in c.prediction.warnings]
    return Packing(gpu, conditions, limits, models, tuple(dict.fromkeys(warned)))


@dataclass(frozen=True, slots=True)
class _SliceChoice:
    """The slices of one model; no choice but the error if the model cannot be predicted."""

    name: str
    choice: Choice | None
    error: DippmError | None = None


def _choose_slice(
    case: Candidate, framework: str | None, gpu: Device, rest: dict[str, Any]
) -> _SliceChoice:
    name = name_of(case.model)
    own = {"input": case.input, "batch": case.batches}
    given = rest | {key: value for key, value in own.items() if value is not None}
    try:
        choice = smallest_slice(case.model, case.framework or framework, device=gpu, **given)
    except NothingFeasibleError as error:
        return _SliceChoice(name, error.choice)
    except ModelFileError as error:
        return _SliceChoice(name, None, error)
    return _SliceChoice(choice.source, choice)


def _best(choices: Sequence[Choice | None], gpu: Device) -> list[Contender | None]:
    """Return the contender of each model in the best packing; None for a model left out.

    Of equal models the first gets the larger slice.
    """
    profiles = [profile.name for profile in gpu.mig_profiles]
    valid = {_profile_counts(found, profiles) for found in ((), *arrangements(gpu))}
    best: dict[Counts, tuple[Score, tuple[Contender | None, ...]]] = {
        (0,) * len(profiles): ((0, 0, 0), ())
    }
    for choice in choices:
        after: dict[Counts, tuple[Score, tuple[Contender | None, ...]]] = {}
        for counts, (score, way) in best.items():
            for c in (*reversed(_feasible(choice)), None):
                now, scored = counts, score
                if c is not None and c.mig is not None:
                    index = profiles.index(c.mig.name)
                    now = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
                    scored = _add_score(score, c, c.mig.memory_slices)
                if now in valid and (now not in after or scored > after[now][0]):
                    after[now] = (scored, (*way, c))
        best = after
    return list(max(best.values(), key=lambda found: found[0])[1])


def _add_score(score: Score, c: Contender, memory_slices: int) -> Score:
    latency = c.estimate("latency_ms")
    slower = round(STEPS_OF_LOG * math.log(latency.value)) if latency else 0
    return score[0] + 1, score[1] - slower, score[2] - memory_slices


def _feasible(choice: Choice | None) -> list[Contender]:
    return [c for c in choice.contenders if c.feasible and c.mig] if choice else []


def _profile_counts(found: Sequence[Placement], profiles: list[str]) -> Counts:
    names = [place.profile for place in found]
    return tuple(names.count(profile) for profile in profiles)


def _packed_model(
    asked: _SliceChoice, contender: Contender | None, place: Placement | None
) -> PackedModel:
    choice = asked.choice
    if choice is None:
        reason = asked.error.message if asked.error else "not predicted"
        return PackedModel(asked.name, reason=reason, error=asked.error)
    if contender is not None:
        slowdown = _slowdown(contender, choice)
        return PackedModel(asked.name, contender, place, slowdown)
    able = _feasible(choice)
    if able:
        smallest = min(able, key=lambda c: c.size)
        reason = f"{smallest.mig} is sufficient, but there is no room for it next to the others"
        return PackedModel(asked.name, reason=reason)
    last = max((c for c in choice.contenders if c.mig), key=lambda c: c.size, default=None)
    why = choice.reason(last) if last else "no slice of this GPU is known"
    where = f"{last.mig}, the largest slice: " if last else ""
    return PackedModel(asked.name, reason=f"{where}{why}")


def _slowdown(contender: Contender, choice: Choice) -> float | None:
    whole = next((c for c in choice.contenders if c.name == c.device.name), None)
    here, there = contender.estimate("latency_ms"), whole and whole.estimate("latency_ms")
    return here.value / there.value if here and there else None


# `smallest_slice`: the smallest MIG slice that holds a model and meets a limit.


@question(SliceOptions)
def smallest_slice(
    source: Any,
    framework: str | None = None,
    *,
    slo_ms: float | None = None,
    slo_at: SloAt = "upper",
    max_memory_mb: float | None = None,
    copies: int = 1,
    **options: Unpack[SliceOptions],
) -> Choice:
    """Find the smallest slice of a GPU whose memory holds a model and that meets `slo_ms`.

    Args:
        source: see `dippm.predict`.
        framework: see `dippm.predict`.
        slo_ms: see `dippm.choose`, as the next two.
        slo_at: value compared with `slo_ms`.
        max_memory_mb: largest memory.
        copies: processes of the model on a slice.
        **options: see `dippm.Options`; the device is a GPU with MIG.

    Returns:
        All slices, smallest first and the whole GPU last, each with the reason if it is ruled out;
        `best` is the whole GPU if every slice is.

    Raises:
        ConditionsError: if the GPU has no slices.
        NothingFeasibleError: if not even the whole GPU suffices.
        DippmError: as `dippm.choose` does.
    """
    rest: dict[str, Any] = {**options}
    gpu = device_of(rest.pop("device", DEFAULT_DEVICE))
    if not (gpu.mig_profiles or gpu.unlisted_mig_profiles):
        raise ConditionsError(
            f"{gpu.name} cannot be sliced",
            "`dippm devices` lists which GPUs have slices, for instance device=A100.",
        )
    limits: Any = {"slo_ms": slo_ms, "slo_at": slo_at, "max_memory_mb": max_memory_mb}
    limits["copies"] = copies
    return choose(source, framework, devices=gpu, slices=True, by="size", **limits, **rest)
