"""The width of a latency's interval: conformal, by features that predict the error.

The expected size of a log error is exp(a · f) of features f of the prediction; its quantile over
that size comes from rows that were held out (normalised split conformal prediction, Lei et al.
2018), for GPUs whose laboratory is the reference, for others that were measured, and for those that
were not apart (Mondrian groups, Vovk et al. 2003).

A GPU that its owner calibrated has rows of its own, which say more than those of other GPUs, see
`own_errors`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import exp, hypot, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from dippm.devices import Calibration, Device
from dippm.devices.device import FEWEST_LAUNCHES
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.models.novelty import Novelty

COVERAGE = 0.9
Z90, Z99 = 1.645, 2.326
"""Quantiles of the normal distribution: 90 % lie within ±Z90, 99 % below Z99."""
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
REFERENCE, SEEN, UNSEEN = "reference GPU", "measured GPU", "unseen GPU"
GROUPS = (REFERENCE, SEEN, UNSEEN)
"""Of the first the networks have a head: an answer means what one laboratory measured, and what is
held out there is a kind of model. What is held out of the second is its laboratory. A checkpoint
before version 0.11 does not tell them apart."""
LEAST_SPREAD = 0.005
LEAST_NOVELTY = 0.02
"""Nearer models are twins. On one GPU and batch EfficientNet-B0 and -B3 are 0.03 apart, ResNet-50
and -101 are 0.05, ResNet-50 and RegNet 0.3; another GPU or batch can move a model as far."""
MOST_GPU_NOVELTY = 0.3
"""Farther from all that was measured on a GPU is the same. Without a bound the law asked for 73 to
95 % where nine in ten of held-out rows were less than 38 % off: more than on a GPU not measured."""
WIDEST = 1.5
"""A factor of 4.5: of 48,648 held-out predictions of whole models eleven were further off."""

USUAL_LOG_SD, USUAL_MODELS = 0.1, 1.0
"""Error of a model left out of a calibration on GPUs that were held out, log, at MOST_GPU_NOVELTY
from the others, and how many models it weighs as much as: three alone can agree by chance."""
NOVELTY_POWER = 0.25
"""How that error grows with the distance to the calibrated models, on GPUs that were held out."""


@dataclass(frozen=True, slots=True)
class IntervalLaw:
    """Half widths of latency intervals in the log.

    Attributes:
        coefficients: coefficients of FEATURES; older checkpoints have those of the first alone.
        quantile: quantile of the error over its expected size, by group.
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
class OwnErrors:
    """The expected error of predictions for a calibrated GPU, see `own_errors`.

    Attributes:
        log_sd: standard deviation of the log error of the model in question.
        freedom: degrees of freedom of that estimate.
        left_out: root mean square log error of the models left out of the calibration.
        host_log_sd: standard deviation of the log latency that the calibration leaves open of
            the launch time.
    """

    log_sd: float
    freedom: float
    left_out: float
    host_log_sd: float = 0.0

    def half_width(self, z: float) -> float:
        """Return the log half width; `z` is the normal quantile of its coverage."""
        of_model = student_quantile(z, self.freedom) * self.log_sd
        return min(WIDEST, hypot(of_model, z * self.host_log_sd))


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    """The terms of the width of a latency's interval.

    Attributes:
        features: FEATURES of the prediction, see `interval_features`.
        group: group of the prediction, one of GROUPS.
        limit: log half width that a power limit of the board adds, 0 without one.
        host_log_sd: standard deviation of the log latency due to an unknown host.
        laboratory_log_sd: the same due to the laboratory, see `dippm.estimate.models.gpu_effects`.
        own: of a GPU that its owner calibrated with models; the others are what they would be
            without the calibration.
    """

    features: tuple[float, ...]
    group: str
    limit: float
    host_log_sd: float
    laboratory_log_sd: float = 0.0
    own: OwnErrors | None = None

    def half_width(self, law: IntervalLaw, z: float) -> float:
        """Return the log half width by a law; `z` is the normal quantile of its coverage.

        What the owner measured never widens it, unless the measurements say that it was too narrow,
        see `is_widened`.
        """
        before = self._uncalibrated(law, z)
        if self.own is None:
            return before
        own = self.own.half_width(z)
        return own if self.is_widened(law, z) else min(own, before)

    def is_widened(self, law: IntervalLaw, z: float) -> bool:
        """Tell whether models left out of a calibration erred more than the interval had allowed.

        Of the interval that the same answer would have without the calibration.
        """
        if self.own is None:
            return False
        before = self._uncalibrated(law, z)
        return z * self.own.left_out > before and self.own.half_width(z) > before

    def _uncalibrated(self, law: IntervalLaw, z: float) -> float:
        return hypot(law.half_width(self.features, self.group), self.beside_law(z))

    def beside_law(self, z: float) -> float:
        """Return the log half width outside the law: power limit, host, laboratory."""
        return hypot(self.limit, z * self.host_log_sd, z * self.laboratory_log_sd)


