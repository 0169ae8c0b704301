"""Processes and cores of a tree, and disks: real ones, and kernels made of files."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from dippm.measure.sources import cores, disks, processes
from dippm.measure.sources.registry import open_source
from dippm.measure.sources.tree import descendants

SPIN = "import sys, time\nprint(1, flush=True)\nwhile time.process_time() < 60: pass"


@pytest.fixture
def spin():
    """Start processes that each take a core until they are killed."""
    started = []

    def start(*more):
        process = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.read(1)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def of_new_processes():
    """Open the source of this process's tree without what a test runner's tree holds already."""
    mine = os.getpid()
    return open_source("processes", pid=mine, exclude=descendants(mine))


def place_of(source, readings, pid):
    for place in range(1, processes.PLACES + 1):
        if readings.values.get(f"process_{place}_pid") == pid:
            return place
    return None


def soon(read, reached, patience_s=60.0):
    """Read until it is reached: sources look for new processes more rarely than they are read."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        readings = read()
        if reached(readings):
            return readings
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def test_each_process_keeps_its_place(spin):
    source = of_new_processes()
    first = spin()
    found = soon(source.read, lambda r: place_of(source, r, first.pid))
    place = place_of(source, found, first.pid)
    used = found.values[f"process_{place}_cpu_s"]
    grown = soon(source.read, lambda r: r.values[f"process_{place}_cpu_s"] > used)
    assert 1 < grown.values[f"process_{place}_rss_mb"] < 200
    first.kill()
    ended = soon(source.read, lambda r: f"process_{place}_pid" not in r.values)
    assert ended.absent[f"process_{place}_cpu_s"] == processes.ENDED
    second = spin()
    later = soon(source.read, lambda r: place_of(source, r, second.pid))
    assert place_of(source, later, second.pid) != place
    source.close()


def test_a_tree_of_more_processes_than_places_says_how_many(spin):
    source = of_new_processes()
    for _ in range(processes.PLACES + 2):
        spin()
    found = soon(source.read, lambda r: r.values["more"] >= 2)
    assert len([name for name in found.values if name.endswith("_pid")]) == processes.PLACES
    source.close()


def test_cores_add_up_to_the_tree(spin, monkeypatch):
    busy = spin()
    monkeypatch.setattr(cores, "limit_cost", lambda read, least_s: read)
    source = open_source("cores", pid=busy.pid)
    first = source.read()
    assert "read again" in first.absent["core_0_percent"]
    memory = [first.values[f"core_{core}_rss_mb"] for core in range(os.cpu_count())]
    assert sum(bool(part) for part in memory) == 1  # of the one core that it was on

    def after(seconds):
        end = time.monotonic() + seconds
        before = _cpu_s(busy.pid)
        while time.monotonic() < end:
            time.sleep(0.05)
        return source.read(), _cpu_s(busy.pid) - before

    found, used_s = after(1.0)
    percent = [found.values[f"core_{core}_percent"] for core in range(os.cpu_count())]
    assert sum(percent) == pytest.approx(100 * used_s, abs=15 + 20 * used_s)
    busy.kill()
    busy.wait()
    gone = source.read()
    assert gone.absent["core_0_rss_mb"] == cores.ENDED
    assert not gone.values


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def machine(tmp_path):
    proc, sys_ = tmp_path / "proc", tmp_path / "sys"
    proc.mkdir()
    for disk in ("sda/device", "nvme0n1/device", "loop0"):
        (sys_ / "block" / disk).mkdir(parents=True)
    line = "8 0 {} 10 0 2048 0 5 0 4096 0 0 0 0\n"
    names = ("sda", "sda1", "nvme0n1", "loop0")
    (proc / "diskstats").write_text("".join(line.format(name) for name in names))
    return proc, sys_


def test_disks_are_told_one_by_one_and_together(machine):
    proc, sys_ = machine
    source = open_source("disks", proc=proc, sys=sys_)
    values = source.read().values
    assert {name.rpartition("_")[0] for name in values if name.endswith("_transfers")} == {
        "sda",
        "nvme0n1",
        "total",
    }
    assert (values["sda_transfers"], values["sda_read_mb"], values["sda_written_mb"]) == (15, 1, 2)
    assert values["total_written_mb"] == 4
    assert all(quantity.scope == "host" for quantity in source.quantities)


def test_a_disk_that_is_taken_out_is_said(machine, monkeypatch):
    proc, sys_ = machine
    monkeypatch.setattr(disks, "limit_cost", lambda read: read)
    source = open_source("disks", proc=proc, sys=sys_)
    text = (proc / "diskstats").read_text()
    (proc / "diskstats").write_text(text.replace("nvme0n1", "nvme1n1"))
    readings = source.read()
    assert not readings.values
    assert "nvme0n1 is gone" in readings.absent["total_read_mb"]


def test_a_machine_without_disks_says_so(tmp_path):
    readings = open_source("disks", proc=tmp_path, sys=tmp_path).read()
    assert "missing" in readings.absent["total_transfers"]
    (tmp_path / "diskstats").write_text("")
    (tmp_path / "block").mkdir()
    readings = open_source("disks", proc=tmp_path, sys=tmp_path).read()
    assert readings.absent["total_transfers"] == disks.NONE


def test_a_host_tells_all_that_free_does(tmp_path):
    sizes = "MemTotal 64,MemFree 8,MemAvailable 32,Buffers 2,Cached 9,SReclaimable 1,Shmem 3"
    lines = [*sizes.split(","), "SwapTotal 16", "SwapFree 4"]
    text = "".join(f"{n}: {int(mb) * 1024} kB\n" for n, mb in (line.split() for line in lines))
    (tmp_path / "meminfo").write_text(text)
    values = open_source("host", proc=tmp_path, sys=tmp_path).read().values
    assert values == {
        "memory_used_mb": 32,
        "memory_available_mb": 32,
        "swap_used_mb": 12,
        "memory_total_mb": 64,
        "memory_free_mb": 8,
        "memory_shared_mb": 3,
        "memory_buffers_mb": 2,
        "memory_cached_mb": 10,
        "swap_total_mb": 16,
        "swap_free_mb": 4,
    }
