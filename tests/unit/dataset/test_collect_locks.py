"""Locks: by hardware and not by name, and dropped by the kernel."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time

import pytest

from dataset.collect.errors import CollectError, LockedError
from dataset.collect.locks import device_key, lock_device, lock_folder
from tests import fake_nvml

from .collect_runs import ROOT, collect, start, steady, wait_for_lines, write_plan

KEY = "import sys; from dataset.collect.locks import device_key; print(device_key(sys.argv[1]))"


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("DIPPM_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    """The environment of a process that sees two fake GPUs, the first with MIG slices."""
    if fake_nvml.compiler() is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    answers = folder / "answers"
    answers.write_text("gpus 2\nmig 3\n")
    return fake_nvml.environment(fake_nvml.build(folder), answers)


def key_of(device: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", KEY, device],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_gpu_is_known_by_its_uuid_however_it_is_named(gpus):
    first, second = fake_nvml.GPU_UUID, fake_nvml.SECOND_GPU_UUID
    assert key_of("cuda:0", gpus) == key_of("cuda", gpus) == first
    assert key_of("cuda:1", gpus) == second
    assert key_of("cuda:0", {**gpus, "CUDA_VISIBLE_DEVICES": "1"}) == second
    assert key_of("cuda:1", {**gpus, "CUDA_VISIBLE_DEVICES": "1,0"}) == first
    assert key_of("cuda:0", {**gpus, "CUDA_VISIBLE_DEVICES": second}) == second


def test_slices_share_the_lock_of_their_gpu(gpus):
    sliced = {**gpus, "CUDA_VISIBLE_DEVICES": fake_nvml.SLICE_UUID}
    assert key_of("cuda:0", sliced) == fake_nvml.GPU_UUID


def test_a_gpu_that_is_not_there(gpus):
    done = subprocess.run(
        [sys.executable, "-c", KEY, "cuda:7"], cwd=ROOT, env=gpus, capture_output=True, text=True
    )
    assert "CollectError: there is no cuda:7" in done.stderr


def test_without_nvml_the_name_in_the_environment_counts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    assert device_key("cuda:1") == "gpu-GPU-abc"
    assert device_key("cuda:2") == "gpu-2"
    assert device_key("cpu") == "cpu"


def test_a_collector_of_another_folder_waits_for_the_gpu(gpus, locks, tmp_path):
    locks.mkdir()
    path = locks / f"{fake_nvml.GPU_UUID}.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    plan = write_plan(tmp_path / "plan.jsonl", {"steady": (1,)})
    code, summary, talk = collect(tmp_path / "out", plan, "--device", "cuda:0", **gpus)
    holder.kill()
    holder.communicate()
    assert code == 1
    assert summary["error"]["type"] == "LockedError"
    assert f"pid {holder.pid}" in talk


HOLD = """
import sys, time
from pathlib import Path
from dataset.collect.locks import Lock
held = Lock(Path(sys.argv[1]), "device")
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_ends_with_its_process(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "collector.lock")],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(LockedError, match=rf"in use by another collector \(pid {holder.pid}\)"):
        lock_folder(tmp_path)
    holder.kill()
    holder.communicate()
    lock_folder(tmp_path).close()


def test_the_lock_of_a_folder_leaves_no_file_and_no_gap(tmp_path):
    """Whoever waits on a file that its holder removes must not believe to hold the folder."""
    path = tmp_path / "collector.lock"
    first = lock_folder(tmp_path)
    waiting = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    time.sleep(0.7)  # it waits on the first file
    first.close()
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "held\n"
    assert path.exists()
    with pytest.raises(LockedError, match=f"pid {waiting.pid}"):
        lock_folder(tmp_path)
    waiting.kill()
    waiting.communicate()
    lock_folder(tmp_path).close()
    assert not path.exists()


def test_a_worker_that_outlives_its_supervisor_keeps_the_device(locks):
    lock = lock_device("cpu")
    heir = subprocess.Popen(["sleep", "600"], pass_fds=[lock.handle])
    lock.close()
    with pytest.raises(LockedError):
        lock_device("cpu")
    heir.kill()
    heir.wait()
    lock_device("cpu").close()


def test_everybody_may_lock(locks):
    with lock_device("cpu") as lock:
        assert stat.S_IMODE(os.stat(locks).st_mode) == 0o1777
        assert stat.S_IMODE(os.stat(lock.path).st_mode) == 0o666


def test_a_link_in_place_of_a_lock_is_not_followed(locks, tmp_path):
    locks.mkdir()
    target = tmp_path / "precious"
    target.write_text("kept")
    (locks / "cpu.lock").symlink_to(target)
    with pytest.raises(CollectError, match="locks cannot be kept"):
        lock_device("cpu")
    assert target.read_text() == "kept"


def test_the_supervisor_never_loads_torch(tmp_path):
    """Nor a CUDA context with it: it must survive what the driver does."""
    plan = write_plan(tmp_path / "plan.jsonl", steady(100))
    process = start(tmp_path / "out", plan, QUICK_S="0.05")
    wait_for_lines(tmp_path / "out" / "journal.jsonl", 2, process)
    with open(f"/proc/{process.pid}/maps") as maps:
        mapped = maps.read()
    process.kill()
    process.communicate()
    assert "libtorch" not in mapped
    assert "libcuda" not in mapped
