"""MIG slices on a fake driver: made and destroyed, come what may; what others made is left."""

from __future__ import annotations

import signal

import pytest

from tests.fake_nvml import GPU_UUID
from tests.samples import sampled
from tests.unit.colocation.machine import REFUSED

ON = "mig_mode 1"
TWO = '("0",), "3g.20gb", 2'
OURS = ["gi 0 1 9 0 4", "ci 0 1 0 2 0 3", "gi 0 2 9 4 4", "ci 0 2 0 2 0 3"]
THEIRS = ["gi 0 3 14 0 2", "ci 0 3 0 1 0 2"]  # 2g.10gb at 0
SHOW = """
with seated({given}, journal=journal) as seats:
    for seat in seats:
        assert seat.visible == (seat.environment["CUDA_VISIBLE_DEVICES"],)
        print(*seat.visible, seat.slice, seat.devices, seat.sharing)
        print(seat.facts["mig.before"], "|", seat.facts["mig.slice"])
"""


def test_each_run_gets_a_slice_and_none_is_left(machine):
    machine.say(ON)
    answer = machine.run(SHOW.format(given=TWO))
    lines = answer.stdout.splitlines()
    assert lines[0] == f"MIG-00010001-0000-0000-0000-00000000fa4e 3g.20gb ('{GPU_UUID}',) 3g.20gb"
    assert lines[1] == "none | 3g.20gb at 0"
    assert lines[2].startswith("MIG-00010002-")
    assert lines[3] == "none | 3g.20gb at 4"
    assert (answer.stderr, machine.layout, machine.entries) == ("", [], [])


def test_the_driver_has_them_while_the_runs_go_on(machine):
    machine.say(ON)
    process = machine.seated(TWO)
    assert machine.layout == OURS
    assert len(machine.entries) == 1
    assert process.communicate("go on\n")[0] == "over\n"
    assert (machine.layout, machine.entries) == ([], [])


def test_each_run_may_have_its_own_profile(machine):
    machine.say(ON)
    given = '("0",), ("1g.5gb", "4g.20gb", "2g.10gb")'
    answer = machine.run(SHOW.format(given=given))
    assert [line.rpartition("| ")[2] for line in answer.stdout.splitlines()[1::2]] == [
        "1g.5gb at 6",
        "4g.20gb at 0",
        "2g.10gb at 4",
    ]


def test_slices_of_others_are_gone_round_and_left(machine):
    machine.say(ON)
    machine.layout = THEIRS
    answer = machine.run(SHOW.format(given='("0",), "3g.20gb"'))
    assert "2g.10gb at 0 | 3g.20gb at 4" in answer.stdout
    assert machine.layout == THEIRS


def test_another_process_may_share_the_rest_meanwhile(machine):
    machine.say(ON)
    first = machine.seated('("0",), "3g.20gb"')
    answer = machine.run(SHOW.format(given='("0",), "4g.20gb"'))
    assert "DeviceBusy" not in answer.stderr
    assert "4g.20gb at 0" in answer.stdout
    assert "over" in first.communicate("go on\n")[0]
    assert machine.layout == []


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_in_order(machine, signal_):
    machine.say(ON)
    machine.layout = THEIRS
    process = machine.seated('("0",), "3g.20gb"')
    process.send_signal(signal_)
    process.communicate()
    code = {signal.SIGINT: (-signal.SIGINT, 130)}.get(signal_, (128 + signal_,))
    assert process.returncode in code
    assert (machine.layout, machine.entries) == (THEIRS, [])


def test_a_failing_block_leaves_nothing(machine):
    machine.say(ON)
    answer = machine.run(f"with seated({TWO}, journal=journal): raise KeyError('of the block')")
    assert answer.stderr.splitlines()[-1] == "KeyError: 'of the block'"
    assert (machine.layout, machine.entries) == ([], [])


