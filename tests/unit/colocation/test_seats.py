"""Seats side by side, and what a cell of the column "Collocation" says."""

from __future__ import annotations

import pytest

from dippm.runs.colocation import CollocationError, Sharing, seated
from tests.fake_nvml import GPU_UUID, SECOND_GPU_UUID


@pytest.mark.parametrize(
    ("text", "sharing", "again"),
    [
        ("", Sharing("none"), ""),
        (" - ", Sharing("none"), ""),
        ("MPS", Sharing("mps"), "mps"),
        (" mps ", Sharing("mps"), "mps"),
        ("mps:50%", Sharing("mps", thread_percent=50.0), "mps:50%"),
        ("MPS:4096MB", Sharing("mps", memory_limit_mb=4096), "mps:4096mb"),
        ("mps:12.5%:1mb", Sharing("mps", "", 12.5, 1), "mps:12.5%:1mb"),
        ("3G.20GB", Sharing("mig", "3g.20gb"), "3g.20gb"),
        ("1g.5gb+me", Sharing("mig", "1g.5gb+me"), "1g.5gb+me"),
    ],
)
def test_a_cell_says_how_a_gpu_is_shared(text, sharing, again):
    assert Sharing.parse(text) == sharing
    assert str(sharing) == again
    assert Sharing.parse(again) == sharing


@pytest.mark.parametrize("text", ["mig", "3g", "20gb", "mps 50", "x" * 10_000, "3g.20gb; ls"])
def test_another_cell_is_refused_with_what_it_may_be(text):
    with pytest.raises(CollocationError, match="is not a way") as error:
        Sharing.parse(text)
    assert "3g.20gb" in error.value.hint
    assert len(error.value.message) < 200


@pytest.mark.parametrize("device", ["", "-", " - "])
def test_without_a_gpu_a_seat_changes_nothing(tmp_path, device):
    with seated((device,), "mps", 3, journal=tmp_path / "journal") as seats:
        assert [(seat.environment, seat.devices, seat.sharing) for seat in seats] == [
            ({}, (), "")
        ] * 3
        assert seats[0].visible == ()
    assert not (tmp_path / "journal").exists()


def test_no_run_is_no_seat(tmp_path):
    with pytest.raises(CollocationError, match="no run"), seated(("-",), "", 0, journal=tmp_path):
        pass


def test_runs_side_by_side_see_the_gpus_by_uuid_and_note_their_neighbours(machine):
    machine.say("gpus 2", "process 4242 1500", "process self 10", "process 4243 -1")
    code = """
with seated(("0", "1"), "-", 2, journal=journal) as seats:
    for seat in seats: print(dict(seat.environment), seat.devices, seat.facts["neighbours"])
"""
    lines = machine.run(code).stdout.splitlines()
    neighbours = "process 4242 (1,500 MiB), process 4243 (memory not told)"
    uuids = (GPU_UUID, SECOND_GPU_UUID)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    assert lines == [f"{visible} {uuids} {neighbours}, {neighbours}"] * 2
    assert machine.entries == []


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("1", SECOND_GPU_UUID),
        (f"{SECOND_GPU_UUID},{GPU_UUID}", SECOND_GPU_UUID),
        ("", "CollocationError: CUDA_VISIBLE_DEVICES='' shows no device 0"),
    ],
)
def test_what_a_scheduler_hides_is_not_counted(machine, shown, told):
    machine.say("gpus 2")
    code = """
try:
    with seated(("0",), journal=journal) as (seat,):
        print(*seat.devices)
except colocation.CollocationError as error:
    print("CollocationError:", error.message)
"""
    assert machine.run(code, CUDA_VISIBLE_DEVICES=shown).stdout == f"{told}\n"
