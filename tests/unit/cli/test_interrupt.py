"""Ctrl-C at a moment that is chosen by what is being done then, not by the clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
AT_A_MODULE = """
import os, select, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
if os.environ["INTERRUPT_AT"] == "select" and any("tracking.command" in w for w in sys.orig_argv):
    wait = select.select
    def interrupted(*words):
        select.select = wait
        os.kill(os.getpid(), signal.SIGINT)
        return wait(*words)
    select.select = interrupted
"""


@pytest.fixture
def interrupted(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(AT_A_MODULE)

    def run(moment, *words):
        paths = [str(tmp_path / "site"), str(ROOT), *(p for p in sys.path if p)]
        more = {"INTERRUPT_AT": moment, "PYTHONPATH": os.pathsep.join(paths)}
        more |= {"DIPPM_SPOOL": str(tmp_path / "spool"), "DIPPM_ATTACH": "no"}
        return subprocess.run(
            [sys.executable, "-m", "dippm", *map(str, words)],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_while_modules_are_imported(interrupted, onnx_file):
    predict, compare = ("predict", onnx_file), ("compare", onnx_file)
    for moment, words in (
        ("dippm.errors", predict),
        ("dippm.cli", predict),
        ("typer", compare),
        ("dippm.cli.app", ("explore", "space.yaml")),
        ("dippm.cli.serve", ("ui",)),
        ("dippm.cli.run", ("run", "true")),
        ("dippm.cli.commands", predict),
        ("numpy", predict),
        ("dippm.model.graph.builder", compare),
        ("rich.table", predict),
        ("dippm.runs.tracking.command", ("run", "true")),
    ):
        done = interrupted(moment, *words)
        assert done.returncode in (130, -signal.SIGINT), (moment, done)
        assert "Traceback" not in done.stderr, (moment, done.stderr)
        assert "KeyboardInterrupt" not in done.stderr, (moment, done.stderr)
        assert len(done.stderr.splitlines()) <= 1, (moment, done.stderr)


def test_before_a_command_is_started_there_is_no_run(interrupted, tmp_path):
    done = interrupted("select", "run", "touch", tmp_path / "started")
    assert done.returncode == 130, done
    assert done.stderr == ""
    assert not (tmp_path / "started").exists()
    assert list((tmp_path / "spool").glob("*/*")) == []


FINALISER = """
from dippm.base import interrupt
import signal
class Ends:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt.end_at_once()
with interrupt.raised():
    Ends()
    print("went on")
"""


def test_where_nothing_can_be_raised():
    done = subprocess.run(
        [sys.executable, "-c", FINALISER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_it_stays_ignored_and_a_host_keeps_its_own(monkeypatch):
    from dippm.base import interrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        for disposition in (signal.SIG_IGN, lambda *_: None):
            signal.signal(signal.SIGINT, disposition)
            interrupt.end_at_once()
            with interrupt.raised():
                assert signal.getsignal(signal.SIGINT) is disposition
            assert signal.getsignal(signal.SIGINT) is disposition
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert not interrupt.starts_command()
    monkeypatch.setattr(sys, "argv", ["/usr/bin/dippm"])
    assert interrupt.starts_command()
