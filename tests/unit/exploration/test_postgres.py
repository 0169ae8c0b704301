"""Searches of several processes in one PostgreSQL database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dippm.decide.exploration import ExploreError, ExploreNotInstalledError, StudyInUseError
from dippm.decide.exploration.study import open_study
from tests.unit.exploration import searches

optuna = pytest.importorskip("optuna")


@pytest.mark.nightly(part="services")
def test_two_searches_share_a_database_and_outlive_a_kill(tmp_path, postgres_address):
    folders = {name: tmp_path / name for name in ("first", "second")}
    running = {}
    try:
        for name, folder in folders.items():
            folder.mkdir()
            running[name] = searches.begin(folder, postgres_address, name)
        for name, process in running.items():
            searches.wait_until_it_waits(process, postgres_address, name)
        with pytest.raises(StudyInUseError, match=str(running["second"].pid)):
            searches.search(str(folders["second"]), postgres_address, "second")
        begun = searches.kill(running["first"], folders["first"])
        for folder in folders.values():
            (folder / "go").touch()
        printed, _ = running["second"].communicate()
        assert printed.split() == [str(searches.DESIGNS)]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    found = searches.search(str(folders["first"]), postgres_address, "first")
    assert [t.outcome.state for t in found.tried] == ["ok"] * searches.DESIGNS
    assert len({str(t.design) for t in found.tried}) == searches.DESIGNS
    # What was answered before the kill is not built again.
    assert searches.begun_since(folders["first"], begun) == {"begun-24-1"}
    other = searches.search(str(folders["second"]), postgres_address, "second")
    values = {str(t.design): t.values for t in found.tried}
    assert {str(t.design): t.values for t in other.tried} == values


def test_a_database_that_is_not_there_is_an_error(postgres_server, tmp_path):
    with pytest.raises(ExploreError, match="storage cannot be opened") as error:
        searches.search(str(tmp_path), postgres_server.address("nowhere"))
    assert "nowhere" in str(error.value)


def test_a_driver_that_is_missing_is_named(tmp_path):
    with pytest.raises(ExploreNotInstalledError, match="pg8000") as error:
        searches.search(str(tmp_path), "postgresql+pg8000://nobody@/nowhere")
    assert "dippm[postgresql]" in error.value.hint


def test_searches_that_begin_together_make_the_tables_once(postgres_server, tmp_path):
    files = [f"sqlite:///{tmp_path / str(number)}.db" for number in range(3)]
    databases = [postgres_server.address(postgres_server.make_database()) for _ in range(3)]
    for storage in files + databases:
        together = threading.Barrier(4)

        def study(name: str, storage=storage, together=together):
            together.wait()
            return open_study(optuna, storage, name, ["minimize"])

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(study, "abcd"))
        assert [s.study_name for s in found] == list("abcd")
