"""`ResourceRequest`: the place for a model, why it was chosen, and the command that verifies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import show
from dippm.base.printable import legible, printable
from dippm.decide.choice import Choice
from dippm.devices import Device, MigProfile
from dippm.estimate.prediction import Prediction

DOMAIN = "dippm.io"
"""Domain of the annotations: `dippm.io/model`, ..."""


@dataclass(frozen=True, slots=True)
class ResourceRequest(Answer):
    """One GPU, or one slice of one, for one copy of a model.

    Attributes:
        model: the model as given: a path, or a name such as "timm:resnet50".
        digest: "sha256:..." of the file; None for a name.
        device: the GPU.
        mig: the slice of the GPU; None for the whole GPU.
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
        """Command that checks the prediction, to be run on the place; None as `absent` says."""
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


def label_values(products: tuple[str, ...]) -> tuple[str, ...]:
    """Return product names in the form of the label `nvidia.com/gpu.product`."""
    return tuple(product.replace(" ", "-") for product in products)


def node_affinity(products: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the node affinity of a pod that needs one of the given GPUs."""
    expression = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(products)}
    terms = [{"matchExpressions": [expression]}]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
