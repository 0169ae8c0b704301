"""Statistics of samples over a span: mean, maximum, integral, and growth of a counter."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dippm.measure.readings import Absent
from dippm.measure.sampler_file import Samples
from dippm.runs.store.record import Span

LEAST_COVERED = 0.9


@dataclass(frozen=True, slots=True)
class Window:
    """Statistics of one quantity over a time range, each a number or a reason.

    Attributes:
        mean: time-weighted mean, in the quantity's unit.
        largest: largest sample inside.
        integral: integral in the quantity's unit times seconds: the energy in J for a power in W.
        difference: growth of a counter from start to end.
        count: number of samples inside; a short range may lie between two samples.
        covered: share of the range that lies between valid samples, from 0 to 1.
    """

    mean: float | Absent
    largest: float | Absent
    integral: float | Absent
    difference: float | Absent
    count: int
    covered: float


def over(
    time_ns: Sequence[int],
    values: Sequence[float | None],
    start_ns: int,
    end_ns: int,
    *,
    counter: bool = False,
) -> Window:
    """Return statistics of samples from `start_ns` to `end_ns`.

    Values are interpolated linearly between samples (trapezoids), also at both edges; they are
    unknown before the first sample, after the last, and next to an absent one.

    Args:
        time_ns: time of each sample, in order.
        values: one value per time; None where absent.
        start_ns: start of the range, on the same clock.
        end_ns: end of the range, not before its start.
        counter: whether the quantity is cumulative; then only its difference is meaningful.
    """
    first, last = bisect_left(time_ns, start_ns), bisect_right(time_ns, end_ns)
    inside = [value for value in values[first:last] if value is not None]
    length_s = (end_ns - start_ns) / 1e9
    covered_s = integral = growth = 0.0
    for piece in _pieces(time_ns, values, max(0, first - 1), last + 1, start_ns, end_ns):
        seconds, before, after = piece
        covered_s += seconds
        integral += seconds * (before + after) / 2
        growth += after - before
    covered = covered_s / length_s if length_s > 0 else float(bool(inside))
    none = _why_none(time_ns, inside, covered, start_ns, end_ns)
    gauge = Absent("it only grows: ask for the difference") if counter else none
    return Window(
        gauge or (integral / covered_s if covered_s else inside[0]),
        gauge or (max(inside) if inside else Absent("no sample fell into it")),
        gauge or integral,
        (none or growth) if counter else Absent("it is no counter"),
        len(inside),
        min(1.0, covered),
    )


def over_span(samples: Samples, source: str, quantity: str, span: Span) -> Window:
    """Return statistics of a sampler's file over a span.

    Args:
        samples: samples as `dippm.measure.sampler_file.read` returns them.
        source: name of the source, for instance "tree".
        quantity: name of the quantity, for instance "rss_mb".
        span: span on the same machine; an open one ends with the samples.
    """
    series = samples.series.get(source)
    if series is None or quantity not in series.values:
        reason = Absent(f"{source}.{quantity} was not sampled")
        return Window(reason, reason, reason, reason, 0, 0.0)
    counter = next(q.counter for q in series.quantities if q.name == quantity)
    last_ns = series.time_ns[-1] if series.time_ns else span.start_ns
    end_ns = span.end_ns if span.end_ns is not None else max(last_ns, span.start_ns)
    return over(series.time_ns, series.values[quantity], span.start_ns, end_ns, counter=counter)


def _pieces(
    time_ns: Sequence[int],
    values: Sequence[float | None],
    first: int,
    stop: int,
    start_ns: int,
    end_ns: int,
) -> Iterator[tuple[float, float, float]]:
    """Yield duration (s) and both end values of each range between neighbouring samples."""
    for place in range(first, min(stop, len(time_ns)) - 1):
        before, after = values[place], values[place + 1]
        begin_ns, until_ns = time_ns[place], time_ns[place + 1]
        if before is None or after is None or until_ns <= begin_ns:
            continue
        from_ns, to_ns = max(begin_ns, start_ns), min(until_ns, end_ns)
        if to_ns <= from_ns:
            continue
        slope = (after - before) / (until_ns - begin_ns)
        yield (
            (to_ns - from_ns) / 1e9,
            before + slope * (from_ns - begin_ns),
            before + slope * (to_ns - begin_ns),
        )


def _why_none(
    time_ns: Sequence[int], inside: list[float], covered: float, start_ns: int, end_ns: int
) -> Absent | None:
    if not len(time_ns):
        return Absent("there are no samples")
    if covered >= LEAST_COVERED:
        return None
    if end_ns < time_ns[0]:
        return Absent("it ended before the first sample")
    if start_ns > time_ns[-1]:
        return Absent("it began after the last sample")
    if not covered and not inside:
        return Absent("no value was had during it")
    return Absent(f"samples cover {covered:.0%} of it")
