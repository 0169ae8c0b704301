"""Error message when no place is feasible: the nearest one, and limits that could be met."""

from __future__ import annotations

from collections import Counter
from math import ceil, floor, log10

from dippm.base.number_format import show
from dippm.decide.choice.choice import Choice
from dippm.decide.choice.contender import Contender
from dippm.errors import NothingFeasibleError

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
