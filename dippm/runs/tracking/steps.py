"""Steps of a run: spans of one name, from which a latency comes.

The time of a whole command is no latency: it holds imports, data and warm-up. A latency is the mean
of spans of one name that ended well and did not overlap, without the first `WARM_UP` of them, of
which at least `LEAST` must be left (deliverable D3.5: 5 warm-up, 30 timed steps, their mean).
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
        name: of their spans.
        times_ms: of each, in order; by the wall, or by CUDA events.
        event_ms: spans between CUDA events, empty if they were not taken.
        warm_up: spans before that do not count.
        start_ns: of the first timed step.
        end_ns: of the last.
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
        """Part of the time from the first to the last step that steps take."""
        return sum(self.times_ms) * 1e6 / (self.end_ns - self.start_ns)


def timed_steps(spans: Sequence[Span], name: str | None = None, warm_up: int = WARM_UP) -> Steps:
    """Return the timed steps of a run.

    Args:
        spans: of the run.
        name: of those that count; by default "forward", or the only name there is.
        warm_up: so many of them do not count.

    Raises:
        RunError: if there are too few, or if they overlap.
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
