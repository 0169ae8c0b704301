"""Plans carried out by real schedulers: what is run, when, and what stands in the plan then."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.samples import sampled
from tests.unit.plans.desks import HEADER, interrupt, lines, next_line, told
from tests.unit.tracking.commands import until


def test_rows_are_run_and_noted(desk):
    desk.script(
        "train.py", "import sys; print(sys.argv[1:], flush=True); sys.exit('bad' in sys.argv)"
    )
    desk.rows(
        "1,1,,,-,-,train.py,top,batch-size=128",
        "1,2,,,-,-,train.py,top,bad",
        "2,1,,,-,-,echo,-,hello",
    )
    before = desk.plan.read_text()
    heard = desk.run()
    assert lines(heard) == ["['--batch-size', '128']", "['bad']", "hello"]
    assert heard[-1]["ran"] == [1, 2, 3]
    assert heard[-1]["well"] is False
    assert desk.statuses() == ["FINISHED", "FAILED 1", "FINISHED"]
    rows = desk.read().rows
    expected = before
    for row in rows:
        expected = expected.replace(",,,", f",{row.status},{row.run},", 1)
    assert desk.plan.read_text() == expected

    first = desk.recorded(rows[0].run)
    assert (first.start.name, first.start.experiment) == ("(1 cpu) train.py", "1")
    assert first.start.group == "plan/1/1"
    assert first.start.params == {"batch-size": "128"}
    assert first.start.tags["row"] == "1"
    assert (first.end.status, first.end.exit_code) == ("finished", 0)
    assert first.samples
    assert desk.recorded(rows[1].run).end.exit_code == 1
    assert desk.recorded(rows[2].run).start.experiment == "2"
    assert not list(desk.state.rglob("journal.jsonl"))
    assert not list(desk.folder.glob(".plan.csv*"))


def test_finished_rows_are_skipped_and_failed_ones_repeated_on_request(desk):
    desk.script(
        "once.py",
        "import os, sys; seen = os.path.exists('seen'); open('seen', 'w'); sys.exit(not seen)",
    )
    desk.rows("1,1,,,-,-,once.py,-,", "1,2,,,-,-,true,-,")
    assert desk.run()[-1]["ran"] == [1, 2]
    assert desk.statuses() == ["FAILED 1", "FINISHED"]
    run = desk.read().rows[1].run
    again = desk.run()[-1]
    assert (again["ran"], again["skipped"], again["well"]) == ([], [1, 2], False)
    last = desk.run(rerun_failed=True)[-1]
    assert (last["ran"], last["well"]) == ([1], True)
    assert desk.statuses() == ["FINISHED", "FINISHED"]
    assert desk.read().rows[1].run == run


def test_runs_of_a_workload_start_together(desk):
    """Each waits for the other: one after the other they would wait for ever."""
    desk.script(
        "meet.py",
        "import os, sys, time\n"
        "open(sys.argv[1], 'w').close()\n"
        "end = time.monotonic() + 60\n"
        "while not os.path.exists(sys.argv[2]):\n"
        "    if time.monotonic() > end: sys.exit(3)\n"
        "    time.sleep(0.01)\n",
    )
    desk.rows("1,1,,,-,-,meet.py,-,a b", "1,1,,,-,-,meet.py,-,b a", "1,2,,,-,-,true,-,")
    heard = desk.run()
    assert heard[-1]["well"] is True
    runs = [desk.recorded(row.run) for row in desk.read().rows]
    starts = [run.start.at.monotonic_ns for run in runs]
    ends = [run.end.at.monotonic_ns for run in runs]
    assert max(starts[:2]) < min(ends[:2])
    assert starts[2] > max(ends[:2])
    assert runs[0].start.tags["letter"] == "cpu_A"
    assert runs[0].start.group == runs[1].start.group != runs[2].start.group


def test_no_run_of_a_workload_starts_before_all_are_prepared(desk):
    """The second row's process is held up while it prepares; the first waits at the gate."""
    desk.rows("1,1,,,-,-,echo,-,first", "1,1,,,-,-,echo,-,second")
    held = (
        "import dippm.runs.plans.executor as c; original = c.WorkloadExecutor._start\n"
        "def start(self, row, seat, gate):\n"
        "    original(self, row, seat, gate)\n"
        "    if row.number == 2:\n"
        "        import os, signal; os.kill(self._running[1].process.pid, signal.SIGSTOP)\n"
        "        print('{\"pid\": %d}' % self._running[1].process.pid, flush=True)\n"
        "c.WorkloadExecutor._start = start\n"
    )
    process = desk.start(held)
    pid = next_line(process, "pid")["pid"]
    until(lambda: list(desk.spool.glob("*/start.json")), "the first to prepare")
    assert desk.statuses() == ["PENDING", "PENDING"]
    released = time.monotonic_ns()
    os.kill(pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert sorted(lines(told(out))) == ["first", "second"]
    starts = [desk.recorded(row.run).start.at.monotonic_ns for row in desk.read().rows]
    assert min(starts) > released


def test_no_run_starts_without_those_that_it_was_to_start_with(desk):
    """The process of the second row is killed while it prepares: the first is sent away."""
    desk.rows("1,1,,,-,-,echo,-,first", "1,1,,,-,-,echo,-,second", "1,2,,,-,-,echo,-,third")
    killed = (
        "import os, dippm.runs.plans.executor as c; original = c.WorkloadExecutor._start\n"
        "def start(self, row, seat, gate):\n"
        "    original(self, row, seat, gate)\n"
        "    if row.number == 2: os.kill(self._running[1].process.pid, 9)\n"
        "c.WorkloadExecutor._start = start\n"
    )
    heard = desk.run(killed)
    assert lines(heard) == ["third"]
    assert {"say": "row 2 could not be prepared: LOST"} in heard
    assert (heard[-1]["ran"], heard[-1]["well"]) == ([3], False)
    assert desk.statuses() == ["PENDING", "LOST", "FINISHED"]
    assert sorted(lines(desk.run())) == ["first", "second"]
    assert desk.statuses() == ["FINISHED", "FINISHED", "FINISHED"]


def test_a_sweep_keeps_its_status_beside_it(desk):
    desk.plan = desk.folder / "sweep.yml"
    desk.plan.write_text("file: echo\nmethod: random\nparameters: {lr: [1, 2]}\n# kept\n")
    before = desk.plan.read_bytes()
    heard = desk.run()
    assert sorted(lines(heard)) == ["--lr 1", "--lr 2"]
    assert desk.plan.read_bytes() == before
    assert desk.statuses() == ["FINISHED", "FINISHED"]
    assert (desk.folder / "sweep.yml.status.csv").read_text().count("FINISHED") == 2
    assert desk.run()[-1]["ran"] == []


def test_a_plan_of_several_commands(desk):
    """A file that may be executed, a program with its first words, a script beside the plan."""
    below = desk.folder / "below"
    below.mkdir()
    desk.plan = below / "plan.csv"
    (below / "beside.py").write_text("print('beside')")
    path = desk.folder / "own.sh"
    path.write_text("#!/bin/sh\necho own $1\n")
    path.chmod(0o755)
    desk.rows("1,1,,,-,-,beside.py,-,", "1,2,,,-,-,own.sh,-,x", "1,3,,,-,-,sh -c,-,'echo a b'")
    assert lines(desk.run()) == ["beside", "own x", "a b"]


def test_the_scheduling_path_needs_no_data_frames(desk):
    """T1: radT ends at its start with another pandas; here a plan needs none, nor numpy."""
    desk.rows("1,1,,,-,-,true,-,")
    before = (
        "import sys\nfor name in ('pandas', 'numpy', 'mlflow', 'torch'): sys.modules[name] = None\n"
    )
    assert desk.run(before)[-1]["well"] is True


def test_two_runs_in_one_folder_have_folders_of_their_own(desk):
    """T9: in radT's folder of a run lies one file of orders, which a second run writes over."""
    desk.script("say.py", "import os; print(os.environ['DIPPM_RUN'])")
    desk.rows("1,1,,,-,-,say.py,-,", "1,1,,,-,-,say.py,-,")
    before = sorted(desk.folder.iterdir())
    folders = set(lines(desk.run()))
    assert len(folders) == 2
    assert {os.path.basename(folder) for folder in folders} == {row.run for row in desk.read().rows}
    assert sorted(path for path in desk.folder.iterdir() if path not in before) == [
        desk.spool,
        Path(desk.environment["DIPPM_LIVE"]),
        desk.state,
    ]


def test_the_plan_is_whole_whenever_somebody_looks(desk):
    """T9: radT deletes the table before it writes the new one."""
    desk.script(
        "look.py",
        "import sys, time\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end: assert open('plan.csv').read().count(chr(10)) == 5\n",
    )
    desk.rows("1,1,,,-,-,look.py,-,", *["1,1,,,-,-,true,-,"] * 3)
    assert desk.run()[-1]["well"] is True


def test_what_a_row_costs_beside_its_command(desk):
    """T6: radT holds 330 MB beside a run; all of ours together no more than 50."""
    desk.script(
        "weigh.py",
        """
import os
def mb(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024
def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
row = os.getppid()
beside = [pid for pid in children(row) if pid != os.getpid()]
print(mb(row), sum(map(mb, beside)), len(beside), flush=True)
""",
    )
    desk.rows("1,1,,,-,-,weigh.py,-,")
    (line,) = lines(desk.run())
    row, sidecar, count = map(float, line.split())
    assert count >= 1
    assert 1 < row + sidecar < 50


def test_a_read_only_plan(desk):
    desk.rows("1,1,,,-,-,true,-,", "1,2,,,-,-,false,-,")
    desk.plan.chmod(0o444)
    before = desk.plan.read_bytes()
    heard = desk.run()
    said = "the plan may not be written: the status of its rows goes to plan.csv.status.csv"
    assert {"say": said} in heard
    assert desk.plan.read_bytes() == before
    assert desk.statuses() == ["FINISHED", "FAILED 1"]
    assert desk.run()[-1]["ran"] == []


def test_a_plan_without_a_place_for_the_status(desk):
    desk.plan.write_text("Experiment,Workload,File\n1,1,true\n")
    assert desk.run()[-1]["well"] is True
    assert desk.plan.read_text().endswith("1,1,true\n")
    assert desk.statuses() == ["FINISHED"]


def test_a_plan_that_is_a_link_stays_one(desk):
    real = desk.folder / "real.csv"
    real.write_text(HEADER + "1,1,,,-,-,true,-,\n")
    real.chmod(0o640)
    desk.plan.symlink_to(real)
    assert desk.run()[-1]["well"] is True
    assert desk.plan.is_symlink()
    assert "FINISHED" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    sampled(
        [
            ("1,1,,,-,-,none.py,-,", "PlanError", "row 2: there is no none.py"),
            ("1,1,,,-,-,no-such-program,-,", "PlanError", "row 2: there is no no-such-program"),
            (
                "1,1,,,-,-,plan.csv,-,",
                "PlanError",
                "row 2: plan.csv is a plan",
            ),
            ("1,1,,,-,-,true,tops,", "UnknownNameError", "row 2: unknown source 'tops'"),
            ("1,1,,,-,-,true,smi,", "ListenerError", "row 2: "),
            ("1,1,,,7,-,true,-,", "CollocationError", "row 2: "),
            ("1,1,,,-,9g.1gbx,true,-,", "CollocationError", "line 3: '9g.1gbx' is not a way"),
        ],
        pytest.mark.nightly(part="processes"),
        every=7,
    ),
)
def test_what_cannot_be_run_is_said_before_anything_begins(desk, row, kind, said):
    """T11: what was asked for and cannot work is no run without it."""
    desk.rows("1,0,,,-,-,echo,-,begun", row)
    before = desk.plan.read_bytes()
    heard = desk.run()
    assert [words["error"] for words in heard if "error" in words] == [kind]
    assert said in heard[-1]["message"]
    assert heard[-1]["hint"]
    assert not lines(heard)
    assert desk.plan.read_bytes() == before
    assert not desk.spool.exists()