def test_what_a_kill_left_is_undone_later_and_only_that(machine):
    machine.say(ON)
    machine.layout = THEIRS
    process = machine.seated('("0",), "3g.20gb"')
    process.kill()
    process.communicate()
    assert machine.layout == [*THEIRS, "gi 0 2 9 4 4", "ci 0 2 0 2 0 3"]
    assert machine.undo() == [f"3g.20gb at 4 of {GPU_UUID} was destroyed"]
    assert (machine.layout, machine.entries) == (THEIRS, [])
    assert machine.undo() == []


@pytest.mark.parametrize(
    "call",
    sampled(
        [
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            "nvmlGpuInstanceCreateComputeInstance",
            "nvmlComputeInstanceDestroy",
            "nvmlGpuInstanceDestroy",
        ],
        pytest.mark.nightly(part="processes"),
    ),
)
def test_a_kill_in_the_middle_of_any_change_is_undone(machine, call):
    machine.layout = THEIRS
    machine.say(ON, f"deadly {call}")
    answer = machine.run(SHOW.format(given='("0",), "3g.20gb"'))
    assert answer.returncode == -signal.SIGKILL
    assert len(machine.entries) == 1
    machine.say(ON)
    machine.undo()
    assert (machine.layout, machine.entries) == (THEIRS, [])


def test_what_a_living_process_made_is_not_undone_by_another(machine):
    machine.say(ON)
    process = machine.seated(TWO)
    (said,) = machine.undo()
    assert said.endswith(f"is left: process {process.pid}, which made it, still runs")
    assert machine.layout == OURS
    process.communicate("go on\n")
    assert machine.layout == []


@pytest.mark.parametrize(
    ("answers", "given", "kind", "words"),
    [
        (["mig_mode 0"], TWO, "CollocationError", "MIG mode of GPU-00000100"),
        (["mig_mode 1", "mig_pending 0"], TWO, "CollocationError", "waits for a reset"),
        (["mig -1"], TWO, "CollocationError", "not supported by this GPU"),
        ([ON, "mig_permission 0"], TWO, "DevicePermissionError", "refuses it to this user"),
        ([ON, "process 4242 1500 7"], TWO, "DeviceBusyError", "process 4242 (1,500 MiB)"),
        ([ON], '("0",), "3g.20gb", 3', "CollocationError", "does not fit on GPU-00000100"),
        ([ON, "gpus 2"], '("0", "1"), "3g.20gb"', "CollocationError", "2 GPUs"),
        ([ON], '("0", "0"), "3g.20gb"', "CollocationError", "named twice"),
        ([ON], '("7",), "3g.20gb"', "CollocationError", "no device '7'"),
        ([ON], '("0",), "half"', "CollocationError", "'half' is not a way"),
        ([ON], '("0",), ("mps", "3g.20gb")', "CollocationError", "cannot share by 3g.20gb, mps"),
        ([ON], '("0",), ""', "CollocationError", "is in MIG mode"),
        ([ON], '("0",), "mps"', "CollocationError", "is in MIG mode"),
        ([ON, "nvmlDeviceGetGpuInstances 15"], TWO, "CollocationError", "the GPU is lost"),
    ],
)
def test_what_cannot_be_is_refused_with_a_next_step(machine, answers, given, kind, words):
    machine.say(*answers)
    told, message, hint = machine.run(REFUSED.format(given=given)).stdout.strip().split(" | ")
    assert told == kind
    assert words in message
    assert len(hint) > 20
    assert (machine.layout, machine.entries) == ([], [])


def test_an_unknown_profile_is_named_with_the_known_ones(machine):
    machine.say(ON)
    answer = machine.run(SHOW.format(given='("0",), "3g.40gb"'))
    assert "unknown MIG profile of GPU-00000100" in answer.stderr
    assert "Did you mean" in answer.stderr
    assert machine.layout == []


def test_without_a_driver_a_gpu_is_refused_and_none_is_seated(machine):
    answer = machine.run(REFUSED.format(given=TWO), LD_LIBRARY_PATH="/nowhere")
    assert "no NVIDIA driver" in answer.stdout
    answer = machine.run(
        'with seated(("-",), "3g.20gb", 2, journal=journal) as seats: print(seats)',
        LD_LIBRARY_PATH="/nowhere",
    )
    assert answer.stdout.count("environment={}, devices=()") == 2


