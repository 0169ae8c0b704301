"""A lent machine: each command goes on with what the last one left, and gives few files back."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dippm.measure.collected.store import read_rows
from scripts import lent_gpu

from .collect_runs import HERE, ROOT, start, steady, wait_for_lines, write_plan

MOST_FILES, MOST_FOLDERS = 8, 2


def command(carried: Path, out: Path, plan: Path, *more: str) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    words = [sys.executable, "-m", "scripts.lent_gpu", str(carried), str(out), "--device", "cpu"]
    words += ["--", "--plan", str(plan), "--families", "collect_faults"]
    words += ["--bench", "collect_faults:QuickBench", "--jobs-per-worker", "100", *more]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "DIPPM_LOCK_DIR": str(plan.parent / "locks"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)


def rows_in(out: Path, folder: Path) -> list[dict]:
    lent_gpu.unpack(out, folder)
    return list(read_rows(folder))


def files_of(out: Path) -> list[Path]:
    return [path.relative_to(out) for path in out.rglob("*") if path.is_file()]


def test_commands_go_on_from_each_other_and_leave_few_files(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(6))
    carried = tmp_path / "nothing"
    for number, limit in enumerate(("7", "9", "100")):
        out = tmp_path / f"out{number}"
        done = command(carried, out, plan, "--limit", limit)
        assert done.returncode == 0, done.stderr
        assert files_of(out) == [Path("collected.tar.gz.part00")]
        carried = out
    rows = rows_in(carried, tmp_path / "set")
    assert len(rows) == 30
    assert len({(row["configuration_id"], row["repeat"]) for row in rows}) == 30
    assert len({row["campaign"] for row in rows}) == 3
    assert len(list((tmp_path / "set" / "campaigns").glob("*.json"))) == 3


def test_what_a_killed_command_left_is_gone_on_with(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(20))
    killed = tmp_path / "killed"
    folder = killed / lent_gpu.WORK
    killed.mkdir()
    process = start(folder, plan)
    wait_for_lines(folder / "journal.jsonl", 3, process)
    process.kill()
    process.communicate()
    left = files_of(killed)
    assert len(left) <= MOST_FILES
    assert all(len(path.parts) - 1 <= MOST_FOLDERS for path in left)
    done = command(killed, tmp_path / "out", plan)
    assert done.returncode == 0, done.stderr
    rows = rows_in(tmp_path / "out", tmp_path / "set")
    assert len({(row["configuration_id"], row["repeat"]) for row in rows}) == len(rows) == 100


@pytest.mark.parametrize("part_bytes", [1000, 1 << 20])
def test_a_large_set_comes_in_parts(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(lent_gpu, "PART_BYTES", part_bytes)
    content = random.Random(0).randbytes(2500)
    folder = tmp_path / "out" / lent_gpu.WORK
    (folder / "campaigns").mkdir(parents=True)
    (folder / "campaigns" / "c.json").write_bytes(content)
    parts = lent_gpu.pack(folder, tmp_path / "out")
    assert sorted(parts) == sorted((tmp_path / "out").iterdir())
    assert all(part.stat().st_size <= part_bytes for part in parts)
    assert (len(parts) > 1) == (part_bytes < len(content))
    lent_gpu.unpack(tmp_path / "out", tmp_path / "set")
    assert (tmp_path / "set" / "campaigns" / "c.json").read_bytes() == content
