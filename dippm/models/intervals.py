"""How wide the interval of a latency is: conformal, by what makes predictions err.

The expected size of a log error is exp(a · f) of features f of the prediction; its quantile over
that size comes from rows that were held out (normalised split conformal prediction, Lei et al.
2018), for GPUs whose laboratory is the reference, for others that were measured, and for those that
were not apart (Mondrian groups, Vovk et al. 2003).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import exp, hypot, inf, log

from dippm.devices import Device
from dippm.devices.device import FEWEST_LAUNCHES
from dippm.models.novelty import Novelty

COVERAGE = 0.9
FEATURES = (
    "one",
    "log_spread",
    "host_share",
    "extrapolated",
    "compiled",
    "log_launches",
    "log_novelty",
    "log_gpu_novelty",
)
FEWEST_FEATURES = 7
"""Of laws that were fitted before the last one was known."""
REFERENCE, SEEN, UNSEEN = "GPU of reference", "measured GPU", "unseen GPU"
GROUPS = (REFERENCE, SEEN, UNSEEN)
"""Of the first the networks have a head: an answer means what one laboratory measured, and what is
held out there is a kind of model. What is held out of the second is its laboratory. A checkpoint of
before 0.11 does not tell them apart."""
LEAST_SPREAD = 0.005
LEAST_NOVELTY = 0.02
"""Nearer models are twins. On one GPU and batch EfficientNet-B0 and -B3 are 0.03 apart, ResNet-50
and -101 are 0.05, ResNet-50 and RegNet 0.3; another GPU or batch can move a model as far."""
MOST_GPU_NOVELTY = 0.3
"""Farther from all that was measured on a GPU is the same. Without a bound the law asked for 73 to
95 % where nine in ten of held-out rows were less than 38 % off: more than on a GPU not measured."""
WIDEST = 1.5
"""A factor of 4.5: of 48,648 held-out predictions of whole models eleven were further off."""


@dataclass(frozen=True, slots=True)
class IntervalLaw:
    """Half widths of latency intervals in the log.

    Attributes:
        coefficients: of FEATURES; of the first of them in a checkpoint that knew no more.
        quantile: of the error over its expected size, by group.
    """

    coefficients: tuple[float, ...]
    quantile: dict[str, float]

    def half_width(self, features: tuple[float, ...], group: str) -> float:
        """Return the log half width of the interval that holds with probability COVERAGE.

        Args:
            features: see `interval_features`.
            group: one of GROUPS.
        """
        score = sum(c * f for c, f in zip(self.coefficients, features, strict=False))
        quantile = self.quantile.get(group, self.quantile[SEEN])
        return min(WIDEST, quantile * exp(max(-10.0, min(10.0, score))))


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    """What the width of a latency's interval is made of.

    Attributes:
        features: see `interval_features`.
        group: one of GROUPS.
        limit: log half width that a power limit of the board adds, 0 if there is none.
        host_log_sd: standard deviation of the log latency for what is not known of the host.
        laboratory_log_sd: the same of the laboratory, see `dippm.models.gpu_effects`.
    """

    features: tuple[float, ...]
    group: str
    limit: float
    host_log_sd: float
    laboratory_log_sd: float = 0.0

    def half_width(self, law: IntervalLaw, z: float) -> float:
        """Return the log half width by a law; `z` is the normal quantile of its coverage."""
        return hypot(law.half_width(self.features, self.group), self.beside_law(z))

    def beside_law(self, z: float) -> float:
        """Return the log half width that no law answers for: power limit, host, laboratory."""
        return hypot(self.limit, z * self.host_log_sd, z * self.laboratory_log_sd)


def interval_group(
    device: Device,
    learned: Collection[str],
    novelty: Novelty,
    launches: float = inf,
    *,
    has_head: bool = False,
) -> tuple[str, float]:
    """Return the group of a prediction, and its distance to the nearest model of the same GPU.

    Of a GPU that its owner measured no models are known: how far they are from one another says how
    far a new one will be from them. Operators by themselves make a GPU known for operators alone.

    Args:
        device: that is asked about.
        learned: names of the devices that a checkpoint learned from.
        novelty: of the graph.
        launches: of the graph.
        has_head: whether the networks have a head of the device in the mode.
    """
    own = device.calibration
    if launches < FEWEST_LAUNCHES and device.was_measured(learned, launches):
        return SEEN, novelty.on_any
    if device.measured_name in learned and novelty.on_gpu < 1.0:
        return REFERENCE if has_head else SEEN, novelty.on_gpu
    if own and own.has_models and own.novelty is not None:
        return SEEN, own.novelty
    return UNSEEN, 1.0


def interval_features(
    spread: float,
    host_share: float,
    extrapolated: float,
    compiled: bool,
    launches: float,
    novelty: float,
    gpu_novelty: float,
) -> tuple[float, ...]:
    """Return FEATURES of a prediction.

    Args:
        spread: log disagreement of the members.
        host_share: launches × launch time over the latency, 0 to about 1.
        extrapolated: share of the time in kernels beyond what was measured, 0 to 1.
        compiled: the execution mode.
        launches: kernels launched.
        novelty: distance to the nearest measured model, 0 to 1, see `dippm.models.novelty`.
        gpu_novelty: to the nearest that was measured on the same GPU; 1 if none was.
    """
    return (
        1.0,
        log(max(spread, LEAST_SPREAD)),
        min(host_share, 1.0),
        extrapolated,
        float(compiled),
        log(max(launches, 1.0)),
        log(max(novelty, LEAST_NOVELTY)),
        log(min(max(gpu_novelty, LEAST_NOVELTY), MOST_GPU_NOVELTY)),
    )