def test_a_slice_that_cannot_be_filled_is_taken_back(machine):
    machine.layout = THEIRS
    machine.say(ON, "nvmlGpuInstanceCreateComputeInstance 23")
    assert "finds no room" in machine.run(REFUSED.format(given='("0",), "3g.20gb"')).stdout
    assert (machine.layout, machine.entries) == (THEIRS, [])


def test_nothing_is_made_where_the_journal_cannot_be_written(machine):
    machine.say(ON)
    machine.journal.write_text("a file")
    assert "cannot be written" in machine.run(REFUSED.format(given=TWO)).stdout
    assert machine.layout == []


@pytest.mark.parametrize(
    ("meanwhile", "after", "words"),
    [
        (["gi 0 1 9 0 4", "ci 0 1 0 2 0 3"], [], "at 4 of {gpu} was gone: another process"),
        ([*OURS[:2], "gi 0 6 15 6 2"], ["gi 0 6 15 6 2"], "1g.10gb at 6 of {gpu} was made"),
        (
            [*OURS[:2], "gi 0 2 9 4 4", "ci 0 2 0 0 0 1"],
            None,
            "another process has divided it since",
        ),
    ],
)
def test_a_layout_that_someone_else_changed_is_told_and_theirs_is_left(
    machine, meanwhile, after, words
):
    machine.say(ON)
    process = machine.seated(TWO)
    machine.layout = meanwhile
    out, err = process.communicate("go on\n")
    assert (out, process.returncode) == ("over\n", 0)
    assert "CollocationWarning" in err
    assert words.format(gpu=GPU_UUID) in err
    assert machine.layout == (meanwhile[2:] if after is None else after)
    assert machine.entries == []


def test_a_slice_that_others_removed_before_is_told(machine):
    machine.say(ON)
    machine.layout = THEIRS
    process = machine.seated('("0",), "3g.20gb"')
    machine.layout = [line for line in machine.layout if line not in THEIRS]
    _, err = process.communicate("go on\n")
    assert f"2g.10gb at 0 of {GPU_UUID} was removed meanwhile" in err
    assert machine.layout == []


def test_a_slice_in_use_is_kept_for_another_try(machine):
    machine.say(ON)
    process = machine.seated('("0",), "3g.20gb"')
    machine.say(ON, "process 4242 1500 2")
    out, err = process.communicate("go on\n")
    assert out == ""
    assert "it is in use, process 4242 (1,500 MiB)" in err
    assert "colocation.undo" in err
    assert len(machine.entries) == 1
    machine.say(ON)
    assert machine.undo() == [f"3g.20gb at 4 of {GPU_UUID} was destroyed"]
    assert (machine.layout, machine.entries) == ([], [])


def test_a_slice_that_is_just_being_left_is_waited_for(machine):
    machine.say(ON)
    process = machine.start(
        "instance_removal.PATIENCE_S = 60.0\n"
        "pause = instance_removal.time.sleep\n"
        "def sleep(seconds): print('waits', flush=True); pause(seconds)\n"
        "instance_removal.time.sleep = sleep\n"
        "with seated(('0',), '3g.20gb', journal=journal):\n"
        "    print('seated', flush=True); sys.stdin.readline()\n"
    )
    assert process.stdout.readline() == "seated\n"
    machine.say(ON, "process 4242 1500 2")
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == "waits\n"
    machine.say(ON)
    assert process.wait(60) == 0
    assert machine.layout == []


def test_a_slice_of_someone_else_is_a_device_like_another(machine):
    machine.say(ON)
    machine.layout = THEIRS
    code = """
with seated(("MIG-00010003-0000-0000-0000-00000000fa4e",), "", 2, journal=journal) as seats:
    print(*{seat.environment["CUDA_VISIBLE_DEVICES"] for seat in seats}, seats[0].slice)
"""
    assert machine.run(code).stdout == "MIG-00010003-0000-0000-0000-00000000fa4e 2g.10gb\n"
    assert machine.layout == THEIRS
