"""MPS by a stand-in that speaks the control protocol: our own server, and no other one touched."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dippm.runs.colocation.mps import Server
from tests.fake_nvml import GPU_UUID, SECOND_GPU_UUID
from tests.unit.colocation.machine import REFUSED
from tests.unit.tracking.commands import until

TWO = '("0",), "MPS", 2'
SHOW = """
with seated({given}, journal=journal) as seats:
    for seat in seats:
        for name, value in (*seat.environment.items(), *seat.facts.items()):
            print(name, value, sep="=")
    log = Path(seats[0].environment["CUDA_MPS_LOG_DIRECTORY"], "control.log")
    print(log.read_text())
"""


def folders(machine):
    return sorted(machine.tmp.glob("dippm-mps-*"))


def nothing_left(machine):
    ours = sorted({*machine.mps()} - {*machine.mps(machine.tmp / "theirs")})
    return (ours, folders(machine), machine.entries) == ([], [], [])


def test_runs_get_one_server_of_their_own_and_it_ends_with_them(machine):
    process = machine.seated(TWO)
    assert len(machine.mps()) == 2  # the daemon and its server
    (folder,) = folders(machine)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == {"log", "pipe"}
    assert process.communicate("go on\n")[0] == "over\n"
    assert nothing_left(machine)


def test_the_clients_find_it_and_the_run_says_so(machine):
    out = machine.run(SHOW.format(given=TWO)).stdout
    assert out.count(f"CUDA_VISIBLE_DEVICES={GPU_UUID}\n") == 2
    assert out.count(f"CUDA_MPS_PIPE_DIRECTORY={machine.tmp}/dippm-mps-") == 2
    assert "sharing=mps + mps" in out
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in out
    assert "set_default" not in out
    assert "Starting new server" in out
    assert nothing_left(machine)


def test_limits_are_set_at_the_server_and_for_each_client(machine):
    machine.say("gpus 2")
    out = machine.run(SHOW.format(given='("0", "1"), "mps:37.5%:4096mb"')).stdout
    assert f"CUDA_VISIBLE_DEVICES={GPU_UUID},{SECOND_GPU_UUID}" in out
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=37.5" in out
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=4096M" in out
    assert "mps.thread_percent=37.5" in out
    assert "mps.memory_limit=4096M" in out
    log = [line.partition("] ")[2] for line in out.splitlines() if " Control " in line]
    assert log[1:4] == [
        "set_default_active_thread_percentage 37.5",
        "set_default_device_pinned_mem_limit 0 4096M",
        "set_default_device_pinned_mem_limit 1 4096M",
    ]
    assert log[4].startswith("Starting new server")


def test_a_server_of_someone_else_is_not_touched(machine):
    theirs = machine.tmp / "theirs"
    (theirs / "log").mkdir(parents=True)
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(theirs), "CUDA_MPS_LOG_DIRECTORY": f"{theirs}/log"}
    environment = {**machine.environment, **own}

    def ask(command):
        words, pipes = (
            ["nvidia-cuda-mps-control"],
            {"input": f"{command}\n", "capture_output": True},
        )
        answer = subprocess.run(words, env=environment, text=True, check=True, timeout=60, **pipes)
        return answer.stdout.strip()

    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True, timeout=60)
    ask(f"start_server -uid {os.getuid()}")
    until(lambda: len(machine.mps(theirs)) == 2, "their server")
    before = sorted(machine.mps(theirs))
    assert "seats=2" in machine.run(SHOW.format(given=TWO), **own).stdout
    process = machine.seated(TWO, **own)
    process.kill()
    process.communicate()
    assert len(machine.undo()) == 1
    assert nothing_left(machine)
    assert sorted(machine.mps(theirs)) == before
    assert ask("get_server_status " + ask("get_server_list")) == "ACTIVE"
    ask("quit")
    until(lambda: not machine.mps(theirs), "their own end")


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(machine, signal_):
    process = machine.seated(TWO)
    process.send_signal(signal_)
    process.communicate()
    assert process.returncode != 0
    assert nothing_left(machine)


def test_a_failing_block_leaves_nothing(machine):
    answer = machine.run(f"with seated({TWO}, journal=journal): raise KeyError('of the block')")
    assert answer.stderr.splitlines()[-1] == "KeyError: 'of the block'"
    assert nothing_left(machine)


def test_what_a_kill_left_is_undone_later(machine):
    process = machine.seated(TWO)
    process.kill()
    process.communicate()
    assert len(machine.mps()) == 2
    (said,) = machine.undo()
    assert said == f"the MPS server of {folders_of(said)} was ended"
    assert nothing_left(machine)
    assert machine.undo() == []


def folders_of(said: str) -> str:
    return said.removeprefix("the MPS server of ").removesuffix(" was ended")


def test_a_daemon_that_crashed_is_no_trouble(machine):
    process = machine.seated(TWO)
    for pid in machine.mps():
        os.kill(pid, signal.SIGKILL)
    assert process.communicate("go on\n") == ("over\n", "")
    assert nothing_left(machine)


@pytest.mark.nightly(part="processes")
def test_a_daemon_that_does_not_listen_is_killed(machine):
    process = machine.seated(TWO, FAKE_MPS="deaf")
    assert process.communicate("go on\n")[0] == "over\n"
    assert nothing_left(machine)


def test_a_client_is_not_taken_for_the_server(machine):
    code = """
import subprocess
with seated(("0",), "mps", journal=journal) as (seat,):
    client = subprocess.Popen(["sleep", "600"], env={"PATH": "/bin:/usr/bin", **seat.environment})
print(client.poll())
client.kill()
"""
    assert machine.run(code, FAKE_MPS="deaf").stdout == "None\n"
    assert nothing_left(machine)


def test_a_server_that_does_not_come_up_is_an_error_and_leaves_nothing(machine):
    out = machine.run("mps.PATIENCE_S = 1.0\n" + REFUSED.format(given=TWO), FAKE_MPS="no server")
    kind, message, hint = out.stdout.strip().split(" | ")
    assert kind == "CollocationError"
    assert "an error occurred while initializing the server" in message  # of its log
    assert hint
    assert nothing_left(machine)


def test_without_the_program_the_error_names_it(machine, tmp_path):
    out = machine.run(REFUSED.format(given=TWO), PATH=str(tmp_path / "empty")).stdout
    assert "nvidia-cuda-mps-control was not found" in out
    assert nothing_left(machine)


def test_a_limit_that_the_daemon_refuses_is_told(machine):
    machine.say("gpus 2")
    code = "mps._limit = lambda sharing: '4096 bytes'\n"
    out = machine.run(code + REFUSED.format(given='("0",), "mps:4096mb"')).stdout
    assert "mps.memory_limit is not set" in out
    assert nothing_left(machine)


@pytest.mark.parametrize(
    "text", ["mps:0%", "mps:101%", "mps:50%:60%", "mps:0mb", "mps:", "mps:half", "mps:-5%"]
)
def test_limits_that_are_none_are_refused_before_anything_starts(machine, text):
    out = machine.run(REFUSED.format(given=f'("0",), {text!r}')).stdout
    assert "is not a way to share a GPU" in out
    assert nothing_left(machine)


def test_the_sockets_of_a_server_have_short_names(monkeypatch, tmp_path):
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    server = Server.new(("GPU-1",))
    assert not Path(server.folder).is_relative_to(deep)
    assert len(server.directories["CUDA_MPS_PIPE_DIRECTORY"] + "/control_privileged") < 108
