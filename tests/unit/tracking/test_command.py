"""A command under `dippm run` is the command: words, exit code, streams, terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pexpect
import pytest

from tests.unit.tracking import commands
from tests.unit.tracking.commands import ended, environment, line_of, run, samples, start

ECHO = "import sys; print(sys.argv[1:]); sys.stdout.flush()"


def test_words_arrive_as_given(tmp_path):
    given = ["", "a b", "'", '"', "*", "$HOME", "--", "-x", "--json", "\n", "ü", "a\udcffb"]
    answer = run(tmp_path, sys.executable, "-c", ECHO, *given)
    assert answer.stdout.decode() == f"{given}\n"
    assert answer.stderr == b""
    assert ended(tmp_path).start.command == (sys.executable, "-c", ECHO, *given)


@pytest.mark.parametrize(
    ("script", "code", "recorded", "status"),
    [
        ("exit 0", 0, 0, "finished"),
        ("exit 3", 3, 3, "failed"),
        ("exit 255", 255, 255, "failed"),
        ("kill -9 $$", 137, -9, "failed"),
        ("kill -15 $$", 143, -15, "failed"),
    ],
)
def test_the_exit_code_is_the_command_s(tmp_path, script, code, recorded, status):
    assert run(tmp_path, "sh", "-c", script).returncode == code
    end = ended(tmp_path).end
    assert (end.exit_code, end.status) == (recorded, status)


def test_streams_are_the_command_s_own(tmp_path):
    process = start(tmp_path, "sh", "-c", "echo one; read x; echo $x >&2; cat", stdin=-1)
    assert line_of(process) == "one"  # while it goes on: nothing is held back
    out, err = process.communicate(b"two\nthree\nfour")
    assert (out, err, process.returncode) == (b"three\nfour", b"two\n", 0)


def test_a_pipeline_and_a_reader_that_goes(tmp_path):
    script = "yes | head -n 100000 | wc -l"
    assert run(tmp_path, "sh", "-c", script).stdout.split() == [b"100000"]
    shell = f"{sys.executable} -c '{commands.START}' '{{}}' yes | head -n 1"
    answer = subprocess.run(
        ["bash", "-c", f'{shell}; echo "${{PIPESTATUS[0]}}"'],
        env=environment(tmp_path / "other"),
        capture_output=True,
        timeout=60,
    )
    assert answer.stdout.split() == [b"y", b"141"]  # SIGPIPE ends it as it would alone


def test_a_compiled_program(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "work.c"
    source.write_text("int main(int n, char **w) { return n + w[1][0]; }")
    subprocess.run([compiler, "-o", tmp_path / "work", source], check=True)
    assert run(tmp_path / "spool", str(tmp_path / "work"), "\x05").returncode == 7
    spool = tmp_path / "spool"
    commands.until(lambda: ended(spool).start.environment, "what the sidecar reads meanwhile")
    assert "no Python program" in ended(spool).start.environment["absent.packages"]


def test_a_container_s_client(tmp_path):
    client = shutil.which("docker") or shutil.which("podman")
    if client is None:
        pytest.skip("no client of containers")
    alone = subprocess.run([client, "--version"], capture_output=True)
    answer = run(tmp_path, client, "--version")
    assert (answer.returncode, answer.stdout) == (alone.returncode, alone.stdout)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("no-such-command", 127, "command not found"), ("/etc/passwd", 126, "Permission denied")],
)
def test_what_cannot_be_started_is_no_run(tmp_path, name, code, said):
    answer = run(tmp_path, name)
    assert answer.returncode == code
    assert answer.stderr.decode() == f"dippm: {name}: {said}\n"
    assert not list(tmp_path.glob("*/start.json"))


def test_what_was_used_is_recorded(tmp_path):
    work = "x = bytearray(100 * 2**20)\nimport time\nend = time.process_time() + 0.5\n"
    work += "while time.process_time() < end: pass"
    answer = run(tmp_path, "sh", "-c", f"{sys.executable} -c '{work}'; true")
    assert answer.returncode == 0
    recorded = ended(tmp_path)
    values = {value.name: value.data for value in recorded.values}
    assert values["command.cpu_s"] >= 0.5
    assert values["command.peak_rss_mb"] >= 100
    assert values["command.wall_s"] >= 0.5
    (found,) = samples(recorded)
    tree = found.series["tree"]
    assert max(filter(None, tree.values["peak_rss_mb"])) >= 100  # of a child, not of the shell
    assert tree.values["cpu_s"][-1] >= 0.45
    assert found.end["end"] == "the watched process has ended"
    assert recorded.start.pid == found.header["pid"]


def test_what_it_depends_on_is_recorded(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    git = ["git", "-C", str(project), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / "file").write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "1"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    run(tmp_path / "spool", sys.executable, "-c", "", cwd=project)
    path = commands.folder(tmp_path / "spool")
    recorded = commands.until(
        lambda: (r := commands.read_folder(path)) and "git_commit" in r.start.environment and r,
        "the environment",
    )
    held = recorded.start.environment
    assert (held["git_commit"], held["git_changed"]) == (head.strip(), "no")
    assert held["python"] == sys.executable
    from importlib.metadata import version

    assert f"pytest=={version('pytest')}" in held["packages"].splitlines()
    assert held["host_cores"] == str(os.cpu_count())
    assert "driver" in held or "NVIDIA" in held["absent.driver"]


def test_programs_join_the_run(tmp_path):
    code = "import dippm\nwith dippm.span('inside'): pass"
    assert run(tmp_path, sys.executable, "-c", code).returncode == 0
    recorded = ended(tmp_path)
    assert [span.name for span in recorded.spans] == ["inside"]
    found = samples(recorded)[0].header
    assert found["monotonic_ns"] <= recorded.end.at.monotonic_ns


def test_two_runs_on_one_spool(tmp_path):
    pair = [start(tmp_path, "sh", "-c", "echo ready; read x", stdin=-1) for _ in range(2)]
    assert [line_of(process) for process in pair] == ["ready", "ready"]
    assert [process.communicate(b"\n")[0] for process in pair] == [b"", b""]
    assert len(list(tmp_path.glob("*/end.json"))) == 2


def test_the_command_line(tmp_path):
    options = ["--name", "n", "-e", "x", "--tag", "a=1", "--tag", "b", "--param", "lr=0.1=2"]
    command = [sys.executable, "-m", "dippm", "run", "--json", *options, "--metrics", "tree,rapl"]
    answer = subprocess.run(
        [*command, "--", "sh", "-c", 'echo "$@"; exit 5', "sh", "--json", "--", "-h"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 5, answer.stderr
    said, document = answer.stdout.splitlines()
    assert said == "--json -- -h"
    told = json.loads(document)
    recorded = ended(tmp_path)
    assert (told["run"], told["exit_code"], told["status"]) == (recorded.start.uuid, 5, "failed")
    assert (told["trouble"], answer.stderr) == ("", "")
    begun = recorded.start
    assert (begun.name, begun.experiment) == ("n", "x")
    assert dict(begun.tags) == {"a": "1", "b": ""}
    assert dict(begun.params) == {"lr": "0.1=2"}
    assert set(samples(recorded)[0].series) == {"tree", "rapl"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--metrics", "tre"], "tree"),
        (["--hz", "0"], "samples per second"),
        (["--metrics", "tree@x"], "says no rate"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(tmp_path, options, said):
    command = [sys.executable, "-m", "dippm", "run", *options, "--", "true"]
    answer = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 1
    assert said in answer.stderr
    assert not list(tmp_path.iterdir())


def test_a_metric_that_is_not_here_is_absent_with_its_reason(tmp_path):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU")
    given = {"metrics": ["tree", "nvml"]}
    assert run(tmp_path, "sleep", "0.2", given=given).returncode == 0
    (found,) = samples(ended(tmp_path))
    nvml = found.series["nvml"]
    assert {value for column in nvml.values.values() for value in column} <= {None}
    assert all(reason for _, _, reason in nvml.reasons)
    assert {name for _, name, _ in nvml.reasons} == set(nvml.values)


class TestTerminal:
    """At a terminal the command has it, and so have those who share it."""

    def spawn(self, spool, command):
        child = pexpect.spawn(
            "bash",
            ["--norc", "-i"],
            env={**environment(spool), "TERM": "dumb"},
            timeout=60,
            encoding="utf-8",
        )
        child.sendline("PS1='$''> '; bind 'set enable-bracketed-paste off'")
        child.expect_exact("$> ")
        script = spool.parent / "start.py"
        script.write_text(commands.START)
        child.sendline(f"{sys.executable} {script} '{{}}' {command}")
        return child

    def test_a_terminal_stays_one(self, tmp_path):
        code = "import sys; print([f.isatty() for f in (sys.stdin, sys.stdout, sys.stderr)])"
        child = self.spawn(tmp_path / "spool", f'{sys.executable} -c "{code}"')
        child.expect_exact("[True, True, True]")
        child.expect_exact("$> ")

    def test_control_c_reaches_the_command_once(self, tmp_path):
        code = (
            "import signal, time\n"
            "c = []\n"
            "signal.signal(2, lambda *_: c.append(1))\n"
            "print('on')\n"
            "while not c: time.sleep(0.01)\n"  # `signal.pause` would miss one that came before
            "time.sleep(0.3); print('seen', len(c)); exit(9)"
        )
        child = self.spawn(tmp_path / "spool", f'{sys.executable} -uc "{code}"')
        child.expect_exact("on\r\n")
        child.sendintr()
        child.expect_exact("seen 1")
        child.expect_exact("$> ")
        child.sendline("echo code $?")
        child.expect_exact("code 9\r\n")
        assert ended(tmp_path / "spool").end.status == "interrupted"

    def test_control_z_stops_it_and_fg_goes_on(self, tmp_path):
        child = self.spawn(tmp_path / "spool", "sh -c 'echo on; read x; echo got $x'")
        child.expect_exact("on\r\n")
        child.sendcontrol("z")
        child.expect_exact("Stopped")
        child.expect_exact("$> ")
        child.sendline("fg")
        child.expect_exact("start.py")
        child.sendline("hello")
        child.expect_exact("got hello")
        child.expect_exact("$> ")
        assert ended(tmp_path / "spool").end.status == "finished"

    def test_a_pager_beside_it_keeps_the_terminal(self, tmp_path):
        reader = "import sys; sys.stdin.read(); print('key', open('/dev/tty').readline())"
        child = self.spawn(tmp_path / "spool", f'echo piped | {sys.executable} -c "{reader}"')
        child.sendline("pressed")
        child.expect_exact("key pressed")
        child.expect_exact("$> ")
