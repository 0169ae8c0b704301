"""The library: runs of the store and runs that go on, read for visitors who never wait."""

from __future__ import annotations

import shutil
import time

import pytest

pytest.importorskip("scipy", reason="the page needs the extra ui")

from dippm.errors import StoreError
from dippm.runs.store.attach import MARK
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import Value
from dippm.runs.store.runs import open_store
from dippm.show.ui.library import Library
from tests.page_runs import make_training
from tests.run_folders import START_NS, make_run, write_samples


@pytest.fixture
def spool(tmp_path):
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


def look_anew(library):
    library._listed_at = float("-inf")
    library.look()


def test_runs_of_the_store_with_workload_and_words(store_file, spool, tmp_path):
    store = open_store(str(store_file))
    stored = store.attach(make_training(tmp_path / "made", name="a", workload="w", ticks=20))
    store.attach(make_run(tmp_path / "made", name="b", ticks=0, number=1))
    library = Library(str(store_file), spool)
    library.look()
    newer, older = library.runs()
    assert (newer.name, newer.group, older.group) == ("b", "", "w")
    assert "0.1" in older.words
    assert library.opened([stored.uuid]) == {}
    library.look()
    opened = library.opened([stored.uuid])[stored.uuid]
    assert len(opened.streams["tree.rss_mb"].values) == 20
    assert opened.prediction["latency_ms"] == 310
    assert opened.spans == stored.spans


def test_a_visitor_who_asked_is_told_by_the_version(store_file, spool, tmp_path):
    stored = open_store(str(store_file)).attach(make_run(tmp_path / "made", ticks=5))
    library = Library(str(store_file), spool)
    library.start()
    try:
        version = library.wait(-1, 0)
        while not library.runs():
            version = library.wait(version, 60)
        while not library.opened([stored.uuid]):
            version = library.wait(version, 60)
        assert library.read_at(stored.uuid) <= version
    finally:
        library.close()


def test_a_run_that_goes_on_grows_and_then_stands_in_the_store(store_file, spool):
    folder = make_training(spool, name="live", workload="w", ticks=10, ended=False)
    library = Library(str(store_file), spool, growing_share=1)
    library.look()
    (run,) = library.runs()
    assert run.status == "running"
    library.opened([run.uuid])
    library.look()
    before = library.opened([run.uuid])[run.uuid]
    assert len(before.streams["told: loss"].values) == 2
    version = library.version
    library.look()
    assert library.version == version  # nothing came

    write_samples(folder, 30, name="samples-2.dippm")
    writer = RunFolder(folder)
    writer.value(Value("loss", "metric", 0.5, START_NS + 5_000_000_000))
    writer.close()
    library.look()
    after = library.opened([run.uuid])[run.uuid]
    assert len(after.streams["told: loss"].values) == 3
    assert len(after.streams["tree.rss_mb"].values) == 40

    open_store(str(store_file)).attach(folder)
    (folder / MARK).write_text("{}")
    library.look()
    library.look()
    assert [run.status for run in library.runs()] == ["lost"]
    assert library.opened([run.uuid]) == {}
    library.look()
    assert len(library.opened([run.uuid])[run.uuid].streams["told: loss"].values) == 3


def test_a_run_that_grows_is_not_read_all_the_time(store_file, spool, monkeypatch):
    folder = make_training(spool, name="live", workload="w", ticks=10, ended=False)
    library = Library(str(store_file), spool, growing_share=1e-6)
    library.look()
    uuid = library.runs()[0].uuid
    library.opened([uuid])
    library.look()
    read_at = library.read_at(uuid)
    write_samples(folder, 30, name="samples-2.dippm")
    library.look()
    library.look()
    assert library.read_at(uuid) == read_at
    later = time.monotonic() + 1e6
    monkeypatch.setattr("dippm.show.ui.library.time.monotonic", lambda: later)
    library.look()
    assert library.read_at(uuid) > read_at


def test_a_run_that_ended_and_waits_for_its_store_is_there(store_file, spool):
    make_run(spool, status="failed", ticks=5)
    library = Library(str(store_file), spool)
    library.look()
    assert [run.status for run in library.runs()] == ["failed"]


def test_a_store_that_dies_says_so_and_what_was_read_stays(store_file, spool, tmp_path):
    stored = open_store(str(store_file)).attach(make_run(tmp_path / "made", ticks=5))
    alive = True

    def opener(address):
        opened = open_store(address)
        runs = opened.runs

        def listed(**given):
            if not alive:
                raise StoreError("the database is gone", "Start it.")
            return runs(**given)

        opened.runs = listed
        return opened

    library = Library(str(store_file), spool, opener=opener)
    library.look()
    alive = False
    look_anew(library)
    assert "the database is gone" in library.trouble
    assert [run.uuid for run in library.runs()] == [stored.uuid]
    alive = True
    look_anew(library)
    assert library.trouble == ""


def test_a_run_whose_artifacts_are_gone_says_so(store_file, spool, tmp_path):
    stored = open_store(str(store_file)).attach(make_run(tmp_path / "made", ticks=5))
    shutil.rmtree(tmp_path / "runs-artifacts")
    library = Library(str(store_file), spool)
    library.look()
    library.opened([stored.uuid, "f" * 32])
    library.look()
    troubles = library.failures([stored.uuid, "f" * 32])
    assert "cannot be read" in troubles[stored.uuid]
    assert "not in this store" in troubles["f" * 32]
    version = library.version
    library.opened([stored.uuid])
    library.look()
    assert library.version == version  # it is not tried for ever


def test_a_folder_that_is_no_run_is_stepped_over(store_file, spool):
    (spool / "junk").mkdir()
    (spool / "junk" / "start.json").write_text("{")
    make_run(spool, ticks=5, status=None)
    library = Library(str(store_file), spool)
    library.look()
    assert len(library.runs()) == 1


def test_memory_is_bounded_and_what_was_not_looked_at_goes_first(store_file, spool):
    for number in range(3):
        make_run(spool, ticks=50, number=number)
    library = Library(str(store_file), spool, most_bytes=30_000)
    library.look()
    uuids = [run.uuid for run in library.runs()]
    for uuid in uuids:
        library.opened([uuid])
        library.look()
    held = library.opened(uuids)
    assert list(held)[-1] == uuids[-1]
    assert len(held) < 3
