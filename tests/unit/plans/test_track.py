"""`dippm track` and `dippm plan` on the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from dippm.measure.sampler_file import read
from dippm.runs.store.folder import read_folder
from tests import fake_mps, fake_nvml
from tests.samples import sampled
from tests.unit.tracking.commands import line_of, until


def dippm(desk, *words, **more):
    given = {"capture_output": True, "text": True, "timeout": 120, **more}
    return subprocess.run(
        [sys.executable, "-m", "dippm", *words], cwd=desk.folder, env=desk.environment, **given
    )


def only_run(desk):
    (path,) = until(lambda: list(desk.spool.glob("*/end.json")), "the end of a run")
    return read_folder(path.parent)


def test_a_script_is_tracked_without_a_line_of_code(desk):
    desk.script("train.py", "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(3)")
    answer = dippm(desk, "track", "train.py", "--epochs", "5", "-e", "x", input="in")
    assert (answer.returncode, answer.stdout) == (3, "['--epochs', '5', '-e', 'x'] in\n")
    assert answer.stderr == ""
    recorded = only_run(desk)
    assert recorded.start.command[1:] == ("train.py", "--epochs", "5", "-e", "x")
    assert recorded.start.params == {"epochs": "5"}
    assert (recorded.end.status, recorded.end.exit_code) == ("failed", 3)
    assert recorded.samples


def test_any_command_with_the_options_of_radt(desk):
    words = "-e 7 -w 2 -n mine -l top+free -c - -d -".split()
    answer = dippm(desk, "track", *words, "sh", "-c", "echo $DIPPM_RUN; kill -TERM $$")
    assert answer.returncode == 128 + signal.SIGTERM
    recorded = only_run(desk)
    assert answer.stdout.strip() == str(recorded.path)
    assert (recorded.start.experiment, recorded.start.name) == ("7", "mine")
    assert (recorded.start.group, recorded.start.tags["workload"]) == ("2", "2")
    assert "host" in read(recorded.samples[0]).series


def test_json_is_one_line_when_the_command_has_ended(desk):
    answer = dippm(desk, "track", "--json", "true")
    assert json.loads(answer.stdout)["status"] == "finished"


REFUSED = [
    (["none.py"], "there is no none.py"),
    (["-l", "smi", "true"], "smi"),
    (["-l", "tops", "true"], "unknown source 'tops'"),
    (["-c", "mpz", "true"], "'mpz' is not a way to share a GPU"),
    (["-d", "x", "true"], "'x' are not devices"),
    (["-d", "0", "true"], "no GPU can be used"),
]


@pytest.mark.parametrize(("words", "said"), sampled(REFUSED, pytest.mark.nightly(part="processes")))
def test_what_cannot_work_is_said_and_nothing_runs(desk, words, said):
    """T11: a listener that cannot work is an error, and not left out."""
    answer = dippm(desk, "track", *words)
    assert answer.returncode == 1
    assert said in answer.stderr
    assert not desk.spool.exists()


def test_a_plan_is_carried_out_as_radts_command_line_does(desk):
    desk.rows("1,1,,,-,-,sh,-,-c 'exit 3'", "1,2,,,-,-,echo,-,hello")
    answer = dippm(desk, "track", "plan.csv")
    assert answer.returncode == 1
    assert answer.stdout.splitlines()[0] == "[2 cpu] hello"
    assert desk.statuses() == ["FAILED 3", "FINISHED"]
    again = dippm(desk, "track", "-r", "plan.csv")
    assert "1 of 2 rows were run" in again.stdout


def test_what_a_plan_says_is_not_said_beside_it(desk):
    desk.rows("1,1,,,-,-,echo,-,hello")
    answer = dippm(desk, "track", "-d", "0", "-l", "top", "plan.csv")
    assert answer.returncode == 1
    assert "a plan says for each row its devices and listeners" in answer.stderr
    assert desk.statuses() == ["PENDING"]


def test_the_commands_on_a_plan(desk):
    desk.rows("1,1,,,-,-,echo,-,hello", "1,2,,,-,-,false,-,")
    shown = dippm(desk, "plan", "run", "--dry-run", "plan.csv")
    assert "(1 cpu) echo   echo hello" in shown.stdout
    assert not desk.spool.exists()
    document = json.loads(dippm(desk, "plan", "run", "plan.csv", "--json").stdout)
    assert document["ran"] == [1, 2]
    assert [row["status"] for row in document["rows"]] == ["FINISHED", "FAILED"]
    shown = dippm(desk, "plan", "show", "plan.csv")
    assert "2 rows: 1 finished, 1 failed" in shown.stdout
    assert document["rows"][0]["run"][:8] in shown.stdout
    held = json.loads(dippm(desk, "plan", "show", "plan.csv", "--json").stdout)
    assert held["rows"] == document["rows"]
    again = dippm(desk, "plan", "run", "plan.csv")
    assert again.stdout.startswith("nothing was left to run")
    assert "--rerun-failed" in again.stdout
    assert again.returncode == 1
    assert dippm(desk, "plan", "recover", "plan.csv").stdout == "nothing was left\n"


@pytest.mark.nightly(part="processes")
def test_a_plan_for_another_machine_is_checked(desk):
    desk.script("model.py", "")
    rows = [f"1,1,,,{gpu},3g.20gb,model.py,smi+dcgmi,a" for gpu in (0, 0, 3)]
    desk.rows(*rows, "1,2,,,1+2,mps,model.py,smi,")
    fine = dippm(desk, "plan", "check", "plan.csv", "--assume", "a100x4")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert fine.stdout.count("model.py") == 8
    for assumed, more, said in (
        ("a100x2", "", "there is no GPU 3"),
        ("h100", "", "there is no GPU 3"),
        ("a100x4", "1,1,,,0,3g.20gb,model.py,smi,", "do not fit together"),
        ("a100x4", "1,3,,,0,9g.99gb,model.py,smi,", "unknown MIG profile of A100-40GB"),
        ("a100x4", "1,3,,,0,-,model.py,smj,", "smj"),
        ("rtx3090x4", "", "has no MIG slices"),
        ("a100x0", "", "is not a set of GPUs of one machine"),
    ):
        desk.rows(*rows, *([more] if more else []))
        wrong = dippm(desk, "plan", "check", "plan.csv", "--assume", assumed)
        assert (wrong.returncode, said in wrong.stderr) == (1, True), (assumed, wrong.stderr)
    assert not desk.spool.exists()


def test_an_error_in_a_plan_is_one_document(desk):
    desk.plan.write_text("Experiment,Workloads,File\n")
    answer = dippm(desk, "plan", "run", "plan.csv", "--json")
    error = json.loads(answer.stdout)["error"]
    assert answer.returncode == 1
    assert error["type"] == "UnknownNameError"
    assert error["hint"].startswith("Did you mean Workload?")


def test_interrupted_it_exits_as_the_signal_says(desk):
    desk.rows("1,1,,,-,-,sh -c,-,'echo begun; sleep 1000'")
    process = subprocess.Popen(
        [sys.executable, "-m", "dippm", "plan", "run", "plan.csv"],
        cwd=desk.folder,
        env=desk.environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert line_of(process) == "[1 cpu] begun"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert desk.statuses() == ["INTERRUPTED"]


@pytest.mark.skipif(fake_nvml.compiler() is None, reason="needs a C compiler")
class TestOnAFakeGpu:
    @pytest.fixture
    def gpu(self, desk, tmp_path):
        library = fake_nvml.build(tmp_path)
        answers = tmp_path / "answers"
        answers.write_text("gpus 2\nmig_mode 1\nmig_only 1\n")
        programs = fake_mps.put(tmp_path / "programs")
        desk.environment |= {
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_NVML": str(answers),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        desk.environment.pop("CUDA_VISIBLE_DEVICES", None)
        return desk

    def test_its_devices_are_named_by_uuid(self, gpu):
        answer = dippm(gpu, "track", "-d", "0", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert answer.stdout.strip() == fake_nvml.GPU_UUID
        assert only_run(gpu).start.tags["devices"] == "0"

    def test_a_run_of_a_plan_begins_with_the_slowdown_of_rows_that_share(self, gpu, onnx_file):
        shutil.copy(onnx_file, gpu.folder / "net.onnx")
        head = "Experiment,Workload,Devices,Collocation,File,Model\n"
        rows = 2 * "1,1,0,mps,true,net.onnx --batch 8 --device A100\n" + 2 * "1,2,0,mps,true,\n"
        gpu.plan.write_text(head + rows)
        answer = dippm(gpu, "plan", "run", "plan.csv")
        assert answer.returncode == 0, answer.stderr
        lines = answer.stderr.splitlines()
        assert lines[0].endswith(" by mps, predicted:")
        assert [" ms, × " in line for line in lines[1:3]] == [True, True]
        assert lines[1].split()[0] == "0_A_mps"
        assert "says nothing of row" not in answer.stderr, "rows that name no model ask for nothing"
        quiet = dippm(gpu, "plan", "run", "plan.csv", "--quiet")
        assert "predicted" not in quiet.stderr

    def test_a_slice_is_made_and_gone_afterwards(self, gpu):
        words = ["-d", "1", "-c", "3g.20gb", "-l", "-", "sh", "-c"]
        answer = dippm(gpu, "track", *words, "echo $CUDA_VISIBLE_DEVICES; exit 5")
        assert answer.returncode == 5, answer.stderr
        assert answer.stdout.startswith("MIG-")
        assert not fake_nvml.instances(gpu.folder / "answers").read_text()
        assert only_run(gpu).start.tags["mig.slice"].startswith("3g.20gb")

    def test_an_ignored_signal_stays_ignored(self, gpu):
        """As under nohup; what asks it to end is the test, once the command has gone on."""
        code = "trap 'exit 9' TERM; kill -HUP $$; echo began; while :; do sleep 0.1; done"
        track = [sys.executable, "-m", "dippm", "track", "-d", "0", "-c", "mps", "-l", "-"]
        words = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *track, "sh", "-c", code]
        process = subprocess.Popen(
            words,
            cwd=gpu.folder,
            env=gpu.environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert line_of(process) == "began"
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        with open(f"/proc/{process.pid}/status") as status:
            (ignored,) = (line for line in status if line.startswith("SigIgn:"))
        mask = int(ignored.split()[1], 16)
        assert all(mask >> number - 1 & 1 for number in (signal.SIGHUP, signal.SIGINT))
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 9
        assert only_run(gpu).end.exit_code == 9

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_a_server_is_ended_with_the_command(self, gpu, number):
        words = ["track", "-d", "0", "-c", "mps", "-l", "-", "sh", "-c"]
        words.append("echo $CUDA_MPS_PIPE_DIRECTORY; exec sleep 1000")
        process = subprocess.Popen(
            [sys.executable, "-m", "dippm", *words],
            cwd=gpu.folder,
            env=gpu.environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        pipe = line_of(process)
        assert os.path.isdir(pipe)
        process.send_signal(number)
        process.communicate(timeout=60)
        recorded = only_run(gpu)
        assert recorded.end.status == "interrupted"
        if number == signal.SIGKILL:
            assert os.path.isdir(pipe)
            said = dippm(gpu, "plan", "recover").stdout
            assert said.startswith("command-")
        else:
            assert process.returncode == 128 + signal.SIGTERM
        assert not os.path.isdir(pipe)
        assert dippm(gpu, "plan", "recover").stdout == "nothing was left\n"
