"""`request_resources`: the smallest place that holds a model and meets a latency limit."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Unpack

from dippm.base import files
from dippm.base.number_format import show
from dippm.base.written import is_finite
from dippm.decide.choice import Choice, Contender, choose
from dippm.decide.choice.infeasible import round_up
from dippm.decide.choice.probability import log_sd
from dippm.decide.scheduling.request import ResourceRequest
from dippm.devices import Device, all_devices
from dippm.errors import ConditionsError, ConstraintError, NothingFeasibleError
from dippm.estimate.options import ChoiceOptions, question
from dippm.estimate.place import DEFAULT_DEVICE, DeviceLike, device_of
from dippm.model.frontends import cache, named

DEFAULT_PROBABILITY = 0.95
"""Probability of the upper end of a 90 % interval."""


@question(ChoiceOptions)
def request_resources(
    source: Any,
    framework: str | None = None,
    *,
    devices: DeviceLike | Iterable[DeviceLike] = DEFAULT_DEVICE,
    slices: bool = True,
    slo_ms: float | None = None,
    probability: float = DEFAULT_PROBABILITY,
    resource: str | None = None,
    model: str | None = None,
    **options: Unpack[ChoiceOptions],
) -> ResourceRequest:
    """Find the smallest GPU or slice that holds a model and meets a latency limit.

    The 99 % bound of the memory fits, and a batch takes at most `slo_ms` with at least
    `probability`, by the distribution that the latency interval implies.

    Args:
        source: see `dippm.predict`.
        framework: see `dippm.predict`.
        devices: available NVIDIA GPUs, one or several; "all" is every one of the catalogue.
        slices: whether MIG slices are allowed.
        slo_ms: largest latency of a batch in ms; None for no limit.
        probability: required probability that a batch meets `slo_ms`, above 0 and below 1.
        resource: resource name in the cluster; None for the usual one.
        model: name of the model, for instance its path where it will run; None is the source.
        **options: see `dippm.Options`.

    Raises:
        NothingFeasibleError: if no place suffices; its `choice` has every row.
        ConstraintError: if a limit or the probability is not valid.
        ConditionsError: if a device is not an NVIDIA GPU.
        DippmError: as `dippm.choose` does.
    """
    if not (is_finite(probability) and 0 < probability < 1):
        raise ConstraintError(
            f"the probability is {probability!r}",
            "Give a number above 0 and below 1: probability=0.95.",
        )
    if slo_ms is not None and (not is_finite(slo_ms) or slo_ms <= 0):
        raise ConstraintError(
            f"slo_ms is {slo_ms!r}, which nothing can meet",
            "Give a number above 0, in ms: slo_ms=20; or leave it out.",
        )
    answer = choose(
        source,
        framework,
        devices=_gpus(devices),
        slices=slices,
        by="size",
        **options,
    )
    choice = _apply_limit(answer, slo_ms, probability)
    best = choice.best
    if best is None:
        raise _nothing_meets(choice, slo_ms, probability)
    assert best.prediction is not None
    given = model or (os.fspath(source) if isinstance(source, str | os.PathLike) else choice.source)
    prediction = best.prediction
    if model and prediction.asked is not None:
        prediction = replace(prediction, asked=replace(prediction.asked, model=model))
    return ResourceRequest(
        model=given,
        digest=model_digest(source),
        device=best.device,
        mig=best.mig,
        prediction=prediction,
        slo_ms=slo_ms,
        probability=None if slo_ms is None else probability_within(best, slo_ms),
        wanted_probability=probability,
        choice=choice,
        resource=resource,
        notes=best.prediction.warnings,
    )


def probability_within(c: Contender, slo_ms: float) -> float:
    """Return the probability that a batch takes at most `slo_ms`; 0 without a latency.

    The log error is normal, with the standard deviation that the interval implies.
    """
    latency = c.estimate("latency_ms")
    if latency is None:
        return 0.0
    spread, distance = log_sd(latency.interval), math.log(slo_ms / latency.value)
    if spread == 0:
        return float(distance >= 0)
    return NormalDist().cdf(distance / spread)


def model_digest(source: Any) -> str | None:
    """Return "sha256:..." of a model file or folder; None for other sources.

    Raises:
        ModelFileError: if it cannot be read.
    """
    if not isinstance(source, str | os.PathLike) or named.is_name(os.fspath(source)):
        return None
    path = Path(files.expand_home(source))
    if path.is_dir():
        return f"sha256:{cache.digest(path)}"
    hashed = hashlib.sha256()
    with files.open_regular(path) as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
    return f"sha256:{hashed.hexdigest()}"


def _gpus(wanted: DeviceLike | Iterable[DeviceLike]) -> list[Device]:
    several = [wanted] if isinstance(wanted, str | os.PathLike | Device) else list(wanted)
    found: dict[str, Device] = {}
    for one in several:
        if isinstance(one, str) and one.strip().casefold() == "all":
            found |= {gpu.name: gpu for gpu in all_devices() if _is_nvidia(gpu)}
            continue
        gpu = device_of(one)
        if not _is_nvidia(gpu):
            raise ConditionsError(
                f"{gpu.name} is not an NVIDIA GPU, and its resources are not known here",
                "Use a GPU that schedulers know, such as devices=A100.",
            )
        found.setdefault(gpu.name, gpu)
    return list(found.values())


def _is_nvidia(gpu: Device) -> bool:
    return gpu.compute_capability is not None


def _apply_limit(answer: Choice, slo_ms: float | None, probability: float) -> Choice:
    """Return a choice in which places that miss the limit are ruled out."""
    if slo_ms is None:
        return answer
    held = [_apply_limit_to(c, slo_ms, probability) for c in answer.contenders]
    return replace(
        answer, contenders=tuple(held), limits=replace(answer.limits, slo_ms=float(slo_ms))
    )


def _apply_limit_to(c: Contender, slo_ms: float, probability: float) -> Contender:
    if c.prediction is None or probability_within(c, slo_ms) >= probability:
        return c
    chance = probability_within(c, slo_ms)
    words = f"within {slo_ms:g} ms with a probability of {chance:.1%}, not {probability:.4g}"
    if c.prediction.latency_ms is None:
        words = f"latency not predicted: {c.prediction.absent['latency_ms']}"
    return replace(c, misses=(*c.misses, words))


def _nothing_meets(
    choice: Choice, slo_ms: float | None, probability: float
) -> NothingFeasibleError:
    """Return the error for a limit that no place meets; other errors come from `choose`."""
    assert slo_ms is not None
    holding = [c for c in choice.contenders if c.holds_model]
    nearest = max(holding, key=lambda c: probability_within(c, slo_ms), default=None)
    latency = nearest.estimate("latency_ms") if nearest is not None else None
    if nearest is None or latency is None:
        return NothingFeasibleError(
            "no place holds the model and has a latency",
            "Leave out slo_ms=..., or take a checkpoint that predicts latency.",
            choice,
        )
    bound_ms = latency.value * math.exp(
        NormalDist().inv_cdf(probability) * log_sd(latency.interval)
    )
    chance = probability_within(nearest, slo_ms)
    return NothingFeasibleError(
        f"nothing meets slo_ms={slo_ms:g} with probability={probability:g}: the nearest is "
        f"{nearest.name} with {chance:.1%}, predicted {show(latency.value)} ms",
        f"slo_ms={round_up(bound_ms)} would do there; or ask for a smaller batch=..., for another"
        " precision=..., or for other devices=... .",
        choice,
    )
