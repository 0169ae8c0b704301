"""Slow-down of runs that shared a device, from records; energy under sharing is an estimate."""

from __future__ import annotations

import json
import os
import uuid as ids
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.errors import RunError
from dippm.measure.readings import Absent
from dippm.runs.colocation.neighbour_runs import BY_BUSY, EQUAL
from dippm.runs.colocation.slowdown import slowdown
from dippm.runs.store.columns import Column
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, Span, Start

MS, S = 1_000_000, 1_000_000_000
WALL_NS = 1_790_000_000 * S
SHARED = {"devices": "0", "seats": "2", "sharing": "mps + mps", "neighbours": "none"}
SOLO = {"devices": "0", "seats": "1", "sharing": "none", "neighbours": "none"}


@dataclass
class Run:
    """What `StoredRun` shows of a run, without a store; it began `at` seconds after the first."""

    name: str
    at: float = 0.0
    seconds: float = 1.0
    ms: float | None = 10.0
    tags: dict[str, str] = field(default_factory=lambda: dict(SHARED))
    command: tuple[str, ...] = ("train.py",)
    status: str = "finished"
    columns: tuple[Column, ...] = ()
    host: str = "here"
    experiment: str = "e"

    @property
    def uuid(self) -> str:
        return f"{self.name}{'0' * 32}"[:32]

    @property
    def wall_ns(self) -> int:
        return WALL_NS + round(self.at * S)

    @property
    def start(self) -> Start:
        moment = Moment(round(self.at * S), self.wall_ns)
        more: dict[str, Any] = {"command": self.command, "host": self.host, "tags": self.tags}
        return Start(self.uuid, self.name, "e", moment, **more)

    @property
    def end(self) -> End:
        last = round((self.at + self.seconds) * S)
        return End("finished", Moment(last, WALL_NS + last), exit_code=0)

    @property
    def spans(self) -> tuple[Span, ...]:
        if self.ms is None:
            return ()
        count = int(self.seconds * 1000 / self.ms)
        begins = [round(self.at * S + i * self.ms * MS) for i in range(count)]
        lasts = [round(self.ms * MS * (1.0 if i % 2 else 0.98)) for i in range(count)]
        return tuple(
            Span(i + 1, "forward", b, b + n)
            for i, (b, n) in enumerate(zip(begins, lasts, strict=True))
        )


def series(name: str, values: list[float], run: Run, *, scope: str = "device") -> Column:
    times = run.at * S + np.arange(len(values)) * run.seconds * S / (len(values) - 1)
    counter = name.endswith("energy_j")
    return Column(name, "", scope, counter, times.astype(np.int64), np.array(values, float))


def test_a_run_is_held_against_the_same_work_alone():
    first, second = Run("a", ms=15.0), Run("b", ms=30.0, command=("serve.py",))
    alone = [Run("c", at=10, tags=SOLO), Run("d", at=20, ms=10.2, tags=SOLO)]
    other = Run("e", at=30, ms=20.0, tags=SOLO, command=("serve.py",))
    found = slowdown(first, [second, *alone, other])
    mine, theirs = found.runs
    assert mine.slowdown == pytest.approx(15 / 10.1, rel=0.01)
    assert (mine.alone_low, mine.alone_high) == pytest.approx((9.9, 10.098), rel=0.01)
    assert set(mine.alone_runs) == {run.uuid for run in alone}
    assert (mine.verdict, mine.overlap, mine.sharing) == ("slower", 1.0, "mps + mps")
    assert theirs.slowdown == pytest.approx(1.5, rel=0.01)
    assert theirs.alone_runs == (other.uuid,)


def test_only_steps_beside_a_neighbour_count():
    run = Run("a", seconds=2.0)
    beside = Run("b", at=1.0, seconds=1.0)
    slow = tuple(
        span._replace(end_ns=span.start_ns + (9 if span.start_ns >= S else 4) * MS)
        for span in run.spans
    )
    run.__class__ = type("Slow", (Run,), {"spans": slow})
    (mine, _) = slowdown(run, [beside, Run("c", at=10, tags=SOLO)]).runs
    assert mine.shared == pytest.approx(9.0)
    assert mine.overlap == pytest.approx(0.5)


def test_a_difference_within_the_noise_is_none():
    first = Run("a", ms=10.05)
    alone = [Run("c", at=10, ms=9.0, tags=SOLO), Run("d", at=20, ms=11.0, tags=SOLO)]
    mine = slowdown(first, [Run("b"), *alone]).runs[0]
    assert mine.slowdown == pytest.approx(1.005, abs=0.01)
    assert mine.verdict == "equal"


@pytest.mark.parametrize(
    "other",
    [
        Run("c", at=10, tags=SHARED),  # it shared as well
        Run("c", at=10, tags={**SOLO, "neighbours": "process 7 (10 MiB)"}),
        Run("c", at=10, tags={**SOLO, "profiled": "torch"}),
        Run("c", at=10, tags={**SOLO, "beside": "B"}),
        Run("c", at=10, tags=SOLO, status="failed"),
        Run("c", at=10, tags=SOLO, command=("train.py", "--epochs", "5")),
        Run("c", at=10, tags=SOLO, host="elsewhere"),
    ],
)
def test_what_is_no_run_of_the_same_work_alone_is_not_taken(other):
    mine = slowdown(Run("a"), [Run("b"), other]).runs[0]
    assert (mine.alone, mine.slowdown, mine.verdict) == (None, None, "unknown")
    assert "no run of the same work alone" in mine.reason


def test_runs_alone_are_those_of_the_experiment_or_else_of_any():
    near, far = Run("c", at=10, ms=5.0, tags=SOLO), Run("d", at=20, tags=SOLO, experiment="other")
    assert slowdown(Run("a"), [Run("b"), near, far]).runs[0].alone_runs == (near.uuid,)
    assert slowdown(Run("a"), [Run("b"), far]).runs[0].alone_runs == (far.uuid,)


