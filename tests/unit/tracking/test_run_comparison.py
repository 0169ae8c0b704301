"""A run beside its prediction: what is compared is real, what does not match is refused."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dippm.errors import ConditionsError, RunError
from dippm.measure.collected.rows import collected
from dippm.runs.store.columns import Column
from dippm.runs.store.record import Moment, Span, Start
from dippm.runs.tracking.accepted_runs import accept, coverage
from dippm.runs.tracking.run_comparison import DOCUMENT, compare_run
from dippm.runs.tracking.steps import timed_steps

CPU = "CPU-AMD-EPYC-2c"
MS = 1_000_000
PREDICTION: dict[str, Any] = {
    "source": "net.onnx",
    "model": "net.onnx",
    "input": "3,224,224",
    "conditions": {
        "device": CPU,
        "batch": 8,
        "precision": "fp32",
        "mode": "eager",
        "timer": "wall",
        "mig": None,
        "channels_last": False,
        "phase": "inference",
        "optimizer": None,
    },
    "latency_ms": 10.0,
    "memory_mb": 300.0,
    "energy_j": None,
    "power_w": None,
    "intervals": {
        "latency_ms": {"low": 5.0, "high": 15.0, "coverage": 0.9},
        "memory_mb": {"low": 280.0, "high": 320.0, "coverage": 0.9},
    },
    "absent": {"energy_j": "no RAPL where it was trained"},
}


@dataclass
class Run:
    """What `StoredRun` shows of a run, without a store."""

    spans: tuple[Span, ...]
    start: Start
    columns: tuple[Column, ...] = ()
    prediction: Any = None
    metrics: dict[str, float] = field(default_factory=dict)
    wall_ns: int = 1_700_000_000 * 10**9

    @property
    def uuid(self) -> str:
        return self.start.uuid


def steps(count: int = 25, ms: float = 12.0, gap_ms: float = 0.1, **more: Any) -> tuple[Span, ...]:
    """Spans in a row; the first five take ten times as long."""
    found, now = [], 0
    for number in range(count):
        lasts = round((10 * ms if number < 5 else ms) * MS)
        found.append(Span(number + 1, "forward", now, now + lasts, **more))
        now += lasts + round(gap_ms * MS)
    return tuple(found)


def series(name: str, values: list[float], every_ms: float = 10) -> Column:
    times = np.arange(len(values)) * int(every_ms * MS)
    return Column(name, "", "tree", False, times, np.array(values, dtype=float))


def run(spans: tuple[Span, ...] | None = None, uuid: str = "ab" * 16, **params: str) -> Any:
    told = {"batch": "8", "precision": "fp32", "device": CPU, **params}
    start = Start(uuid, "net", "tests", Moment(0, 0), params=told)
    columns = (series("tree.rss_mb", [100, 290, 310, 200]),)
    return Run(steps() if spans is None else spans, start, columns, copy.deepcopy(PREDICTION))


def test_a_latency_is_the_mean_of_steps_without_the_warm_up() -> None:
    comparison = compare_run(run())
    latency, energy, memory = comparison.compared
    assert latency.measured == pytest.approx(12.0)
    assert latency.error == pytest.approx(10 / 12 - 1)
    assert (latency.verdict, memory.verdict, energy.verdict) == ("inside", "inside", "absent")
    assert memory.measured == 310
    assert "no RAPL" in energy.reason
    assert comparison.verdict == "held"
    assert json.loads(json.dumps(comparison.to_dict()))["steps"]["timed"] == 20
    assert re.search(r"latency +10(\.0+)? ms +5(\.0+)? – 15(\.0+)? +12(\.0+)? ms", str(comparison))


def test_what_is_outside_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare_run(run(steps(ms=40.0)))
    assert comparison.compared[0].verdict == "above"
    assert comparison.verdict == "latency above"
    assert compare_run(run(steps(ms=2.0))).verdict == "latency below"


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"batch": "16"}, "batch 8"),
        ({"precision": "fp16"}, "precision fp32"),
        ({"mode": "compiled"}, "mode eager"),
        ({"device": "A100"}, "device CPU-AMD-EPYC-2c"),
        ({"phase": "train"}, "phase inference"),
    ],
)
def test_other_conditions_are_refused(told: dict[str, str], named: str) -> None:
    with pytest.raises(ConditionsError, match=named):
        compare_run(run(**told))


def test_another_timer_is_refused() -> None:
    made = run()
    made.prediction["conditions"]["timer"] = "kernel"
    with pytest.raises(ConditionsError, match="timer kernel"):
        compare_run(made)


def test_spelling_of_conditions_does_not_matter() -> None:
    assert compare_run(run(precision="float32", mode="Eager")).verdict == "held"


def test_the_device_is_that_of_the_machine_if_nobody_tells() -> None:
    made = run()
    there = {"host_cpu": "AMD EPYC", "host_cores": "64"}
    made.start = made.start._replace(params={}, environment=there)
    with pytest.raises(ConditionsError, match="device"):
        compare_run(made)
    made.start = made.start._replace(environment={})
    with pytest.raises(ConditionsError, match="does not say which device"):
        compare_run(made)


def test_a_run_without_steps_has_no_latency() -> None:
    with pytest.raises(RunError, match="no latency"):
        timed_steps(())
    with pytest.raises(RunError, match="too few"):
        timed_steps(steps(14))
    with pytest.raises(RunError, match="too few"):
        timed_steps(steps(status="failed"))
    with pytest.raises(RunError, match="several names"):
        timed_steps((Span(1, "load", 0, 1), Span(2, "step", 2, 3)))
    with pytest.raises(RunError, match="overlap"):
        timed_steps(steps(gap_ms=-1))


def test_a_run_without_a_prediction_is_not_compared() -> None:
    made = run()
    made.prediction = None
    with pytest.raises(RunError, match="no prediction"):
        compare_run(made)


def test_memory_of_several_processes_is_not_that_of_one() -> None:
    made = run()
    made.columns = (*made.columns, series("tree.processes", [1, 3, 1]))
    assert "3 processes" in compare_run(made).compared[2].reason


def test_energy_is_of_a_counter_over_steps_that_follow_each_other() -> None:
    def with_counter(spans: tuple[Span, ...]) -> Any:
        made = run(spans)
        made.prediction["energy_j"] = 0.5
        made.prediction["intervals"]["energy_j"] = {"low": 0.4, "high": 0.9, "coverage": 0.9}
        made.columns = (series("rapl.package_energy_j", [0.5 * n for n in range(200)]),)
        return compare_run(made).compared[1]

    assert with_counter(steps()).measured == pytest.approx(50 * 0.0121, rel=0.01)  # 50 W
    assert "of the time between them" in with_counter(steps(gap_ms=5)).reason
    assert "updated" in with_counter(steps(ms=1.0, gap_ms=0)).reason


def test_repeats_of_the_same_work_give_the_noise_floor() -> None:
    def earlier(uuid: str, ms: float) -> Any:
        made = run(uuid=uuid)
        made.metrics = {f"{DOCUMENT}/latency_ms/measured": ms}
        return made

    others = [earlier("aa" * 16, 15.0), earlier("bb" * 16, 17.0)]
    latency = compare_run(run(steps(ms=15.5)), earlier=others).compared[0]
    assert latency.noise_percent == pytest.approx(100 * 2**0.5 / 16)
    assert latency.verdict == "above"
    others = [earlier("aa" * 16, 10.0), earlier("bb" * 16, 30.0)]
    assert compare_run(run(steps(ms=15.5)), earlier=others).compared[0].verdict == "within noise"
    others[0].prediction["conditions"]["batch"] = 1  # other work
    assert "alone" in compare_run(run(), earlier=others).noise


def compared_before(insides: str) -> list[Any]:
    found = []
    for inside in insides:
        made = run()
        made.metrics = {f"{DOCUMENT}/latency_ms/inside": float(inside)}
        found.append(made)
    return found


@pytest.mark.parametrize(
    ("insides", "warns"),
    [
        ("1" * 40 + "0" * 10, False),
        ("1" * 39 + "0" * 11, True),
        ("0" * 9, False),
        ("0" * 10, True),
        ("1" * 50 + "0" * 50, False),  # the last fifty count, the newest first
        ("0" * 50 + "1" * 50, True),
    ],
)
def test_the_monitor_of_coverage(insides: str, warns: bool) -> None:
    (found,) = coverage(compared_before(insides))
    assert bool(found.warning) == warns


def test_runs_never_compared_do_not_count() -> None:
    assert coverage([run() for _ in range(60)]) == ()


def test_accepted_runs_are_rows_once(tmp_path: Path) -> None:
    made = run()
    assert accept(tmp_path, made, compare_run(made), PREDICTION)
    assert not accept(tmp_path, made, compare_run(made), PREDICTION)
    again = run(steps(ms=12.5), uuid="cd" * 16)
    assert accept(tmp_path, again, compare_run(again), PREDICTION)
    rows = collected(tmp_path).rows
    assert list(rows["latency_ms"]) == pytest.approx([12.0, 12.5])
    assert list(rows["repeat"]) == [0, 1]
    assert rows["configuration_id"].nunique() == 1
    assert list(rows["device"]) == [CPU] * 2
    assert list(rows["memory_mb"]) == [310, 310]
    assert "rapl" in rows["absent"][0]["energy_j"]


def test_accepted_rows_are_read_as_labels(tmp_path: Path) -> None:
    from dataset.collected.rows import as_table, read

    made = run()
    accept(tmp_path / "team", made, compare_run(made), PREDICTION)
    (row,) = as_table(read(tmp_path / "team"), "own/team").to_dict("records")
    assert (row["model"], row["batch"], row["latency_ms"]) == ("net.onnx", 8, 12.0)
    assert (row["timer"], row["precision"], row["mode"]) == ("W", "fp32", "eager")


def test_what_a_run_did_not_tell_is_no_row(tmp_path: Path) -> None:
    made = run()
    made.start = made.start._replace(params={"device": CPU, "batch": "8"})
    comparison = compare_run(made)
    assert "taken as predicted" in str(comparison)
    with pytest.raises(RunError, match="precision"):
        accept(tmp_path, made, comparison, PREDICTION)
    assert list(tmp_path.iterdir()) == []
