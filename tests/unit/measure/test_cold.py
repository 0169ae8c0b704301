"""Cold caches: what is displaced, how much of it, and when."""

import torch

from dippm.measure import cold
from dippm.measure.readings import Absent
from dippm.measure.timing import HostStopwatch

CPU = torch.device("cpu")


def caches(folder, *sizes):
    for number, size in enumerate(sizes):
        (folder / f"index{number}").mkdir()
        (folder / f"index{number}" / "size").write_text(size + "\n")
    return folder


def test_the_last_level_cache_is_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "CACHES", caches(tmp_path, "32K", "1024K", "3M"))
    assert cold.cache_bytes(CPU) == 3 * 2**20


def test_a_cache_of_unknown_size_gives_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "CACHES", caches(tmp_path, "many"))
    size = cold.cache_bytes(CPU)
    assert isinstance(size, Absent)
    assert cold.displacer(CPU) == size


def test_several_times_the_cache_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "CACHES", caches(tmp_path, "64K"))
    displace = cold.displacer(CPU)
    assert displace().item() * 4 == cold.TIMES * 64 * 2**10  # a buffer of ones, each read once


def test_the_caches_are_emptied_before_each_step_and_outside_of_its_time():
    log: list[str] = []

    class Watch(HostStopwatch):
        def __call__(self, step):
            log.append("begin")
            step()
            log.append("end")
            return 2.0, 1.0

    columns = cold.cold_columns(
        lambda: log.append("step"), Watch(), lambda: log.append("displace"), 2
    )
    assert log == ["displace", "begin", "step", "end"] * 2
    assert columns == {"cold_latency_ms": 2.0, "cold_event_ms": 1.0}
