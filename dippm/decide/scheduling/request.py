"""`request_resources`: the smallest place that suffices, as `ResourceRequest`."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Unpack

from dippm.base import files
from dippm.base.answer import Answer
from dippm.base.number_format import show
from dippm.base.printable import legible, printable
from dippm.base.written import is_finite
from dippm.decide.choice import Choice, Contender, choose
from dippm.decide.choice.choice import round_up
from dippm.decide.choice.probability import log_sd
from dippm.devices import Device, MigProfile, all_devices
from dippm.errors import ConditionsError, ConstraintError, NothingFeasibleError
from dippm.estimate.options import ChoiceOptions, question
from dippm.estimate.place import DEFAULT_DEVICE, DeviceLike, device_of
from dippm.estimate.prediction import Prediction
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
        model: name of the model, for instance its path where it will run; None for that of the
            source.
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
        devices=_nvidia_gpus(devices),
        slices=slices,
        by="size",
        **options,
    )
    choice = _apply_limit(answer, slo_ms, probability)
    best = choice.best
    if best is None:
        raise _unmet_limit_error(choice, slo_ms, probability)
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

    The logarithm of the latency is normally distributed around that of the prediction, with the
    standard deviation that the interval implies.
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


def _nvidia_gpus(wanted: DeviceLike | Iterable[DeviceLike]) -> list[Device]:
    """Return the requested GPUs without duplicates; "all" is every NVIDIA GPU of the catalogue.

    Raises:
        ConditionsError: if a device is not an NVIDIA GPU.
    """
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


def _unmet_limit_error(
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
    # The limit that the nearest place would meet with the requested probability: its quantile.
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


# The answer: the place for a model, why it was chosen, and the command that verifies it.

DOMAIN = "dippm.io"
"""Domain of the annotations: `dippm.io/model`, ..."""


@dataclass(frozen=True, slots=True)
class ResourceRequest(Answer):
    """One GPU, or one slice of one, for one copy of a model.

    Attributes:
        model: model as given: a path, or a name such as "timm:resnet50".
        digest: "sha256:..." of the file; None for a name.
        device: GPU of the place.
        mig: slice of the GPU; None for the whole GPU.
        prediction: prediction for this place, without operator tables.
        slo_ms: largest latency of a batch in ms; None without a limit.
        probability: probability that a batch meets `slo_ms`, 0 to 1; None without a limit.
        wanted_probability: requested probability.
        choice: every place that was considered, smallest first, each with its reason.
        resource: resource name in this cluster, which replaces that of the format; None for the
            usual one.
        notes: remarks on the use of the request.
    """

    model: str
    digest: str | None
    device: Device
    mig: MigProfile | None
    prediction: Prediction = field(repr=False)
    slo_ms: float | None
    probability: float | None
    wanted_probability: float
    choice: Choice = field(repr=False)
    resource: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Name of the GPU, followed by that of the slice."""
        return f"{self.device.name} {self.mig}" if self.mig else self.device.name

    @property
    def memory_bound_mb(self) -> float:
        """Upper 99 % bound of the memory in MiB, which fits the place."""
        bound = self.prediction.memory_bound_mb
        assert bound is not None, "a place that holds the model knows how much it needs"
        return bound

    @property
    def products(self) -> tuple[str, ...]:
        """Product names of this GPU in the driver; empty if none is known."""
        return tuple(name for name in self.device.aliases if name.startswith("NVIDIA "))

    @property
    def sm_percent(self) -> int:
        """Multiprocessors of the place in percent of the GPU, rounded up."""
        if self.mig is None or not self.device.sm_count:
            return 100
        return min(100, -(-100 * self.mig.sm_count // self.device.sm_count))

    @property
    def verify(self) -> str | None:
        """Command that checks the prediction on the place; None for the reason in `absent`."""
        return self.prediction.verify

    @property
    def absent(self) -> Mapping[str, str]:
        """Reason why no command checks the prediction, as "verify"; {} if one does."""
        return self.prediction.unverified

    @property
    def annotations(self) -> dict[str, str]:
        """Provenance of the request, for readers of the object in a cluster."""
        p, provenance = self.prediction, self.prediction.provenance
        c = p.conditions
        facts: dict[str, str | None] = {
            "model": self.model,
            "model-digest": self.digest,
            "checkpoint": provenance.checkpoint,
            "checkpoint-sha256": provenance.sha256,
            "conditions": f"batch {c.batch}, {c.precision}, {c.execution.engine}, {c.phase}",
            "place": self.place,
            "memory-mb": f"{_interval(p, 'memory_mb')}, at 99 % up to {show(self.memory_bound_mb)}",
            "latency-ms": _interval(p, "latency_ms"),
            "slo": self._slo_words(),
            "verify": self.verify,
        }
        return {f"{DOMAIN}/{key}": printable(legible(text)) for key, text in facts.items() if text}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping for every place that was considered, smallest first."""
        return [
            {
                "name": c.name,
                "device": c.device.name,
                "slice": c.mig and c.mig.name,
                "memory_bound_mb": c.memory_bound_mb,
                "capacity_mb": c.capacity_mb,
                "latency_ms": c.prediction and c.prediction.latency_ms,
                "reason": self.choice.reason(c),
            }
            for c in self.choice.contenders
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "source": self.prediction.provenance.source,
            "model_digest": self.digest,
            "device": self.device.name,
            "slice": self.mig and self.mig.name,
            "products": list(self.products),
            "memory_bound_mb": self.memory_bound_mb,
            "slo_ms": self.slo_ms,
            "probability": self.probability,
            "wanted_probability": self.wanted_probability,
            "verify": self.verify,
            "annotations": self.annotations,
            "notes": list(self.notes),
            "absent": dict(self.absent),
            "rows": self.rows(),
            "prediction": self.prediction.to_dict(),
        }

    def __str__(self) -> str:
        slo = self._slo_words()
        lines = [f" {self.place}", *([f" {slo}"] if slo else [])]
        lines.append(f" needs up to {show(self.memory_bound_mb)} MB at 99 %")
        check = self.verify or f"no command: {self.absent['verify']}"
        return printable("\n".join([*lines, f" verify: {check}"]), keep="\n")

    def _slo_words(self) -> str | None:
        if self.slo_ms is None or self.probability is None:
            return None
        return f"within {self.slo_ms:g} ms with a probability of {_percent(self.probability)}"


def _interval(p: Prediction, target: str) -> str:
    value = getattr(p, target)
    if value is None:
        return f"not predicted: {p.absent[target]}"
    interval = p.intervals[target]
    ends = f"{show(interval.low)} to {show(interval.high)}"
    return f"{show(value)} ({interval.coverage:.0%}: {ends})"


def _percent(share: float) -> str:
    """Format a probability; one below 1 never prints as 100 %."""
    return f"{min(share, 0.999):.3g}" if share > 0.99 else f"{share:.2f}"


# Node labels of a cluster.


def label_values(products: tuple[str, ...]) -> tuple[str, ...]:
    """Return product names in the form of the label `nvidia.com/gpu.product`."""
    return tuple(product.replace(" ", "-") for product in products)


def node_affinity(products: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the node affinity of a pod that needs one of the given GPUs."""
    expression = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(products)}
    terms = [{"matchExpressions": [expression]}]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
