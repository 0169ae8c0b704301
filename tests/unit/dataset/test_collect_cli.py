"""The command line: bad input, plans, status, pack, and a bare machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dataset.collect.cli import main
from dataset.collect.errors import CollectError
from dataset.collect.plans import plan_hash, read_plan, share
from dataset.families.family import Workload
from dataset.families.registry import FAMILIES, OPERATORS
from dataset.plan.configuration import Job, Point
from dataset.plan.parts import PARTS
from dippm.measure.collected.shards import shards
from dippm.measure.collected.store import read_rows

from .collect_runs import BARE, ROOT, collect, finish, start, steady, write_plan

LACKING = (
    "tvm", "pandas", "pyarrow", "rich", "typer", "pydantic", "psutil", "ray", "onnx",
    "onnxruntime", "plotly", "jinja2", "scipy", "networkx", "torch_geometric", "click",
    "safetensors_rust", "onnxsim", "lightning", "sklearn",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x", "--budget", "soon"], "'soon' is no duration"),
        (["--out", "x", "--limit", "0"], "'0' is no whole number from 1 on"),
        (["--out", "x", "--shard", "3/2"], "'3/2' is no share"),
        (["--out", "x", "--part", "everything"], "invalid choice"),
        ([], "required: --out"),
    ],
)
def test_bad_usage(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: JSONDecodeError"),
        ('{"model": "resnet"}', "line 1: KeyError: 'points'"),
        ('{"model": "resnet", "points": []}', "line 1: ValueError: 'resnet' is not"),
        ('\n{"model": "own:a()@1", "points": [{"size": 1}]}', "line 2: TypeError"),
    ],
)
def test_bad_plans_name_their_line(tmp_path, text, message):
    path = tmp_path / "plan.jsonl"
    path.write_text(text)
    with pytest.raises(CollectError) as error:
        read_plan(path)
    assert message in str(error.value)


def test_a_missing_plan_and_a_folder_that_cannot_be_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DIPPM_LOCK_DIR", str(tmp_path / "locks"))
    assert main(["--out", str(tmp_path), "--plan", str(tmp_path / "no")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    plan = write_plan(tmp_path / "plan.jsonl", {"steady": (1,)})
    words = ["--out", str(plan / "out"), "--plan", str(plan), "--json"]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["error"]["message"].endswith("Not a directory")


def test_parts_of_the_plan():
    operators, cpu = PARTS["operators"](0), PARTS["cpu"](0)
    assert len(operators) > 200
    assert len(cpu) > 50
    assert {job.workload.model for job in operators}.isdisjoint(j.workload.model for j in cpu)
    assert plan_hash(cpu) == plan_hash(PARTS["cpu"](0)) != plan_hash(cpu[1:])


def test_shares_are_disjoint_and_complete(tmp_path):
    jobs = read_plan(write_plan(tmp_path / "plan.jsonl", steady(7)))
    parts = [share(jobs, f"{i}/3") for i in (1, 2, 3)]
    assert [len(part) for part in parts] == [3, 2, 2]
    assert sorted(str(job) for part in parts for job in part) == sorted(map(str, jobs))


def test_status_and_pack(tmp_path, capsys):
    plan = write_plan(tmp_path / "plan.jsonl", {**steady(3, (1, 2)), "raises": (1,)})
    assert collect(tmp_path / "out", plan)[0] == 0
    assert main(["status", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["statuses"] == {"ok": 6, "error": 1}
    assert (found["models"], found["configurations"]) == (4, 7)
    assert found["campaigns"][0]["ended"] == "finished"
    assert main(["pack", str(tmp_path / "out")]) == 0
    assert "7 rows" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "nowhere")]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_a_bare_machine_measures_for_real(tmp_path):
    """Only torch and the model zoos: real bench, real families, in processes without the rest."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BARE.format(absent=LACKING))
    plan = tmp_path / "plan.jsonl"
    small = {"dense": OPERATORS["dense"], "mobilenet": FAMILIES["mobilenet"]}
    with plan.open("w") as file:
        for family in small.values():
            parameters = family.grid()[0]
            workload = Workload(family.name, parameters, family.sizes(parameters)[0])
            job = Job(workload, (Point(1, energy=False),))
            file.write(json.dumps(job.to_dict()) + "\n")
    out = tmp_path / "out"
    words = [sys.executable, "-m", "dataset.collect", "--out", str(out), "--device", "cpu"]
    done = subprocess.run(
        [*words, "--plan", str(plan), "--settle-s", "0.1", "--json"],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(site),
            "DIPPM_LOCK_DIR": str(tmp_path / "locks"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["statuses"] == {"ok": 2}, done.stderr
    assert [path.name for path in shards(out)] == ["shard-0000.jsonl.gz"]
    rows = list(read_rows(out))
    assert [row["kind"] for row in rows] == ["operator", "model"]
    for row in rows:
        assert row["latency_ms"] > 0
        assert len(row["latencies_ms"]) == 30
        assert row["memory_mb"] > row["memory_before_mb"] > 0
        assert row["energy_j"] is None
        assert row["absent"]["energy_j"]
    assert main(["pack", str(out)]) == 0
    assert [path.suffix for path in shards(out)] == [".parquet"]


@pytest.mark.nightly(part="processes")
def test_a_local_ray_cluster_survives_the_loss_of_a_station(tmp_path):
    pytest.importorskip("ray")
    flag = tmp_path / "flag"
    flag.touch()
    plan = write_plan(
        tmp_path / "plan.jsonl",
        {**steady(5, (1, 2)), "kills_station": (1, 2, 4), "raises": (1,), "steady:9": (1,)},
    )
    process = start(tmp_path / "out", plan, "--ray", "local", KILL_FLAG=str(flag))
    code, summary, talk = finish(process)
    assert code == 0, talk
    rows = list(read_rows(tmp_path / "out"))
    assert summary["statuses"] == {"ok": 13, "crash": 1, "error": 1}
    assert len({row["configuration_id"] for row in rows}) == 15
    lost = [(r["batch"], r["reason"]) for r in rows if r["status"] == "crash"]
    assert len(lost) == 1
    assert lost[0][0] == 2
    assert "the station was lost" in lost[0][1]
