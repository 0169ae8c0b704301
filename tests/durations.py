"""What each file of tests costs, recorded: long files begin, and the cheap ones are `make quick`.

`tests/durations.json` has processor seconds by file, of tests marked slow or nightly and of the
others, with what they start (two readings of one machine agree, whatever else it does).
`pytest --record tests/durations.json` writes anew those of the files that it runs;
`make durations` does it for all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import psutil
import pytest

FILE = Path(__file__).with_name("durations.json")
QUICK_S = 40.0
"""What the quick tier may cost; imports and collection take the rest of its minute."""

Durations = Mapping[str, Mapping[str, float]]
"""Path of a file → "unmarked" and "marked" → processor seconds."""


def read(path: Path = FILE) -> dict[str, dict[str, float]]:
    """Return the recorded seconds; nothing if there is no record."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def order(durations: Durations, path: str) -> float:
    """Return the key by which files begin: unknown ones first, then the longest."""
    return -sum(durations[path].values()) if path in durations else -float("inf")


def quick_files(durations: Durations) -> frozenset[str]:
    """Return the cheapest files whose unmarked tests cost `QUICK_S` together, of those known."""
    costs = sorted(
        (tiers["unmarked"], path) for path, tiers in durations.items() if "unmarked" in tiers
    )
    totals = accumulate(seconds for seconds, _ in costs)
    return frozenset(
        path for total, (_, path) in zip(totals, costs, strict=True) if total <= QUICK_S
    )


class Recorder:
    """Records what files cost; a plug-in of pytest, in each process of a parallel run."""

    def __init__(self, path: Path, is_worker: bool) -> None:
        """Take the file to write; processes of a parallel run write none, they report."""
        self.path = path
        self.is_worker = is_worker
        self.began_s = 0.0
        self.found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Begin a test."""
        self.began_s = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Add what a test cost to its last report."""
        report = yield
        if call.when == "teardown":
            tier = "marked" if {"slow", "nightly"} & set(item.keywords) else "unmarked"
            seconds = max(processor_s() - self.began_s, 0.0)
            report.user_properties.append(("cost", [tier, seconds]))
        return report

    def pytest_runtest_logreport(self, report) -> None:
        """Take it where the reports of all processes come together."""
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == "cost":
                tier, seconds = value
                self.found[report.nodeid.partition("::")[0]][tier] += seconds

    def pytest_sessionfinish(self) -> None:
        """Write what was found over what was known."""
        if self.is_worker:
            return
        known = read(self.path)
        for path, tiers in self.found.items():
            rounded = {tier: round(seconds, 2) for tier, seconds in tiers.items()}
            known[path] = known.get(path, {}) | rounded
        lines = (f"{json.dumps(p)}: {json.dumps(known[p], sort_keys=True)}" for p in sorted(known))
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def processor_s() -> float:
    """Return the processor seconds of this process and of all that it started, living or not."""
    ours = psutil.Process()
    total = sum(ours.cpu_times()[:4])
    for child in ours.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue  # it ended meanwhile
    return total
