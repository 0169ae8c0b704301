"""`Choice`: GPUs and slices for one model, ranked, with the reason why others are ruled out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, floor, log10
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.decide.choice.contender import COLUMN_OF, By, Contender
from dippm.decide.choice.limits import Limits
from dippm.decide.choice.probability import UncertainValue, probabilities_first
from dippm.decide.pareto import pareto_front
from dippm.errors import NothingFeasibleError
from dippm.estimate.prediction import Prediction

RIVAL_SHARE = 0.5
SAME_HARDWARE = 1.01
"""Ratio of predictions for the same hardware below which they count as tied."""


@dataclass(frozen=True, slots=True)
class Choice(Answer):
    """Places to run a model on; `dippm.choose` makes it.

    Attributes:
        source: name of the model.
        conditions: batch, precision, mode and phase in a few words.
        by: quantity of the ranking. "size" ranks those within the limits by memory, then by
            multiprocessors, the smallest first.
        limits: limits that every place has to meet.
        contenders: ranked places, best first; then those that miss a limit or lack the ranking
            quantity, in the same order; then those without a prediction. By size all are in one
            order.
        currency: currency of the prices; "" if not given.
        priced: whether prices were given.
        emits: whether intensities of regions were given.
    """

    source: str
    conditions: str
    by: By
    limits: Limits
    contenders: tuple[Contender, ...]
    currency: str = ""
    priced: bool = False
    emits: bool = False

    @classmethod
    def of(cls, contenders: Iterable[Contender], by: By, **rest: Any) -> Choice:
        """Return the choice among contenders in any order."""
        found = sorted(contenders, key=lambda c: _place(c, by))
        ranked = [c for c in found if _is_ranked(c, by)]
        if by != "size":
            places = _places(ranked, by)
            rest_of = [c for c in found if not _is_ranked(c, by)]
            chances = _chances([same[0] for same in places], by)
            found = [
                replace(c, probability_first=chance)
                for same, chance in zip(places, chances, strict=True)
                for c in same
            ] + rest_of
        return cls(by=by, contenders=tuple(found), **rest)

    @property
    def ranked(self) -> tuple[Contender, ...]:
        """Contenders that meet every limit and have the ranking quantity, best first."""
        return tuple(c for c in self.contenders if _is_ranked(c, self.by))

    @property
    def best(self) -> Contender | None:
        """First of the ranking; None if nothing is ranked."""
        return next(iter(self.ranked), None)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each of `ranked`, from 1; values that print alike share a rank."""
        ranks: list[int] = []
        first: Contender | None = None
        for n, c in enumerate(self.ranked, 1):
            if first is not None and self.by != "size" and _is_tie(first, c, self.by):
                ranks.append(ranks[-1])
            else:
                ranks.append(n)
                first = c
        return tuple(ranks)

    @property
    def best_ties(self) -> tuple[Contender, ...]:
        """Other contenders that share the first rank."""
        tied = zip(self.ranked, self.ranks, strict=True)
        return tuple(c for c, rank in tied if rank == 1 and c is not self.best)

    @property
    def rivals(self) -> tuple[Contender, ...]:
        """Contenders about as likely to be truly the first as the best, the likeliest first.

        Each has at least half its probability. Ranks follow the predicted values; if two are
        close, the one with the wider interval can be the likelier.
        """
        best = self.best
        if best is None or best.probability_first is None:
            return ()
        least = best.probability_first * RIVAL_SHARE
        others: dict[str, tuple[float, Contender]] = {}
        for c in self.ranked:
            chance = c.probability_first
            if chance is not None and chance >= least and c.hardware != best.hardware:
                others.setdefault(c.hardware, (chance, c))
        return tuple(c for _, c in sorted(others.values(), key=lambda found: -found[0]))

    @property
    def fastest(self) -> Contender | None:
        """Contender with the least time per sample of those that hold the model, limits aside."""
        return self._least("throughput")

    @property
    def most_frugal(self) -> Contender | None:
        """Contender with the least energy per sample among those, where energy is predicted."""
        return self._least("energy")

    @property
    def axes(self) -> tuple[str, str]:
        """Quantities of the Pareto front: latency, and cost, or energy without prices."""
        if self.by != "energy" and self.priced:
            return "latency_ms", "cost_per_million"
        return "latency_ms", "energy_per_sample_j"

    @property
    def front(self) -> tuple[Contender, ...]:
        """Pareto front: contenders within the limits that no other beats in both `axes`."""
        known = [(c, self.position(c)) for c in self.contenders if c.feasible]
        both = [(c, at) for c, at in known if at is not None]
        return tuple(both[i][0] for i in pareto_front([at for _, at in both]))

    def position(self, c: Contender) -> tuple[float, float] | None:
        """Return a contender's values on both `axes`; None if one of them is absent."""
        x, y = map(c.estimate, self.axes)
        return None if x is None or y is None else (x.value, y.value)

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """Predictions in the order of the contenders."""
        return tuple(c.prediction for c in self.contenders if c.prediction is not None)

    def reason(self, c: Contender) -> str | None:
        """Return why a contender is not ranked; None if it is."""
        if _is_ranked(c, self.by):
            return None
        if c.error is not None:
            return c.error.message
        if c.misses:
            return "; ".join(c.misses)
        return f"no {self.by}: {c.why_absent(COLUMN_OF[self.by])}"

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per contender, in their order.

        "rank" counts from 1; ties share one, and it is None for a contender that is not ranked,
        for which "reason" says why. "probability_first" is that of the hardware: a whole GPU and
        the slice that is all of it share one. "error" has type, message and hint of a failed
        prediction.
        """
        on_front = set(map(id, self.front))
        ranks = dict(zip(map(id, self.ranked), self.ranks, strict=True))
        return [
            {
                "rank": ranks.get(id(c)),
                **c.row(),
                "on_front": id(c) in on_front,
                "reason": self.reason(c),
                "error": c.error and c.error.to_dict(),
            }
            for c in self.contenders
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        first = next(iter(self.predictions), None)
        document = first.to_dict() if first else {}
        conditions: Mapping[str, Any] = document.get("conditions", {})
        named = {"best": self.best, "fastest": self.fastest, "most_frugal": self.most_frugal}
        return {
            "source": self.source,
            "by": self.by,
            "limits": asdict(self.limits),
            "conditions": {
                n: v for n, v in conditions.items() if n not in ("device", "mig", "batch")
            },
            "currency": self.currency or None,
            **{name: c and c.name for name, c in named.items()},
            "front": {"axes": list(self.axes), "names": [c.name for c in self.front]},
            "rows": self.rows(),
            "warnings": list(self.warnings()),
            "provenance": document.get("provenance"),
            "absent": self.unverified,
            "verify": self.verify,
        }

    def warnings(self, of: Sequence[Contender] | None = None) -> dict[str, int]:
        """Return how many of the contenders (None: of all) have each warning."""
        asked = self.contenders if of is None else of
        found = (c.prediction.warnings for c in asked if c.prediction is not None)
        return dict(Counter(warning for warnings in found for warning in warnings).most_common())

    @property
    def verify(self) -> str | None:
        """Command line that checks the best contender, see `Prediction.verify`."""
        best = self.best and self.best.prediction
        return best.verify if best else None

    @property
    def unverified(self) -> dict[str, str]:
        """The reason why no command checks the best contender, see `Prediction.unverified`."""
        best = self.best and self.best.prediction
        return best.unverified if best else {"verify": "no place is ranked"}

    @property
    def title(self) -> str:
        """Model, conditions and question in one printable line."""
        parts = [self.source, self.conditions, f"by {self.by}"]
        if self.limits.slo_ms is not None:
            at = "at the upper end" if self.limits.slo_at == "upper" else "as predicted"
            parts.append(f"within {self.limits.slo_ms:g} ms {at}")
        if self.limits.max_memory_mb is not None:
            parts.append(f"within {self.limits.max_memory_mb:g} MB")
        return printable(" · ".join(parts))

    @property
    def footer(self) -> str:
        """The checkpoints that answered, in one printable line."""
        names = dict.fromkeys(p.provenance.checkpoint for p in self.predictions)
        return printable(", ".join(names))

    def __str__(self) -> str:
        lines = [" " + self.title]
        for name in ("best", "fastest", "most_frugal"):
            c: Contender | None = getattr(self, name)
            label = name.replace("_", " ")
            lines.append(f" {label:<13}{printable(c.name) if c else 'none'}")
        if self.best and self.best.probability_first is not None:
            chances = [f"{self.best.probability_first:.0%}"]
            chances += [f"{c.name} {c.probability_first:.0%}" for c in self.rivals]
            lines.append(f" really first {printable(', '.join(chances))}")
        return "\n".join([*lines, " " + self.footer])

    def _least(self, by: By) -> Contender | None:
        known = [(c, c.burden(by)) for c in self.contenders if c.holds_model]
        burdened = [(b.value, c.share, c.mig is not None, c) for c, b in known if b is not None]
        return min(burdened, key=lambda found: found[:3])[3] if burdened else None


def _is_ranked(c: Contender, by: By) -> bool:
    return c.feasible and (by == "size" or c.burden(by) is not None)


def _place(c: Contender, by: By) -> tuple[Any, ...]:
    """Return the sort key of a contender; of equals the smaller part of a GPU comes first."""
    if by == "size":
        return (*c.size, c.name)
    burden = c.burden(by)
    group = 0 if _is_ranked(c, by) else 1 if c.prediction is not None else 2
    value = burden.value if burden else float("inf")
    return group, value, c.share, c.mig is not None, *c.size, c.name


def _places(ranked: Sequence[Contender], by: By) -> list[list[Contender]]:
    """Group ranked contenders that run on the same hardware and tie.

    Their errors share one draw, so the one predicted slightly faster would always win.
    """
    places: list[list[Contender]] = []
    for c in ranked:
        same = (place for place in places if place[0].hardware == c.hardware)
        mine = next((place for place in same if _ratio(c, place[0], by) <= SAME_HARDWARE), None)
        if mine is None:
            places.append([c])
        else:
            mine.append(c)
    return places


def _is_tie(first: Contender, c: Contender, by: By) -> bool:
    """Return whether two contenders tie: their values print alike, or their hardware is one."""
    one, other = first.burden(by), c.burden(by)
    if one is None or other is None:
        return False
    alike = first.hardware == c.hardware and _ratio(c, first, by) <= SAME_HARDWARE
    return alike or show(one.value) == show(other.value)


def _ratio(c: Contender, first: Contender, by: By) -> float:
    one, other = c.burden(by), first.burden(by)
    assert one is not None
    assert other is not None
    return max(one.value / other.value, other.value / one.value)


def _chances(ranked: Sequence[Contender], by: By) -> list[float]:
    places = []
    for c in ranked:
        burden, latency = c.burden(by), c.estimate("latency_ms")
        assert burden is not None
        places.append(
            UncertainValue.of(
                c.hardware, c.device.name, burden, latency or burden, measured=c.measured
            )
        )
    return probabilities_first(places)


# Error message when no place is feasible: the nearest one, and limits that could be met.

KEPT = "Every row, with its reason, is in the answer."


def nothing_feasible(choice: Choice) -> NothingFeasibleError:
    """Return the error of a choice that ranks nothing; the error holds the choice."""
    predicted = [c for c in choice.contenders if c.prediction is not None]
    feasible = [c for c in predicted if c.feasible]
    if not predicted:
        message, hint = _unpredicted(choice)
    elif feasible:
        message, hint = _without_value(choice, feasible)
    else:
        holding = [c for c in predicted if c.holds_model]
        message, hint = _too_slow(choice, holding) if holding else _too_large(predicted)
    return NothingFeasibleError(message, f"{hint} {KEPT}".strip(), choice)


def _unpredicted(choice: Choice) -> tuple[str, str]:
    errors = [c.error for c in choice.contenders if c.error is not None]
    message, count = Counter(error.message for error in errors).most_common(1)[0]
    hint = next(error.hint for error in errors if error.message == message)
    of = f"{count} of {len(errors)}: " if count < len(errors) else ""
    return f"nothing could be predicted: {of}{message}", hint


def _without_value(choice: Choice, feasible: list[Contender]) -> tuple[str, str]:
    reasons = Counter(choice.reason(c) or "" for c in feasible)
    reason = reasons.most_common(1)[0][0].removeprefix(f"no {choice.by}: ")
    message = f"nothing can be ranked by {choice.by}: {reason}"
    if choice.by == "cost":
        names = ", ".join(c.name for c in feasible[:3])
        return message, f"{names} would meet the limits: add a price of one of them."
    return message, 'Rank by another quantity, for instance by="latency".'


def _too_large(predicted: list[Contender]) -> tuple[str, str]:
    """Return message and hint where memory is short everywhere: what the model needs."""
    known = [c for c in predicted if c.memory_bound_mb is not None]
    if not known:
        return (
            f"whether the model fits is not known: {predicted[0].misses[0]}",
            "Use a checkpoint that predicts memory; `dippm models` lists them.",
        )

    def short_mb(c: Contender) -> float:
        return _bound_mb(c) - c.capacity_mb

    nearest = min(known, key=short_mb)
    needs = f"up to {show(_bound_mb(nearest))} MB"
    fits = nearest.largest_batch
    hint = (
        f"{nearest.name} holds batch={fits}."
        if fits
        else "Use a smaller batch=..., precision=fp16, or a GPU with more memory."
    )
    return (
        f"no memory holds the model: it needs {needs}, {nearest.name} has {nearest.capacity_mb:,}",
        hint,
    )


def _too_slow(choice: Choice, holding: list[Contender]) -> tuple[str, str]:
    """Return message and hint where every place that holds the model misses a limit."""
    limits = choice.limits
    within = [c for c in holding if _bound_mb(c) <= limits.room_mb(c.capacity_mb)]
    if limits.max_memory_mb is not None and not within:
        least = min(holding, key=_bound_mb)
        return (
            f"nothing meets max_memory_mb={limits.max_memory_mb:g}: the least is up to "
            f"{show(_bound_mb(least))} MB on {least.name}",
            f"max_memory_mb={round_up(_bound_mb(least))} would do.",
        )

    def slow_ms(c: Contender) -> float:
        latency_ms = limits.latency_ms(c.prediction) if c.prediction else None
        return float("inf") if latency_ms is None else latency_ms

    nearest = min(within, key=slow_ms)
    if slow_ms(nearest) == float("inf") or limits.slo_ms is None:
        return f"nothing meets the limits: {'; '.join(nearest.misses)}", ""
    at = "" if limits.slo_at == "value" else "up to "
    hint = f"slo_ms={round_up(slow_ms(nearest))} would do"
    latency = nearest.estimate("latency_ms")
    if limits.slo_at == "upper" and latency and latency.value <= limits.slo_ms:
        hint += ', or slo_at="value", which takes the prediction without its interval'
    return (
        f"nothing meets slo_ms={limits.slo_ms:g}: the nearest is {nearest.name} with "
        f"{at}{show(slow_ms(nearest))} ms",
        hint + ". A smaller batch=... or another precision=... may be faster.",
    )


def _bound_mb(c: Contender) -> float:
    return float("inf") if c.memory_bound_mb is None else c.memory_bound_mb


def round_up(value: float) -> str:
    """Round up to three significant digits, but never to fewer than the integer digits."""
    step = 10.0 ** min(0, floor(log10(value)) - 2)
    return f"{ceil(value / step) * step:.12g}"
