"""Timed steps of a run: spans of one name, whose mean is the latency.

The time of a whole command is not a latency: it includes imports, data and warm-up. The latency is
the mean of spans of one name that succeeded and did not overlap, without the first `WARM_UP` of
them; at least `LEAST` must remain (deliverable D3.5: 5 warm-up, 30 timed steps, their mean).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles, stdev

from dippm.errors import RunError
from dippm.runs.store.record import Span

WARM_UP = 5
LEAST = 10
USUAL = "forward"
GPU_TIME = "gpu_time_s"
TELL = (
    'Put the work into `with dippm.span("forward"):`, or decorate its function, and let it run '
    f"{WARM_UP + LEAST} times at least."
)


@dataclass(frozen=True, slots=True)
class Steps:
    """The timed steps of a run.

    Attributes:
        name: name of the spans.
        times_ms: time of each step, in order; by the wall, or by CUDA events.
        event_ms: time between CUDA events of each step, empty without events.
        warm_up: number of spans that were skipped as warm-up.
        start_ns: start of the first timed step.
        end_ns: end of the last timed step.
    """

    name: str
    times_ms: tuple[float, ...]
    event_ms: tuple[float, ...]
    warm_up: int
    start_ns: int
    end_ns: int

    @property
    def mean_ms(self) -> float:
        """Mean time of a step."""
        return fmean(self.times_ms)

    @property
    def median_ms(self) -> float:
        """Median time of a step."""
        return median(self.times_ms)

    @property
    def p95_ms(self) -> float:
        """95th percentile."""
        return quantiles(self.times_ms, n=20, method="inclusive")[-1]

    @property
    def spread_ms(self) -> float:
        """Standard deviation of a step."""
        return stdev(self.times_ms)

    @property
    def busy(self) -> float:
        """Share of the time between the first and the last step that steps take."""
        return sum(self.times_ms) * 1e6 / (self.end_ns - self.start_ns)


def timed_steps(spans: Sequence[Span], name: str | None = None, warm_up: int = WARM_UP) -> Steps:
    """Return the timed steps of a run.

    Args:
        spans: spans of the run.
        name: name of the steps; by default "forward", or the only name of spans.
        warm_up: number of steps to skip.

    Raises:
        RunError: if there are too few steps, or if they overlap.
    """
    name = name or _only(spans)
    mine = sorted(
        (span for span in spans if span.name == name and span.end_ns and span.status == "ok"),
        key=lambda span: span.start_ns,
    )
    timed = mine[warm_up:]
    if len(timed) < LEAST:
        raise RunError(
            f"the run has {len(mine)} spans {name!r} that ended well, too few for a latency", TELL
        )
    if any((sooner.end_ns or 0) > later.start_ns for sooner, later in pairwise(mine)):
        raise RunError(
            f"spans {name!r} overlap: steps at once have no latency of their own",
            "Compare a run whose steps follow each other.",
        )
    ended = [(span, span.end_ns or 0) for span in timed]
    events = [1000 * span.values[GPU_TIME] for span in timed if GPU_TIME in span.values]
    return Steps(
        name,
        tuple((end_ns - span.start_ns) / 1e6 for span, end_ns in ended),
        tuple(events) if len(events) == len(timed) else (),
        warm_up,
        timed[0].start_ns,
        ended[-1][1],
    )


def _only(spans: Sequence[Span]) -> str:
    names = Counter(span.name for span in spans)
    if USUAL in names:
        return USUAL
    if len(names) == 1:
        return next(iter(names))
    if not names:
        raise RunError("the run has no spans: a whole command's time is no latency", TELL)
    shown = ", ".join(f"{name} ({count})" for name, count in names.most_common(8))
    raise RunError(f"the run has spans of several names: {shown}", "Say which: span=...")
