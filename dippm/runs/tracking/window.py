"""What samples say of a span: mean, largest, integral, and how much a counter grew."""

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
    """One quantity over one stretch of time, each value a number or why there is none.

    Attributes:
        mean: over time, not over samples, in the quantity's unit.
        largest: of the samples inside.
        integral: in the quantity's unit times seconds: of a power in W, the energy in J.
        difference: of a counter, from the start to the end.
        count: samples inside; a short stretch may have none and lie between two.
        covered: share of the stretch that lies between samples, from 0 to 1.
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
    """Return what samples say of the time from `start_ns` to `end_ns`.

    Between two samples a value is taken to change evenly (trapezoids), also at both edges; nothing
    is taken to be known before the first sample, after the last, or beside an absent one.

    Args:
        time_ns: of the samples, in order.
        values: one for each time; None where absent.
        start_ns: where the stretch begins, on the same clock.
        end_ns: where it ends, not before it begins.
        counter: whether the quantity only grows; then only its difference means something.
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
    """Return what a sampler's file says of a span.

    Args:
        samples: as `dippm.measure.sampler_file.read` gives them.
        source: name of the source, for instance "tree".
        quantity: of it, for instance "rss_mb".
        span: of the same machine; one that is open ends with the samples.
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
    """Yield seconds and the values at both ends of each stretch between neighbouring samples."""
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
