"""Campaigns of real processes: what fails is a row, what is killed loses at most one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from dataset.collect.status import status
from dippm.measure.collected.store import read_rows
from dippm.measure.columns import COLUMNS, MEASURED

from .collect_runs import (
    collect,
    finish,
    start,
    steady,
    stop_all,
    wait_for_lines,
    wait_for_words,
    write_plan,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups and flock")


def rows_of(folder: Path) -> list[dict]:
    rows = list(read_rows(folder))
    assert len({row["row_id"] for row in rows}) == len(rows)
    return rows


def by_model(folder: Path) -> dict[str, list[tuple]]:
    found: dict[str, list[tuple]] = {}
    for row in rows_of(folder):
        found.setdefault(row["family"], []).append((row["batch"], row["status"]))
    return found


def reason(folder: Path, family: str, batch: int) -> str:
    return next(
        r["reason"] for r in rows_of(folder) if (r["family"], r["batch"]) == (family, batch)
    )


def test_every_failure_is_a_row_with_its_reason(tmp_path):
    families = (
        "steady",
        "segfault",
        "killed",
        "exits",
        "raises",
        "cuda_error",
        "nosuch",
        "lacking",
    )
    more = {"memory_error": (1, 4, 8), "large": (4, 8), "prints": (1,), "single": (1,)}
    plan = write_plan(tmp_path / "plan.jsonl", {**dict.fromkeys(families, (1, 2)), **more})
    code, summary, talk = collect(tmp_path / "out", plan, "--memory-limit-mb", "3000")
    assert code == 0, talk
    assert summary["ended"] == "finished"
    found = by_model(tmp_path / "out")
    assert found["steady"] == [(1, "ok"), (2, "ok")]
    assert found["prints"] == [(1, "ok")]
    for family in ("segfault", "killed", "exits", "cuda_error"):
        assert found[family] == [(1, "crash"), (2, "skipped")]
    assert found["lacking"] == [(1, "skipped"), (2, "skipped")]
    for family in ("raises", "nosuch"):
        assert found[family] == [(1, "error"), (2, "skipped")]
    assert found["memory_error"] == [(1, "ok"), (4, "oom"), (8, "skipped")]
    assert found["large"] == [(4, "oom"), (8, "skipped")]

    def said(family: str, batch: int = 1) -> str:
        return reason(tmp_path / "out", family, batch)

    assert said("segfault") == "worker killed by SIGSEGV; last line on stderr: about to fall"
    assert "killed by SIGKILL" in said("killed")
    assert "exit code 7" in said("exits")
    assert said("lacking") == "ModuleNotFoundError: No module named 'no_such_zoo'"
    assert said("raises") == "ValueError: no such layer"
    assert "the model was not built: ValueError" in said("raises", 2)
    assert said("cuda_error") == "RuntimeError: CUDA error: unspecified launch failure"
    assert "unknown family 'nosuch'" in said("nosuch")
    assert said("memory_error", 8) == "batch 4 of the same regime ran out of memory"
    assert "allocate memory" in said("large", 4)
    kinds = {row["family"]: row["kind"] for row in rows_of(tmp_path / "out")}
    assert (kinds["single"], kinds["steady"]) == ("operator", "model")
    assert summary["statuses"] == dict(Counter(s for f in found.values() for _, s in f))
    log = (tmp_path / "out" / "worker.log").read_text()
    assert "a library that talks" in log
    assert "and one in C" in log


@pytest.mark.nightly(part="processes")
def test_a_hanging_model_costs_one_timeout(tmp_path):
    families = {"slow": (1, 2, 4), "hangs": (1, 2), "steady": (1,)}
    plan = write_plan(tmp_path / "plan.jsonl", families)
    code, _, talk = collect(tmp_path / "out", plan, "--timeout-s", "2")
    assert code == 0, talk
    found = by_model(tmp_path / "out")
    assert found["slow"] == [(1, "ok"), (2, "timeout"), (4, "skipped")]
    assert found["hangs"] == [(1, "timeout"), (2, "skipped")]
    assert found["steady"] == [(1, "ok")]
    assert reason(tmp_path / "out", "slow", 2) == "no answer within 2 s"


def test_a_row_is_complete(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", {"steady": (1, 2), "raises": (1,)})
    code, summary, talk = collect(tmp_path / "out", plan)
    assert code == 0, talk
    rows = {(row["family"], row["batch"]): row for row in rows_of(tmp_path / "out")}
    first, second, failed = rows["steady", 1], rows["steady", 2], rows["raises", 1]
    for row in rows.values():
        assert list(row) == [column.name for column in COLUMNS]
        assert row["campaign"] == summary["campaign"]
        assert row["framework"].startswith("torch ")  # also where a failure happened is known
    assert (first["memory_fresh_process"], second["memory_fresh_process"]) == (True, False)
    assert first["memory_before_mb"] == 10.0
    assert first["build_s"] >= 0
    assert (first["model"], first["architecture"]) == ("own:steady()@4", "steady()")
    assert {name for name in MEASURED if first[name] is None} == set(first["absent"])
    assert first["absent"]["energy_j"] == "not measured by this bench"
    assert first["absent"]["latency_sd_ms"] == "nan was measured"
    assert failed["absent"] == {}
    assert failed["latency_ms"] is None


def test_killed_supervisor_loses_at_most_the_row_in_flight(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(40))
    out = tmp_path / "out"
    written = 0
    for more in (7, 61):  # at different depths
        process = start(out, plan, QUICK_S="0.01")
        wait_for_lines(out / "journal.jsonl", more, process)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert workers
        wait_until_gone(workers)
        journal = (out / "journal.jsonl").read_bytes()
        assert journal.count(b"\n") >= max(written, more)
        written = journal.count(b"\n")
    code, summary, talk = collect(out, plan)
    assert code == 0, talk
    rows = rows_of(out)
    assert summary["rows"] == 200 - written
    assert len(rows) == 200
    assert len({(row["configuration_id"], row["repeat"]) for row in rows}) == 200
    assert len({row["campaign"] for row in rows}) == 3
    assert collect(out, plan)[1]["rows"] == 0
    campaigns = status(out)["campaigns"]
    assert [c["ended"] for c in campaigns] == ["killed", "killed", "finished", "finished"]
    assert sum(c["rows"] for c in campaigns) == 200
    done = [sum(c["rows"] for c in campaigns[: i + 1]) for i in range(len(campaigns))]
    assert [c["left"] for c in campaigns] == [200 - n for n in done]


def test_the_budget_ends_a_campaign_cleanly(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(100))
    out = tmp_path / "out"
    code, summary, talk = collect(out, plan, "--budget", "40s", clock=(1.0, 0.0))
    assert code == 0, talk
    assert summary["ended"] == "budget"
    assert 30 < summary["rows"] <= 40
    assert summary["left"] == 500 - summary["rows"]
    assert f"{summary['left']} points left" in talk
    assert len(rows_of(out)) == summary["rows"]
    names = sorted(path.name for path in out.rglob("*") if path.is_file())
    campaign = f"{summary['campaign']}.json"
    assert names == sorted([campaign, "shard-0000.parquet"])


@pytest.mark.nightly(part="processes")
def test_a_hanging_point_does_not_outlast_the_budget(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", {"steady": (1,), "hangs": (1,)})
    code, summary, talk = collect(tmp_path / "out", plan, "--budget", "20s", clock=(1.0, 5.0))
    assert code == 0, talk
    assert (summary["ended"], summary["rows"], summary["left"]) == ("budget", 1, 1)


@pytest.mark.nightly(part="processes")
def test_limit_and_shares(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(4, (1, 2)))
    code, summary, _ = collect(tmp_path / "a", plan, "--limit", "3")
    assert (code, summary["ended"], summary["rows"], summary["left"]) == (0, "limit", 3, 5)
    models = set()
    for shard in ("1/2", "2/2"):
        assert collect(tmp_path / "b", plan, "--shard", shard)[0] == 0
        found = {row["model"] for row in rows_of(tmp_path / "b")} - models
        assert len(found) == 2
        models |= found


def test_interrupt_flushes_and_exits_130(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(100))
    out = tmp_path / "out"
    process = start(out, plan, QUICK_S="0.05")
    wait_for_lines(out / "journal.jsonl", 5, process)
    process.send_signal(signal.SIGINT)
    code, summary, _ = finish(process)
    assert (code, summary["ended"]) == (130, "SIGINT")
    assert not (out / "journal.jsonl").exists()
    assert len(rows_of(out)) == summary["rows"] >= 5


@pytest.mark.nightly(part="processes")
def test_interrupted_twice_drops_the_point_in_flight(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", {"steady": (1,), "hangs": (1,)})
    flag = tmp_path / "hanging"
    process = start(tmp_path / "out", plan, HANGING_FLAG=str(flag))
    while not flag.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    for words in ("finishing the point", "dropping the point"):
        process.send_signal(signal.SIGINT)
        wait_for_words(process, words)
    code, summary, _ = finish(process)
    assert (code, summary["rows"], summary["left"]) == (130, 1, 1)


@pytest.mark.nightly(part="processes")
def test_failures_are_tried_again_only_when_asked(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    plan = write_plan(tmp_path / "plan.jsonl", {"hangs_once": (1, 2), "steady": (1,)})
    out = tmp_path / "out"
    words = ("--timeout-s", "1.5")
    assert collect(out, plan, *words, HANG_FLAG=str(flag))[1]["statuses"]["timeout"] == 1
    flag.unlink()
    assert collect(out, plan, *words, HANG_FLAG=str(flag))[1]["rows"] == 0
    summary = collect(out, plan, *words, "--retry-failed", HANG_FLAG=str(flag))[1]
    assert summary["statuses"] == {"ok": 2}
    assert len(rows_of(out)) == 5


@pytest.mark.nightly(part="processes")
def test_one_collector_for_a_folder_and_one_for_a_device(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(100))
    first = start(tmp_path / "one", plan, QUICK_S="0.05")
    wait_for_lines(tmp_path / "one" / "journal.jsonl", 1, first)
    others = [start(tmp_path / name, plan) for name in ("one", "two")]
    for other, what in zip(others, ("folder ", "device cpu"), strict=True):
        code, summary, talk = finish(other)
        assert code == 1
        assert summary["error"]["type"] == "LockedError"
        assert summary["error"]["message"].startswith(what)
        assert f"pid {first.pid}" in talk
    first.kill()
    first.communicate()
    assert collect(tmp_path / "two", plan, "--limit", "1")[0] == 0


@pytest.mark.nightly(part="processes")
def test_a_lost_device_ends_the_campaign_and_keeps_everything(tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", {"steady": (1, 2, 4), "steady:2": (1,)})
    flag = str(tmp_path / "flag")
    code, summary, talk = collect(tmp_path / "out", plan, bench="LosesDeviceBench", LOST_FLAG=flag)
    assert code == 1
    assert (summary["ended"], summary["rows"], summary["left"]) == ("device lost", 2, 2)
    assert "no CUDA-capable device" in talk
    assert "Traceback" in (tmp_path / "out" / "worker.log").read_text()
    assert [r["status"] for r in rows_of(tmp_path / "out")] == ["ok", "crash"]


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield folder
    stop_all()  # nothing can be unmounted that somebody uses
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.nightly(part="processes")
def test_a_full_disk_ends_the_campaign_with_a_valid_journal(tiny_disk, tmp_path):
    plan = write_plan(tmp_path / "plan.jsonl", steady(100))
    code, summary, talk = collect(tiny_disk, plan, "--disk-wait-s", "1")
    assert code == 1
    assert summary["ended"] == "storage failed"
    assert "No space left on device" in talk
    assert str(tiny_disk) in talk
    kept = rows_of(tiny_disk)
    assert len(kept) == summary["rows"] > 10
    # The same command goes on elsewhere: here after making room.
    subprocess.run(["mount", "-o", "remount,size=4m", str(tiny_disk)], check=True)
    code, summary, talk = collect(tiny_disk, plan)
    assert (code, summary["rows"]) == (0, 500 - len(kept)), talk
    assert len(rows_of(tiny_disk)) == 500


@pytest.mark.nightly(part="processes")
def test_a_full_disk_is_waited_for(tiny_disk, tmp_path):
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(200 * 1024))
    plan = write_plan(tmp_path / "plan.jsonl", steady(8))
    process = start(tiny_disk, plan, "--disk-wait-s", "60")
    wait_for_words(process, "waiting")
    ballast.unlink()
    code, summary, talk = finish(process)
    assert (code, summary["rows"]) == (0, 40), talk
    assert len(rows_of(tiny_disk)) == 40


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def wait_until_gone(pids: list[int]) -> None:
    """Wait for workers to follow their supervisor; if they do not, the test times out here."""
    while any(Path(f"/proc/{pid}/cmdline").exists() and alive(pid) for pid in pids):
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