def own_errors(
    found: Calibration, shares: NDArray[np.float64], host_log_sd: float = 0.0
) -> OwnErrors | None:
    """Return the expected error of a model by a calibration; None if it left no model out.

    Of the models j = 1 … n of the calibration the log errors e_j while each was left out and the
    distances d_j to the nearest other are known. With g(d) = (d / MOST_GPU_NOVELTY)^NOVELTY_POWER,
    d between LEAST_NOVELTY and MOST_GPU_NOVELTY, the error of a model at distance d is

        sd(d)² = g(d)² · (ν₀ s₀² + Σ_j (e_j / g(d_j))²) / (ν₀ + n)

    with s₀ = USUAL_LOG_SD and ν₀ = USUAL_MODELS: the scale of an inverse chi-square posterior,
    whose predictive distribution is Student's with ν₀ + n degrees of freedom (Gelman et al.,
    Bayesian Data Analysis, 2013, section 2.6).

    Args:
        found: calibration of the device.
        shares: shares of the model's time by kernel class, predicted without the calibration,
            biases as norms, shape (C,).
        host_log_sd: uncertainty of the host, see `OwnErrors`.
    """
    if not found.models:
        return None
    points = np.array([[m.shares.get(name, 0.0) for name in KERNEL_CLASSES] for m in found.models])
    distance = float(np.abs(points - shares).sum(axis=1).min() / 2)
    squares = [(m.log_error / _growth(m.distance)) ** 2 for m in found.models]
    freedom = USUAL_MODELS + len(squares)
    variance = (USUAL_MODELS * USUAL_LOG_SD**2 + sum(squares)) / freedom
    return OwnErrors(
        log_sd=_growth(distance) * sqrt(variance),
        freedom=freedom,
        left_out=sqrt(sum(m.log_error**2 for m in found.models) / len(squares)),
        host_log_sd=host_log_sd,
    )


def _growth(distance: float) -> float:
    near = min(max(distance, LEAST_NOVELTY), MOST_GPU_NOVELTY)
    return float((near / MOST_GPU_NOVELTY) ** NOVELTY_POWER)


def student_quantile(z: float, freedom: float) -> float:
    """Return the quantile of Student's distribution whose normal counterpart is `z`.

    By the first terms of its Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5), to 1 % from
    four degrees of freedom on.
    """
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return float(z + first / freedom + second / freedom**2 + third / freedom**3)


def interval_group(
    device: Device,
    learned: Collection[str],
    novelty: Novelty,
    launches: float = inf,
    *,
    has_head: bool = False,
) -> tuple[str, float]:
    """Return the group of a prediction, and its distance to the nearest model of the same GPU.

    Both are of what a checkpoint learned: models that the owner of a GPU measured have a width of
    their own, see `own_errors`. Operators by themselves make a GPU known for operators alone.

    Args:
        device: device of the prediction.
        learned: names of the devices that a checkpoint learned from.
        novelty: novelty of the graph.
        launches: number of launches of the graph.
        has_head: whether the networks have a head of the device in the mode.
    """
    if launches < FEWEST_LAUNCHES and device.was_measured(learned, launches):
        return SEEN, novelty.on_any
    if device.measured_name in learned and novelty.on_gpu < 1.0:
        return REFERENCE if has_head else SEEN, novelty.on_gpu
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
        spread: disagreement of the members, log.
        host_share: launches × launch time over the latency, 0 to about 1.
        extrapolated: share of the time in kernels beyond what was measured, 0 to 1.
        compiled: whether the mode is "compiled".
        launches: number of kernels launched.
        novelty: distance to the nearest measured model, 0 to 1, see
            `dippm.estimate.models.novelty`.
        gpu_novelty: distance to the nearest model measured on the same GPU; 1 without one.
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