def test_every_row_that_cannot_be_run_is_named(desk):
    desk.rows(*["1,1,,,-,-,none.py,-,"] * 12, "1,1,,,-,-,true,tops,")
    message = desk.run()[-1]["message"]
    assert message.count("there is no none.py") == 10
    assert message.endswith("and 3 more rows")


def test_a_plan_that_runs_itself_ends(desk):
    """A cycle: the row waits for a scheduler that waits for nobody, for the plan is locked."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom dippm.runs.plans.scheduler import run_plan\n"
        "from dippm.runs.plans.options import PlanOptions\n"
        "run_plan(Path('plan.csv'), PlanOptions(), None)\n"
    )
    desk.script("again.py", code)
    desk.rows("1,1,,,-,-,again.py,-,")
    heard = desk.run()
    assert desk.statuses() == ["FAILED 1"]
    assert any("plan.csv is carried out by another scheduler" in line for line in lines(heard))


def test_what_ctrl_c_leaves_goes_on_next_time(desk):
    desk.script(
        "wait.py",
        "import os, sys, time\nprint('waits', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n",
    )
    desk.rows("1,1,,,-,-,wait.py,-,", "1,2,,,-,-,echo,-,later")
    process = desk.start()
    next_line(process, "line")
    assert desk.statuses()[0].startswith("RUNNING")
    interrupt(process)
    out, _ = process.communicate(timeout=60)
    assert told(out)[-1] | {"seconds": 0} == {
        "ran": [1],
        "skipped": [],
        "signal": signal.SIGINT,
        "well": False,
        "seconds": 0,
    }
    assert desk.statuses() == ["INTERRUPTED", "PENDING"]
    (desk.folder / "go").touch()
    assert lines(desk.run()) == ["waits", "later"]
    assert desk.statuses() == ["FINISHED", "FINISHED"]
