"""`Watch`: samplers beside the calls of a run, and counters read at both ends of a call.

A sampler process reads at intervals without delaying the workload. A call may be shorter than an
interval, so counters that take microseconds to read are also read when it begins and ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dippm.measure.readings import Absent, Readings, Source
from dippm.measure.sampler_start import SamplerProcess, start
from dippm.measure.sources.registry import open_source
from dippm.umlaut.descriptions import BEFORE
from dippm.umlaut.metric import Sampled

READY_S = 5.0
AT_BOTH_ENDS = ("tree", "rapl")


class Watch:
    """The samplers and counters of one run.

    Args:
        folder: folder of the run.
        samples: whether this process starts samplers; a child leaves that to its parent.
    """

    def __init__(self, folder: Path, *, samples: bool = True) -> None:
        self._folder, self._samples = folder, samples
        self._lock = threading.Lock()
        self._samplers: list[SamplerProcess] = []
        self._rates: dict[tuple[str, str], float] = {}
        self._files = 0
        self._sources: dict[str, Source] = {}
        self._pid = os.getpid()

    def need(self, metrics: Iterable[Sampled]) -> None:
        """Start sampling the quantities of these metrics, unless they are sampled often enough.

        Raises:
            OSError: if no sampler can be started.
        """
        with self._lock:
            wanted = dict(self._rates)
            for metric in metrics:
                key = (metric.source, "" if metric.device is None else str(metric.device))
                wanted[key] = max(1 / metric.interval, wanted.get(key, 0.0))
            if wanted == self._rates or not self._samples:
                return
            # One sampler per GPU and no separate one for the tree: each would be in the others'
            # tree.
            self._stop_samplers()
            self._rates = wanted
            devices = sorted({device for _, device in wanted if device}) or [""]
            for device in devices:
                mine = {"", device} if device == devices[0] else {device}
                self._start(device, {n: hz for (n, of), hz in wanted.items() if of in mine})

    def read(self, names: Iterable[str]) -> dict[str, Readings]:
        """Return the current readings of these sources."""
        with self._lock:
            return {name: self._source(name).read() for name in names}

    def stop(self) -> None:
        """Stop the samplers started by this process."""
        with self._lock:
            self._stop_samplers()
            for source in self._sources.values():
                source.close()
            self._sources = {}

    def _stop_samplers(self) -> None:
        if self._pid == os.getpid():
            for sampler in self._samplers:
                with contextlib.suppress(OSError):  # it was reaped elsewhere
                    sampler.wait_until_ready(READY_S)  # so that it records what is absent, and why
                    sampler.stop()
        self._samplers = []

    def _start(self, device: str, rates: dict[str, float]) -> None:
        hz = max(rates.values())
        words = [name if rate == hz else f"{name}@{rate:g}" for name, rate in rates.items()]
        self._files += 1
        place = device.replace("/", "_") or "host"
        file = self._folder / f"samples-{os.getpid()}-{self._files}-{place}.dippm"
        self._samplers.append(start(file, hz=hz, sources=words, device=device or "0"))
        tree = self._sources.pop("tree", None)  # opened again without the new sampler
        if tree is not None:
            tree.close()

    def _source(self, name: str) -> Source:
        if self._pid != os.getpid():  # a fork: the descriptors are those of the parent
            self._sources, self._samplers, self._pid = {}, [], os.getpid()
        if name not in self._sources:
            where = {"exclude": tuple(s.pid for s in self._samplers)} if name == "tree" else {}
            self._sources[name] = open_source(name, **where)
        source = self._sources[name]
        look_anew = getattr(source, "look_anew", None)
        if look_anew is not None:
            look_anew()
        return source


class Sampling:
    """The sampled metrics of one function, as a single metric of `dippm.runs.tracking.metrics`."""

    name = "samples"

    def __init__(self, watch: Watch, metrics: Sequence[Sampled]) -> None:
        self._watch, self._metrics = watch, metrics
        self._sources = sorted({m.source for m in metrics} & set(AT_BOTH_ENDS))

    def start(self) -> _BothEnds:
        """Read the counters at the start of a call."""
        self._watch.need(self._metrics)
        return _BothEnds(self, self._watch.read(self._sources))

    def compared(self, before: Mapping[str, Readings]) -> dict[str, float | Absent]:
        """Return the counters at the start of a call and their current values."""
        after = self._watch.read(self._sources)
        found: dict[str, float | Absent] = {}
        for metric in self._metrics:
            if metric.source not in after:
                continue
            first, last = before[metric.source], after[metric.source]
            ends = first.get(metric.quantity), last.get(metric.quantity)
            full = f"{metric.source}.{metric.quantity}"
            if isinstance(ends[0], Absent) or isinstance(ends[1], Absent):
                found[metric.name] = next(end for end in ends if isinstance(end, Absent))
            elif metric.reducer == "delta":
                found[metric.name] = ends[1] - ends[0]
            elif metric.reducer == "rate":
                seconds = (last.time_ns - first.time_ns) / 1e9
                found[metric.name] = metric.factor * (ends[1] - ends[0]) / seconds
            else:
                found[full + BEFORE], found[full] = ends
        return found


class _BothEnds:
    __slots__ = ("_before", "_sampling")

    def __init__(self, sampling: Sampling, before: Mapping[str, Readings]) -> None:
        self._sampling, self._before = sampling, before

    def stop(self) -> Mapping[str, float | Absent]:
        return self._sampling.compared(self._before)
