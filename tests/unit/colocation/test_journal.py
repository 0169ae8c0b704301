"""The journal: whose entry it is, and what is not undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dippm.runs.colocation import undo
from dippm.runs.colocation.journal import Entry, Owner, start_ticks

ON = "mig_mode 1"
OURS = ["gi 0 2 9 4 4", "ci 0 2 0 2 0 3"]


@pytest.fixture
def killed(machine):
    """A machine whose only program was killed on its slice."""
    machine.say(ON)
    process = machine.seated('("0",), "3g.20gb"')
    process.kill()
    process.communicate()
    return machine


def change(machine, **owner):
    (path,) = machine.entries
    held = json.loads(path.read_text())
    held["owner"] |= owner
    path.write_text(json.dumps(held))


def test_an_entry_of_another_boot_names_nothing_that_is_there_now(killed):
    change(killed, boot="another")
    assert killed.undo() == ["the machine was restarted since, which removed its slices"]
    assert (killed.layout, killed.entries) == (OURS, [])


def test_an_entry_of_another_machine_is_left(killed):
    change(killed, host="elsewhere")
    (said,) = killed.undo()
    assert said.endswith("it belongs to elsewhere, undo it there")
    assert (killed.layout, len(killed.entries)) == (OURS, 1)


def test_a_process_that_got_the_number_anew_is_not_the_owner(killed):
    change(killed, pid=os.getpid())
    assert killed.undo()[0].endswith("was destroyed")
    assert killed.layout == []


def test_without_a_driver_the_entry_is_kept(killed):
    answer = killed.run("print(*undo(journal))", LD_LIBRARY_PATH="/nowhere")
    assert "is left: no GPU can be used" in answer.stdout
    assert len(killed.entries) == 1
    killed.undo()
    assert (killed.layout, killed.entries) == ([], [])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 9}', "\x00"])
def test_a_damaged_entry_is_named_and_does_not_hide_the_others(killed, text):
    (killed.journal / "seats-0.json").write_text(text)
    said = killed.undo()
    assert len(said) == 2
    assert any("seats-0.json cannot be read" in line for line in said)
    assert killed.layout == []


def test_a_journal_that_is_missing_names_nothing(tmp_path):
    assert undo(tmp_path / "none") == []


def test_an_entry_is_read_as_it_was_written(tmp_path):
    entry = Entry.new(tmp_path / "deep" / "journal")
    entry.servers.append({"folder": "/nowhere", "visible": ["GPU-1"]})
    entry.write()
    again = Entry.read(entry.path)
    assert (again.owner, again.servers, again.slices) == (Owner.here(), entry.servers, [])
    assert again.owner.lives()


def test_an_ended_process_does_not_live():
    process = subprocess.Popen([sys.executable, "-c", ""])
    owner = Owner.here()._replace(pid=process.pid, started=start_ticks(process.pid) or 0)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.lives()  # a zombie still has its number
    process.wait()
    assert not owner.lives()
