"""The order of a campaign: wherever it ends, what was measured is of use."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from dataset.collect.runner import JOBS_PER_WORKER
from dataset.families import costs, registry
from dataset.plan import __main__ as command
from dataset.plan.campaign import COMPILED_AFTER_S, LONG_ENOUGH_S, QUICK, SHARES, Stage, stages
from dataset.plan.configuration import Job, configuration_id
from dataset.plan.limits import GPU, seconds
from dataset.plan.parts import PARTS
from dataset.plan.time import job_seconds


@pytest.fixture(scope="module")
def found() -> dict[str, Stage]:
    return {stage.name: stage for stage in stages()}


def points(stage: Stage) -> list:
    return [(job.workload, point) for job in stage.jobs for point in job.points]


def kind_of(job: Job) -> str:
    if job.points[0].phase == "train" and job.workload.family in registry.FAMILIES:
        return "training"
    return "models" if job.workload.family in registry.FAMILIES else "operators"


def test_the_stages_come_in_order_and_are_the_whole_plan(found):
    assert list(found) == [
        "ceilings", "known", "families", "operators", "training", "repeats", "drift", "rest",
    ]  # fmt: skip
    whole = {
        (configuration_id(job.workload, point), point.repeat)
        for name in ("operators", "inference", "training")
        for job in PARTS[name](0)
        for point in job.points
    }
    seen = [
        (configuration_id(workload, point), point.repeat)
        for stage in found.values()
        for workload, point in points(stage)
    ]
    assert len(seen) == len(set(seen))
    assert whole <= set(seen)


def test_the_first_minute_says_what_the_machine_can_do(found):
    models = {workload.family for workload, _ in points(found["ceilings"])}
    assert models == {"dense", "move"}
    assert all(point.energy for _, point in points(found["ceilings"]))
    assert sum(job_seconds(job, GPU) for job in found["ceilings"].jobs) < 90


def test_known_architectures_at_three_batches_and_two_precisions(found):
    known = found["known"]
    assert len(known.jobs) == 12
    assert all(job.workload.model.startswith(("timm:", "hf:")) for job in known.jobs)
    for job in known.jobs:
        assert len({(point.batch, point.precision) for point in job.points}) == 6
        assert sum(point.energy for point in job.points) == 3
    for name in ("batch", "precision"):
        with_energy = Counter(getattr(p, name) for _, p in points(known) if p.energy)
        assert set(with_energy) == {getattr(p, name) for _, p in points(known)}


def test_every_family_shows_four_architectures_before_any_shows_more(found):
    shown = {}
    for job in found["families"].jobs:
        shown.setdefault(job.workload.family, set()).add(job.workload.architecture)
        assert 1 <= len(job.points) <= 2
    assert shown.keys() == registry.FAMILIES.keys()
    assert {len(architectures) for architectures in shown.values()} == {4}
    first = [job.workload.family for job in found["families"].jobs[: len(shown)]]
    assert len(set(first)) == len(shown)


@pytest.mark.parametrize("name", ["families", "operators", "training"])
def test_a_quarter_has_energy(found, name):
    energy = [point.energy for _, point in points(found[name])]
    assert sum(energy) / len(energy) == pytest.approx(0.25, abs=0.02)


def test_operators_are_long_enough_to_tell_of_themselves(found):
    assert len(points(found["operators"])) == 250
    free = GPU.__class__(GPU.memory_mb, GPU.tflops, GPU.gb_s, 0.0, GPU.step_s)
    for workload, point in points(found["operators"]):
        step = seconds(costs.cost(workload), point.batch, "inference", limits=free)
        assert step > LONG_ENOUGH_S


def test_repeats_run_in_another_process_than_what_they_repeat(found):
    jobs = [job for name in list(found)[:-1] for job in found[name].jobs]
    when = {}
    for number, job in enumerate(jobs):
        for point in job.points:
            key = configuration_id(job.workload, point)
            assert point.repeat == (key in when)
            assert number - when.setdefault(key, number - JOBS_PER_WORKER) >= JOBS_PER_WORKER
            when[key] = number
    assert 40 <= len(points(found["repeats"])) <= 80


def test_nothing_is_compiled_in_the_first_half_hour(found):
    jobs = [job for stage in found.values() if stage.name != "known" for job in stage.jobs]
    begins = accumulate((job_seconds(job, GPU, QUICK) for job in jobs), initial=0.0)
    compiled = [
        begin
        for job, begin in zip(jobs, begins, strict=False)
        if any(point.mode == "compiled" for point in job.points)
    ]
    assert compiled
    assert min(compiled) >= COMPILED_AFTER_S
    assert min(compiled) < 2 * COMPILED_AFTER_S


def test_the_rest_is_shared_at_any_moment(found):
    done = dict.fromkeys(SHARES, 0)
    for job in found["rest"].jobs:
        done[kind_of(job)] += len(job.points)
        total = sum(done.values())
        if 500 < total < 3000:
            for name, share in SHARES.items():
                assert done[name] / total == pytest.approx(share, abs=0.03)


def test_the_readme_has_the_table_that_the_command_prints(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["plan", "--stages", "--energy-window-s", "1"])
    command.main()
    readme = Path("dataset/collect/README.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in readme
