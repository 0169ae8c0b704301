"""The same plan on the nodes of a Ray cluster: of this machine, with GPUs that Ray believes in."""

from __future__ import annotations

import os
import signal

import pytest

from dippm.runs.plans.cluster import on_devices
from dippm.runs.plans.table import read_table
from dippm.runs.plans.workload import workloads
from tests.unit.plans.desks import HEADER, interrupt, lines, told
from tests.unit.tracking import commands
from tests.unit.tracking.commands import alive, until

pytest.importorskip("ray", reason="clusters need the extra ray")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A cluster takes a minute to come up where others compute."""
    monkeypatch.setattr(commands, "PATIENCE_S", 300.0)


def test_devices_are_those_that_the_node_gave():
    text = HEADER + "1,1,,,0,-,a.py,-,\n1,1,,,0,-,a.py,-,\n1,1,,,1+2,-,a.py,-,\n1,2,,,-,-,a.py,-,\n"
    first, second = workloads(read_table(text.encode())[0])
    moved = on_devices(first, ["5", "3", "4"])
    assert [row.devices for row in moved.rows] == [("5",), ("5",), ("3", "4")]
    assert moved.letters == first.letters == ("0_A", "0_B", "1+2")
    assert on_devices(second, []) == second


@pytest.mark.nightly(part="services")
def test_a_plan_is_carried_out_by_a_cluster(desk):
    desk.rows(
        "1,1,,,-,-,echo,top,first",
        "1,1,,,-,-,echo,-,second",
        "1,2,,,-,-,false,-,",
        "1,3,,,-,-,true,smi,",
    )
    heard = desk.run(ray="local")
    assert sorted(lines(heard)) == ["first", "second"]
    assert heard[-1]["ran"]
    assert desk.statuses() == ["FINISHED", "FINISHED", "FAILED 1", "FAILED node"]
    rows = desk.read().rows
    runs = [desk.recorded(row.run) for row in rows[:3]]
    assert runs[0].start.name == "(1 cpu_A) echo"
    assert runs[0].start.group == runs[1].start.group
    assert runs[2].end.exit_code == 1
    assert desk.run(ray="local")[-1]["ran"] == []


@pytest.mark.nightly(part="services")
def test_a_cluster_without_enough_gpus_is_said(desk):
    desk.rows("1,1,,,0+1,-,true,-,")
    heard = desk.run(ray="local")
    assert heard[-1]["error"] == "PlanError"
    assert (
        "workload 1/1 needs 2 GPUs on one node, and no node has more than 0"
        in (heard[-1]["message"])
    )
    assert desk.statuses() == ["PENDING"]


@pytest.mark.nightly(part="services")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_what_the_nodes_run(desk, times):
    desk.rows("1,1,,,-,-,sh -c,-,'touch begun; exec sleep 1000'")
    process = desk.start(ray="local")
    until(lambda: (desk.folder / "begun").exists(), "the row")
    for _ in range(times):
        interrupt(process)
    out, _ = process.communicate(timeout=300)
    assert told(out)[-1]["signal"]
    assert desk.statuses() == ["INTERRUPTED"]
    (path,) = until(lambda: list(desk.spool.glob("*/end.json")), "the end of the run")
    assert desk.recorded(path.parent.name).end.status == "interrupted"


@pytest.mark.nightly(part="services")
def test_a_node_that_is_lost(desk):
    """The process that Ray runs a workload in is killed: its row ends, and runs again next time."""
    desk.rows("1,1,,,-,-,sh -c,-,'echo $PPID > row; test -e go || exec sleep 1000'")
    process = desk.start(ray="local")
    said = desk.folder / "row"
    row = int(until(lambda: said.exists() and said.read_text(), "the row"))
    with open(f"/proc/{row}/stat", encoding="utf-8") as file:
        os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert told(out)[-1]["well"] is False
    assert desk.statuses() == ["LOST"]
    until(lambda: not alive(row), "the end of the row")
    (desk.folder / "go").touch()
    assert desk.run()[-1]["well"] is True


def test_an_address_where_no_cluster_is(desk):
    desk.rows("1,1,,,-,-,true,-,")
    heard = desk.run(ray="10.255.255.1:1x")
    assert heard[-1]["error"] == "PlanError"
    assert "no Ray cluster at" in heard[-1]["message"]
