"""Spans joined with samples, against sums that a reader can do."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from dippm.measure.readings import Absent
from dippm.runs.store.record import Span
from dippm.runs.tracking.window import over, over_span
from tests.unit.tracking import commands

S = 10**9


def test_a_ramp():
    times = [n * S for n in range(11)]
    window = over(times, [float(n) for n in range(11)], 2 * S, 6 * S)
    assert (window.mean, window.largest, window.integral) == (4.0, 6.0, 16.0)
    assert (window.count, window.covered) == (5, 1.0)
    assert window.difference == Absent("it is no counter")


def test_edges_lie_between_samples():
    window = over([0, S, 2 * S], [0.0, 10.0, 20.0], S // 2, 3 * S // 2)
    assert window.mean == pytest.approx(10.0)
    assert window.integral == pytest.approx(10.0)
    assert (window.largest, window.count) == (10.0, 1)


def test_a_span_between_two_samples():
    window = over([0, S], [10.0, 20.0], int(0.4 * S), int(0.6 * S))
    assert window.mean == pytest.approx(15.0)
    assert window.count == 0
    assert window.largest == Absent("no sample fell into it")


def test_a_counter_has_a_difference_alone():
    window = over([0, S, 2 * S], [5.0, 7.0, 13.0], S // 2, 2 * S, counter=True)
    assert window.difference == pytest.approx(7.0)
    assert isinstance(window.mean, Absent)
    assert isinstance(window.integral, Absent)


def test_what_is_not_covered_is_absent():
    times = [10 * S, 11 * S, 12 * S]
    values = [1.0, 2.0, 3.0]
    assert over([], [], 0, S).mean == Absent("there are no samples")
    assert over(times, values, 0, S).mean == Absent("it ended before the first sample")
    assert over(times, values, 13 * S, 14 * S).mean == Absent("it began after the last sample")
    assert over(times, values, 8 * S, 12 * S).mean == Absent("samples cover 50% of it")
    assert over(times, [None] * 3, 10 * S, 12 * S).mean == Absent("no value was had during it")
    late = over(times, values, 8 * S, 12 * S, counter=True)
    assert late.difference == Absent("samples cover 50% of it")


def test_an_absent_value_is_no_zero():
    times = [n * S // 10 for n in range(101)]
    values = [None if n == 50 else 7.0 for n in range(101)]
    window = over(times, values, 0, 10 * S)
    assert window.mean == pytest.approx(7.0)
    assert window.covered == pytest.approx(0.98)


def test_windows_add_up():
    chosen = random.Random(0)
    times = sorted(chosen.sample(range(100 * S), 300))
    values = [chosen.random() for _ in times]
    cuts = [times[0], *sorted(chosen.sample(range(times[0], times[-1]), 20)), times[-1]]
    parts = [over(times, values, a, b).integral for a, b in pairwise(cuts)]
    assert math.fsum(parts) == pytest.approx(over(times, values, times[0], times[-1]).integral)


def test_a_span_of_a_real_run(tmp_path):
    code = """
import dippm, sys, time
with dippm.span("work"):
    end = time.process_time() + float(sys.argv[1])
    while time.process_time() < end: pass
"""
    import sys

    for work_s in (1, 4, 16):  # on busy cores samples come late: the longer a span, the less it is
        folder = tmp_path / str(work_s)
        folder.mkdir()
        command = (sys.executable, "-c", code, str(work_s))
        assert commands.run(folder, *command, given={"hz": 50}).returncode == 0
        recorded = commands.ended(folder)
        (work,) = recorded.spans
        (samples,) = commands.samples(recorded)
        cpu, memory = (over_span(samples, "tree", name, work) for name in ("cpu_s", "rss_mb"))
        if not isinstance(cpu.difference, Absent) and not isinstance(memory.mean, Absent):
            break
    assert cpu.difference == pytest.approx(work_s, rel=0.15)
    assert 1 < memory.mean <= memory.largest
    assert over_span(samples, "tree", "x", work).mean == Absent("tree.x was not sampled")
    open_span = Span(1, "open", work.start_ns)
    assert over_span(samples, "tree", "rss_mb", open_span).count >= memory.count
