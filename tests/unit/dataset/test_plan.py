from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest

from dataset.families import costs, operator_cases, operators
from dataset.families.family import Workload
from dataset.families.registry import FAMILIES, family
from dataset.plan import __main__ as command
from dataset.plan import calibration, limits, parts, queue, summary
from dataset.plan.configuration import Job, configuration_id
from tests.samples import sampled


@pytest.fixture(scope="module")
def inference() -> list[Job]:
    return queue.plan()


PARTS = ("inference", "training", "cpu", "operators")


def points(jobs: list[Job]):
    return [(job.workload, point) for job in jobs for point in job.points]


def test_the_plan_needs_no_framework():
    code = (
        "import sys; from dataset.plan import queue; n = len(queue.plan());"
        "heavy = {'torch', 'numpy', 'tvm', 'timm'} & set(sys.modules); print(n, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1)[1].strip() == "[]"


@pytest.mark.parametrize("part", sampled(PARTS, pytest.mark.nightly(part="answers")))
def test_a_plan_is_the_same_in_another_process(part: str):
    code = (
        "import hashlib, json; from dataset.plan import parts;"
        f"jobs = [json.dumps(j.to_dict()) for j in parts.PARTS[{part!r}](3)];"
        "print(hashlib.sha256(''.join(jobs).encode()).hexdigest())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_another_seed_is_another_plan():
    assert queue.plan(0)[:50] != queue.plan(1)[:50]


@pytest.mark.parametrize("part", PARTS)
def test_jobs_survive_their_file(part: str):
    for job in parts.PARTS[part](0)[:400]:
        assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


@pytest.mark.parametrize("part", PARTS)
def test_a_configuration_comes_once_with_each_repeat(part: str):
    seen = [(configuration_id(w, p), p.repeat) for w, p in points(parts.PARTS[part](0))]
    assert len(seen) == len(set(seen))


def test_there_are_more_graphs_than_the_original_data_set_had(inference: list[Job]):
    figures = summary.summary(inference)
    assert figures["graphs"] >= 10_508
    assert figures["architectures"] >= 750
    assert figures["families"] >= 24


def test_training_has_two_samples_at_least():
    for _, point in points(queue.training_plan()):
        assert point.phase == "train"
        assert point.batch > 1


@pytest.mark.parametrize("part", ["inference", "training"])
def test_families_take_turns(part: str):
    jobs = parts.PARTS[part](0)
    left = Counter(job.workload.family for job in jobs)
    count = dict.fromkeys(left, 0)
    for job in jobs:
        count[job.workload.family] += 1
        left[job.workload.family] -= 1
        running = [count[name] for name in left if left[name]]
        assert not running or max(count.values()) - min(running) <= 1


def test_every_prefix_is_balanced(inference: list[Job]):
    for length in (200, 1000, 5000):
        drawn = [point for _, point in points(inference)][:length]
        shares = Counter(point.precision for point in drawn)
        for precision, share in queue.SHARES.items():
            assert shares[precision] / length == pytest.approx(share, abs=0.05)
        with_energy = sum(point.energy for point in drawn) / length
        assert with_energy == pytest.approx(queue.ENERGY_SHARE, abs=0.05)


def test_repeats_come_after_what_they_repeat(inference: list[Job]):
    seen: dict[str, int] = {}
    repeats = 0
    for workload, point in points(inference):
        key = configuration_id(workload, point)
        assert seen.get(key, -1) == point.repeat - 1 or point.repeat == 0
        seen[key] = point.repeat
        repeats += point.repeat > 0
    assert repeats / len(points(inference)) == pytest.approx(0.05, abs=0.015)
    early = [point for _, point in points(inference[:200])]
    assert any(point.repeat for point in early)


def test_batches_rise_within_a_job_and_spread_over_decades(inference: list[Job]):
    for job in inference:
        eager = [point.batch for point in job.points if point.mode == "eager"]
        assert all(a < b for a, b in pairwise(eager))
        assert max(eager) <= family(job.workload.family).largest_batch
    batches = [point.batch for _, point in points(inference)]
    decades = Counter(len(str(batch)) for batch in batches)
    assert min(decades[1], decades[2], decades[3]) > 0.08 * len(batches)


def test_points_fit_the_assumed_device(inference: list[Job]):
    for job in inference:
        cost = costs.cost(job.workload)
        for point in job.points:
            weights_mb = cost.parameters_m * 4
            assert cost.peak_mb * point.batch + weights_mb <= limits.GPU.memory_mb
            assert limits.seconds(cost, point.batch, "inference", limits=limits.GPU) <= 2


def test_channels_last_is_for_images_only(inference: list[Job]):
    for workload, point in points(inference):
        assert not point.channels_last or FAMILIES[workload.family].images


def test_the_cpu_plan_is_small():
    jobs = queue.cpu_plan()
    figures = summary.summary(jobs)
    assert figures["points"] >= 330
    assert figures["architectures"] >= 150
    assert 0.04 <= figures["repeats"] / figures["points"] <= 0.1
    assert figures["families"] >= 20
    for workload, point in points(jobs):
        assert point.precision == "fp32"
        assert point.batch <= 4
        assert not point.energy
        assert (
            limits.seconds(costs.cost(workload), point.batch, "inference", limits=limits.CPU) < 0.5
        )


def test_the_calibration_pack_comes_first():
    pack, first = calibration.operator_pack(), calibration.calibration_pack()
    assert pack[: len(first)] == first
    assert len(first) == 105
    kinds = Counter(family(job.workload.family).kind for job in first)
    assert kinds == {"operator": 100, "model": 5}
    forward = {
        (job.workload.model, point.batch)
        for job in pack
        for point in job.points
        if point.phase == "inference"
    }
    assert 300 <= len(forward) <= 500


def test_operator_cases_are_distinct():
    cases = [*operator_cases.calibration_cases(), *operator_cases.more_cases()]
    keys = [(Workload(c.family, c.parameters, c.sizes).model, c.batch) for c in cases]
    assert len(keys) == len(set(keys))
    assert {c.family for c in cases} == {f.name for f in operators.ALL}


def test_summary_renders_and_is_json(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plan", "--part", "cpu", "--json"])
    command.main()
    figures = json.loads(capsys.readouterr().out)
    assert figures["points"] == summary.summary(queue.cpu_plan())["points"]
    monkeypatch.setattr(sys, "argv", ["plan", "--part", "cpu", "--summary"])
    command.main()
    assert "points a minute" in capsys.readouterr().out
