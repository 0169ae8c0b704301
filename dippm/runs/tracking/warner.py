"""`Warner`: warns during a run if it leaves its prediction or will run out of memory.

It lives in the sampling process and checks, twice a second, the readings taken anyway:

    memory     the last reading above the predicted interval
    latency    the mean of the newest steps outside of its interval, by more than their noise
    growth     memory that grew evenly for long enough, and is full within ten times as long

Each warning is one line on the stderr of the run and a tag "warning/<cause>". `dippm compare-run`
judges what needs the whole run (memory below its interval, energy). The file of events is read only
for a run with a prediction, and nothing heavy is imported before a value leaves its interval.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import DippmError
from dippm.runs.store.folder import EVENTS, START, RunFolder, checked, start_of
from dippm.runs.store.record import Span

if TYPE_CHECKING:
    from dippm.measure.readings import Readings

WARNING = "warning/"
"""Prefix of the tags."""
NEWEST_SPANS = 100
"""Number of steps to take per look: parsing one takes 4 µs, and there may be thousands."""
MOST_BYTES = 2**24
LOOKS = 2
"""Consecutive looks at which a latency must be outside."""
MOST_POINTS = 128
LEAST_S = 20.0
"""Least duration of memory growth: what a program loads at its start is not a leak."""
AHEAD = 10
"""Growth is extrapolated to this multiple of its duration."""
PARTS = 4
NOT_YET = "host_cpu"
"""Last key of the environment, which another process records in the first seconds of a run."""


class Warner:
    """Checks the readings of one run.

    Args:
        folder: folder of the run.
        talk: descriptor of the run's stderr; None if it has none.
        left_mb: returns the memory that is still available on this machine.
    """

    def __init__(
        self, folder: Path, talk: int | None, left_mb: Callable[[], float | None] | None = None
    ) -> None:
        self._folder, self._talk = folder, talk
        self._left_mb = left_mb or memory_left_mb
        self._held: dict[str, Any] = {}
        self._foretold: Mapping[str, Any] | None = None
        self._place = self._outside = 0
        self._spans: deque[Span] = deque(maxlen=NEWEST_SPANS)
        self._growth: dict[str, Growth] = {}
        self._said: set[str] = set()

    def look(self, readings: Mapping[str, Readings]) -> None:
        """Check the last readings, and print new warnings.

        Args:
            readings: last readings by source.
        """
        if not self._held:
            self._held = json.loads((self._folder / START).read_bytes())
            self._foretold = self._held.get("prediction")
            del self._held["version"]
        if self._foretold is not None:
            has_new_steps = self._read_events()
            self._judge_memory(readings, self._foretold)
            if has_new_steps:
                self._judge_latency(self._foretold)
        self._judge_growth(readings)

    def _read_events(self) -> bool:
        """Read appended events; return whether there were steps among them."""
        try:
            with open(self._folder / EVENTS, "rb") as file:
                file.seek(self._place)
                new = file.read(MOST_BYTES)
        except OSError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._place += len(whole)
        ended = []
        for line in whole.splitlines():
            if line.startswith(b'{"span"'):
                if b'"end_ns"' in line:
                    ended.append(line)
            elif not line.startswith(b'{"value"'):
                with contextlib.suppress(ValueError, AttributeError):
                    self._set(json.loads(line))
        for line in ended[-NEWEST_SPANS:]:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                self._spans.append(checked(Span, json.loads(line)["span"]))
        return bool(ended)

    def _set(self, event: Mapping[str, Any]) -> None:
        for kind in ("params", "tags", "environment"):
            self._held[kind] = {**(self._held.get(kind) or {}), **event.get(kind, {})}
        for name in event.get("tags", {}):  # of an earlier sampler, which was killed
            if name.startswith(WARNING):
                self._said.add(name.removeprefix(WARNING))

    def _judge_memory(self, readings: Mapping[str, Readings], foretold: Mapping[str, Any]) -> None:
        _, high = _interval(foretold, "memory_mb")
        if high is None or "memory_mb" in self._said:
            return
        on_cpu = str(foretold["conditions"].get("device", "")).startswith("CPU")
        source, name = ("tree", "rss_mb") if on_cpu else ("nvml_processes", "tree_memory_mb")
        found = [r.values for word, r in readings.items() if word.partition(":")[0] == source]
        for values in found:
            if on_cpu and values.get("processes", 1) > 1:  # the prediction is for one process
                continue
            if values.get(name, 0.0) > high and self._is_of(foretold, "memory_mb"):
                self._say("memory_mb", "memory", values[name], "MiB", foretold)

    def _judge_latency(self, foretold: Mapping[str, Any]) -> None:
        low, high = _interval(foretold, "latency_ms")
        if low is None or high is None or "latency_ms" in self._said:
            return
        from dippm.runs.tracking.steps import timed_steps

        try:
            steps = timed_steps(self._spans)
        except DippmError:  # too few steps, or none with a latency
            return
        is_event = foretold["conditions"].get("timer") == "event" and bool(steps.event_ms)
        times = steps.event_ms if is_event else steps.times_ms
        mean = sum(times) / len(times)
        noise = 2 * steps.spread_ms / len(times) ** 0.5
        is_inside = low <= mean <= high or abs(mean - foretold["latency_ms"]) <= noise
        self._outside = 0 if is_inside else self._outside + 1
        timer = "event" if is_event else "wall"
        if self._outside >= LOOKS and self._is_of(foretold, "latency_ms", timer):
            what = f"latency of the last {len(times)} {steps.name!r}"
            self._say("latency_ms", what, mean, "ms", foretold)

    def _is_of(self, foretold: Mapping[str, Any], target: str, timer: str | None = None) -> bool:
        """Return whether the run is known to match the conditions of its prediction.

        After a mismatch, this target is not checked any more.
        """
        if NOT_YET not in (self._held.get("environment") or {}):
            return False
        from dippm.runs.tracking.run_comparison import refuse_mismatch

        try:
            asked = foretold["conditions"]["timer"]
            refuse_mismatch(start_of(self._held), foretold, timer or asked)
        except DippmError:
            self._said.add(target)
            return False
        return True

    def _say(
        self, target: str, what: str, value: float, unit: str, foretold: Mapping[str, Any]
    ) -> None:
        from dippm.base.number_format import show

        low, high = _interval(foretold, target)
        side = "above" if high is not None and value > high else "below"
        between = f"{show(low or 0.0)} – {show(high or 0.0)} {unit}"
        self._warn(target, f"{what} is {show(value)} {unit}, {side} the predicted {between}")

    def _judge_growth(self, readings: Mapping[str, Readings]) -> None:
        for word, (time_ns, values, _) in readings.items():
            source = word.partition(":")[0]
            if source == "tree" and "rss_mb" in values:
                self._follow(word, time_ns, values["rss_mb"], self._left_mb)
            elif source == "nvml" and {"memory_used_mb", "memory_total_mb"} <= set(values):
                used_mb = values["memory_used_mb"]
                free_mb = values["memory_total_mb"] - used_mb
                self._follow(word, time_ns, used_mb, partial(float, free_mb))

    def _follow(
        self, word: str, time_ns: int, used_mb: float, left_mb: Callable[[], float | None]
    ) -> None:
        growth = self._growth.setdefault(word, Growth())
        cause = f"growth-{word}"
        if not growth.add(time_ns / 1e9, used_mb) or cause in self._said:
            return
        mb_s, seconds = growth.even()
        if mb_s <= 0 or (left := left_mb()) is None or left > AHEAD * seconds * mb_s:
            return
        from dippm.base.number_format import show

        where = "memory" if word == "tree" else f"memory of the GPU ({word})"
        self._warn(
            cause,
            f"{where} has grown by {show(mb_s)} MiB/s for {seconds:.0f} s and {left:,.0f} MiB are "
            f"left: at this rate it is full in {max(0.0, left) / mb_s:,.0f} s",
        )

    def _warn(self, cause: str, text: str) -> None:
        self._said.add(cause)
        with contextlib.suppress(OSError):
            folder = RunFolder(self._folder)
            folder.settings(tags={f"{WARNING}{cause}": text})
            folder.close()
        if self._talk is None:
            return
        with contextlib.suppress(OSError, ValueError):
            # The terminal may not be read, and sampling must not block on it.
            if select.select([], [self._talk], [], 0)[1]:
                os.write(self._talk, f"dippm: {text}\n".encode(errors="replace"))


class Growth:
    """Recent values of a quantity, at a bounded number of points."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._apart_s = 0.0

    def add(self, at_s: float, value: float) -> bool:
        """Add a value; return whether it was kept: points get sparser as the run gets longer."""
        points = self._points
        if points and at_s - points[-1][0] < self._apart_s:
            return False
        points.append((at_s, value))
        if len(points) == MOST_POINTS:  # halve the points: memory stays bounded in a long run
            del points[1::2]
            self._apart_s = 2 * self._apart_s or 1.5 * (at_s - points[0][0]) / len(points)
        return True

    def even(self) -> tuple[float, float]:
        """Return slope (per second) and duration (s) of the later half; 0 if growth is uneven.

        Growth is even if it lasted for `LEAST_S`, and the mean of each quarter exceeds that of the
        one before by at least half of what it would on a straight line.
        """
        points = self._points[len(self._points) // 2 :]
        if len(points) < 2 * PARTS or points[-1][0] - points[0][0] < LEAST_S:
            return 0.0, 0.0
        size = len(points) / PARTS
        parts = [points[int(n * size) : int((n + 1) * size)] for n in range(PARTS)]
        times = [sum(at for at, _ in part) / len(part) for part in parts]
        means = [sum(value for _, value in part) / len(part) for part in parts]
        step = (means[-1] - means[0]) / (PARTS - 1)
        if any(later - sooner < step / 2 for sooner, later in pairwise(means)):
            return 0.0, 0.0
        return (means[-1] - means[0]) / (times[-1] - times[0]), points[-1][0] - points[0][0]


def memory_left_mb(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Return the memory that our control group can still allocate; None if unknown.

    Args:
        proc: mount point of procfs.
        groups: mount point of cgroup v2.
    """
    left = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                left.append(int(line.split()[1]) / 1024)
    for group in _groups(proc, groups):
        with contextlib.suppress(OSError, ValueError, KeyError):
            most = int((group / "memory.max").read_text())  # "max" raises: no limit
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
            left.append((most - used) / 2**20)
    return min(left, default=None)


def _groups(proc: Path, root: Path) -> Iterator[Path]:
    """Yield our control group and its ancestors."""
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                own = root / path.lstrip("/")
                yield from (own, *(o for o in own.parents if o.is_relative_to(root)))


def _interval(foretold: Mapping[str, Any], target: str) -> tuple[float | None, float | None]:
    interval = (foretold.get("intervals") or {}).get(target) or {}
    return interval.get("low"), interval.get("high")