def test_a_run_alone_may_be_named():
    named = Run("c", at=10, ms=5.0, tags=SOLO, command=("python", "train.py"))
    mine, theirs = slowdown(Run("a"), [Run("b"), named], alone=[named]).runs
    assert mine.slowdown == pytest.approx(2.0, rel=0.01)
    assert theirs.slowdown is None


def test_without_spans_the_whole_run_counts_if_it_was_shared_throughout():
    first = Run("a", ms=None, seconds=2.0)
    alone = Run("c", at=10, ms=None, tags=SOLO)
    mine = slowdown(first, [Run("b", seconds=2.0), alone]).runs[0]
    assert (mine.what, mine.slowdown, mine.verdict) == ("seconds", 2.0, "slower")
    half = slowdown(first, [Run("b", seconds=1.0), alone]).runs[0]
    assert half.shared is None
    assert "50% of its time only" in half.reason


@pytest.mark.parametrize(
    ("run", "others", "words"),
    [
        (Run("a"), [Run("b", at=5)], "shared no device"),
        (Run("a"), [Run("b", tags={**SHARED, "devices": "1"})], "shared no device"),
        (Run("a"), [Run("b", host="elsewhere")], "shared no device"),
        (Run("a", status="failed"), [Run("b")], "it is failed"),
        (Run("a", tags={**SHARED, "profiled": "torch"}), [Run("b")], "was profiled"),
    ],
)
def test_what_cannot_be_compared_is_refused(run, others, words):
    with pytest.raises(RunError, match=words) as error:
        slowdown(run, others)
    assert error.value.hint


def test_a_neighbour_that_failed_is_shown_with_no_time():
    theirs = slowdown(Run("a"), [Run("b", status="failed")]).runs[1]
    assert theirs.shared is None
    assert "it is failed" in theirs.reason


def with_energy(name: str, busy: float | None = None, scope: str = "slice", **more: Any) -> Run:
    run = Run(name, seconds=10.0, **more)
    columns = [series("nvml.energy_j", [1000 + 30 * i for i in range(101)], run)]
    if busy is not None:
        columns.append(series("gpm.sm_active_percent", [busy] * 101, run, scope=scope))
    run.columns = tuple(columns)
    return run


def test_energy_together_is_measured_and_divided_as_an_estimate():
    found = slowdown(with_energy("a", 60), [with_energy("b", 20)], idle_w=100).energy
    assert found.all_j == pytest.approx(3000)
    assert found.rule == BY_BUSY
    assert found.estimates_j == pytest.approx((500 + 0.75 * 2000, 500 + 0.25 * 2000))
    assert sum(found.estimates_j) == pytest.approx(found.all_j)


@pytest.mark.parametrize("scope", ["device", "slice"])
def test_without_counters_of_each_run_it_is_divided_evenly(scope):
    other = with_energy("b", None if scope == "slice" else 20, scope)
    found = slowdown(with_energy("a", 60, scope), [other]).energy
    assert (found.rule, found.idle_w) == (EQUAL, None)
    assert found.estimates_j == pytest.approx((1500, 1500))


def test_energy_that_was_not_sampled_is_absent_with_its_reason():
    found = slowdown(Run("a"), [Run("b")])
    assert isinstance(found.energy.all_j, Absent)
    assert found.energy.estimates_j == ()
    assert "add nvml to --metrics" in str(found)
    assert found.to_dict()["energy"]["all_j"] is None


def test_the_text_calls_an_estimate_an_estimate():
    text = str(slowdown(with_energy("a", 60), [with_energy("b", 20)]))
    assert text.count("an estimate") == 2
    assert "no counter measures one run's part" in text
    assert "3,000 J of the boards in 10.0 s" in text


def kept(root, name, at_s, ms, tags, *, uuid=None, prediction=None):
    """A folder of a run with twenty steps."""
    begun = Moment(at_s * S, WALL_NS + at_s * S)
    start = Start(uuid or ids.uuid4().hex, name, "e", begun, command=("train.py",), tags=tags,
                  host=os.uname().nodename, prediction=prediction)  # fmt: skip
    folder = RunFolder.create(start, root)
    for number in range(40):
        first = at_s * S + round(number * ms * MS)
        folder.span(Span(number + 1, "forward", first, first + round(ms * MS)))
    last = Moment(at_s * S + round(40 * ms * MS), begun.wall_ns + round(40 * ms * MS))
    folder.end(End("finished", last, exit_code=0))
    folder.close()
    return start.uuid


def test_the_command_finds_them_in_a_store_and_keeps_the_answer(store_file, tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    monkeypatch.setenv("DIPPM_SPOOL", str(spool))
    asked = kept(spool, "0_A", 100, 20.0, SHARED)
    kept(spool, "0_B", 100, 20.0, SHARED)
    kept(spool, "alone", 200, 10.0, SOLO)
    words = ["compare-run", asked[:12], "--co-located", "--store", str(store_file)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "× 2.00" in answer.stdout
    assert "0_B" in answer.stdout
    assert "not predicted: no prediction is stored beside" in answer.stdout
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [run["slowdown"] for run in document["runs"]] == pytest.approx([2.0, 2.0])
    from dippm.runs.store.runs import open_store

    stored = open_store(str(store_file)).run(asked)
    assert stored.document("slowdown")["runs"] == document["runs"]
    assert stored.metrics["slowdown/slowdown"] == pytest.approx(2.0)
    assert CliRunner().invoke(app, ["compare-run", asked, "--alone", "x"]).exit_code == 2
