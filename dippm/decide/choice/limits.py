"""`Limits`: limits of a choice, and which of them a prediction misses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dippm.base.number_format import show
from dippm.base.written import is_finite
from dippm.errors import ConditionsError, ConstraintError
from dippm.estimate.conditions import spelt
from dippm.estimate.prediction import Prediction

SloAt = Literal["upper", "value"]
SLO_AT: tuple[SloAt, ...] = get_args(SloAt)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a choice; the capacity of the memory is always one.

    Attributes:
        slo_ms: largest latency of a batch, in ms; None for no limit.
        slo_at: value compared with `slo_ms`: "upper" is the upper end of the 90 % interval, "value"
            the predicted latency, which the true one exceeds about every second time.
        max_memory_mb: largest 99 % bound of the memory in MiB; None for the capacity alone.

    Raises:
        ConstraintError: if a limit is not a positive number, or `slo_at` is not known.
    """

    slo_ms: float | None = None
    slo_at: SloAt = "upper"
    max_memory_mb: float | None = None

    def __post_init__(self) -> None:
        _check("slo_ms", self.slo_ms, "ms", 20)
        _check("max_memory_mb", self.max_memory_mb, "MiB", 8000)
        try:
            object.__setattr__(self, "slo_at", spelt("slo_at", self.slo_at, SLO_AT))
        except ConditionsError as error:
            raise ConstraintError(error.message, error.hint) from None

    def latency_ms(self, p: Prediction) -> float | None:
        """Return the latency that is compared with the limit."""
        interval = p.intervals.get("latency_ms")
        return p.latency_ms if interval is None or self.slo_at == "value" else interval.high

    def room_mb(self, capacity_mb: int) -> float:
        """Return the memory in MiB that a model may need where `capacity_mb` are usable."""
        return min(capacity_mb, self.max_memory_mb or capacity_mb)

    def is_in_time(self, p: Prediction) -> bool:
        """Return whether a prediction meets the latency limit."""
        latency_ms = self.latency_ms(p)
        return self.slo_ms is None or (latency_ms is not None and latency_ms <= self.slo_ms)

    def misses(self, p: Prediction, capacity_mb: int, *, in_time: bool = False) -> Iterator[str]:
        """Yield the limits that a prediction misses, in words.

        Args:
            p: the prediction.
            capacity_mb: usable memory of the GPU or slice in MiB.
            in_time: whether the latency limit is known to be met.
        """
        yield from self._memory_misses(p, capacity_mb)
        if self.slo_ms is None or in_time or self.is_in_time(p):
            return
        latency_ms = self.latency_ms(p)
        if latency_ms is None:
            yield f"latency not predicted: {p.absent['latency_ms']}"
        else:
            takes = "takes" if self.slo_at == "value" else "takes up to"
            yield f"{takes} {show(latency_ms)} ms, the limit is {self.slo_ms:g}"

    def _memory_misses(self, p: Prediction, capacity_mb: int) -> Iterator[str]:
        bound_mb = p.memory_bound_mb
        if bound_mb is None:
            yield f"whether it fits is not known: {p.absent.get('memory_mb', 'no 99 % bound')}"
            return
        if bound_mb > capacity_mb:
            yield f"needs up to {show(bound_mb)} MB, has {capacity_mb:,}"
        elif self.max_memory_mb is not None and bound_mb > self.max_memory_mb:
            yield f"needs up to {show(bound_mb)} MB, the limit is {self.max_memory_mb:g}"


def _check(name: str, value: Any, unit: str, example: float) -> None:
    if value is None:
        return
    if not is_finite(value) or value <= 0:
        raise ConstraintError(
            f"{name} is {value!r}, which nothing can meet",
            f"Give a number above 0, in {unit}: {name}={example:g}; or leave it out.",
        )
