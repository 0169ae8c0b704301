"""`dippm runs` and `dippm plot`: as processes, and the menus on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys

import pexpect
import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.runs.store.runs import open_store
from tests.run_folders import make_run

DOWN, SPACE, ENTER, CTRL_C = "\x1b[B", " ", "\r", "\x03"


@pytest.fixture
def home(store_file, tmp_path):
    """Variables of a user whose store has two runs, and whose spool has one."""
    store = open_store(str(store_file))
    for number, name in enumerate(("first", "second")):
        store.attach(make_run(tmp_path / "made", name=name, number=number, ticks=50))
    make_run(tmp_path / "spool", name="spooled", number=2, ticks=20, status="failed")
    return {
        **os.environ,
        "MLFLOW_TRACKING_URI": str(store_file),
        "DIPPM_SPOOL": str(tmp_path / "spool"),
        "COLUMNS": "200",
        "TERM": "xterm-256color",
    }


def dippm(home, *words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "dippm", *words], capture_output=True, text=True, env=home, cwd=cwd
    )


LISTS = """
import sys
from dippm.cli.app import main
sys.argv = ["dippm", "runs", *sys.argv[1:]]
try:
    main()
finally:
    print([name for name in ("mlflow", "sqlalchemy") if name in sys.modules])
"""


def test_a_user_without_runs_waits_for_no_database(tmp_path):
    """MLflow takes seconds to be imported, and more to make the tables that nothing is in."""
    home = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "DIPPM_SPOOL": str(tmp_path / "spool")}
    home.pop("MLFLOW_TRACKING_URI", None)

    def listed(*words):
        command = [sys.executable, "-c", LISTS, *words]
        return subprocess.run(command, capture_output=True, text=True, env=home)

    assert listed().stdout == "no runs\n[]\n"
    answer = json.loads(listed("--json").stdout.removesuffix("[]\n"))
    assert answer == {"schema": "dippm.runs/1", "runs": []}
    assert "nothing" in listed("--where", "nothing").stderr
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.touch()
    assert "no runs" not in listed("--store", str(file / "runs.db")).stdout


def test_runs_and_plots_of_a_user(home, tmp_path, monkeypatch):
    done = dippm(home, "runs", "--json")
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)

    def here(*words):
        return CliRunner().invoke(app, words, env=home)

    found = json.loads(done.stdout)["runs"]
    assert [run["name"] for run in found] == ["spooled", "second", "first"]  # attached on the way
    uuids = {run["name"]: run["uuid"] for run in found}
    table = here("runs", "--status", "failed").stdout
    assert "spooled" in table
    assert "first" not in table
    one = here("runs", uuids["first"][:10]).stdout
    assert "tree.rss_mb" in one
    assert "no sensor of power here" in one
    assert here("runs", "--attach").stdout == "nothing waits\n"
    wrong = here("runs", "--where", "nothing", "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.stdout)["error"]["type"] == "RunError"

    both = f"{uuids['first']},{uuids['second'][:12]}"
    plain = here("plot", "-u", both, "-t", "tree.rss_mb,time_s", "-d", "forward")
    assert plain.exit_code == 0, plain.stderr
    assert "elapsed time (s)" in plain.stdout
    assert "n = 3" in plain.stdout
    chart = json.loads(here("plot", "-u", both, "-t", "loss", "-p", "json").stdout)
    assert {line["run"] for line in chart["charts"][0]["lines"]} == {"first", "second"}
    for back_end, name in (("plotly", "runs.html"), ("matplotlib", "runs.png")):
        done = here("plot", "-u", both, "-p", back_end)
        assert done.stderr.endswith(f"written: {name}\n")
        assert (tmp_path / name).stat().st_size > 10_000
    rows = here("plot", "-u", uuids["first"], "-t", "time_s", "-p", "csv").stdout
    assert rows.splitlines()[1] == "bars,time_s,first,forward,,0.5,0.5,0.5,3,,,"
    unknown = here("plot", "-u", uuids["first"], "-t", "tree.rss")
    assert unknown.exit_code == 1
    assert "tree.rss_mb" in unknown.stderr
    assert dippm(home, "plot").returncode == 2  # no terminal to choose on


@pytest.mark.nightly(part="processes")
def test_a_run_that_somebody_attaches_is_listed_from_its_folder(home, tmp_path):
    folder = make_run(tmp_path / "spool", name="taken", number=3, ticks=30)
    elsewhere = make_run(
        tmp_path / "spool", name="elsewhere", number=4, store=str(tmp_path / "other.db")
    )
    with contextlib.ExitStack() as locks:
        for held in (folder, elsewhere):
            lock = locks.enter_context((held / ".attach.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        listed = {
            run["name"]: run for run in json.loads(dippm(home, "runs", "--json").stdout)["runs"]
        }
        assert list(listed) == ["taken", "spooled", "second", "first"]
        assert [run["attaching"] for run in listed.values()] == [True, False, False, False]
        assert "finished, being attached" in dippm(home, "runs", "--status", "finished").stdout
        assert "taken" not in dippm(home, "runs", "--status", "failed").stdout
        assert "taken" in dippm(home, "runs", "--where", "tree.rss_mb.max > 0").stdout
        assert "taken" not in dippm(home, "runs", "--where", "tree.rss_mb.max < 0").stdout
        assert len(json.loads(dippm(home, "runs", "--json", "-n", "2").stdout)["runs"]) == 2
        uuid = listed["taken"]["uuid"]
        one = json.loads(dippm(home, "runs", uuid, "--json").stdout)
        assert one["attaching"]
        assert one["summaries"]
        assert "being attached" in dippm(home, "runs", uuid).stdout
    after = {run["name"]: run for run in json.loads(dippm(home, "runs", "--json").stdout)["runs"]}
    assert listed["taken"] == after["taken"] | {"attaching": True}


def test_runs_are_chosen_on_a_terminal(home):
    child = pexpect.spawn(
        sys.executable,
        ["-m", "dippm", "plot"],
        env=home,
        encoding="utf-8",
        timeout=300,
        dimensions=(60, 120),
    )
    child.expect("Runs:")
    child.expect("first")
    child.send(SPACE + DOWN + SPACE + ENTER)
    child.expect("Types:")
    child.expect("tree.rss_mb")
    child.send("a" + ENTER)
    child.expect("Descriptions:")
    child.expect("forward")
    child.send("a" + ENTER)
    child.expect("elapsed time")
    child.expect("confusion|cat")
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert child.exitstatus == 0


def test_leaving_the_menu_draws_nothing(home):
    child = pexpect.spawn(
        sys.executable, ["-m", "dippm", "plot"], env=home, encoding="utf-8", timeout=300
    )
    child.expect("first")
    child.send(CTRL_C)
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert child.exitstatus == 130
