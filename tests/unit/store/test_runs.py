"""The store of runs: what goes in comes out, exactly once, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from dippm.errors import RunError, StoreError, UnknownNameError
from dippm.runs.store.attach import MARK, attach_all
from dippm.runs.store.columns import Column, summarise
from dippm.runs.store.folder import read_folder
from dippm.runs.store.location import locate_store
from dippm.runs.store.parquet import read_samples, write_samples
from dippm.runs.store.query import ABOUT
from dippm.runs.store.run_contents import MOST_POINTS, points
from dippm.runs.store.runs import open_store
from dippm.runs.store.stored_run import RECORD
from tests.run_folders import REASON, START_NS, make_run
from tests.run_folders import write_samples as sample
from tests.samples import sampled

HOSTILE = "\x1b[31m<script>alert(1)</script>\u202e[red]\0\udcff$x$ ../..//'\"`"


@pytest.fixture
def store(store_file):
    return open_store(str(store_file))


def client_of(store):
    """What others see of a store: MLflow's own client."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(store.location.uri)


def column(values, *, counter=False, reasons=(), hz=1.0):
    times = START_NS + (np.arange(len(values)) * 1e9 / hz).astype(np.int64)
    return Column("tree.x", "MB", "tree", counter, times, np.array(values, float), tuple(reasons))


def test_all_of_a_run_comes_back(store, tmp_path):
    folder = make_run(tmp_path, prediction={"latency_ms": 2.5}, command=("python", "x.py"))
    told = read_folder(folder)
    store.attach(folder)
    run = store.run(told.start.uuid[:8])
    assert run.start == told.start
    assert run.end == told.end
    assert run.spans == told.spans
    assert run.values == told.values
    assert run.prediction == {"latency_ms": 2.5}
    assert run.comparison is None
    assert (run.name, run.experiment, run.status) == ("training", "vision", "finished")
    assert run.seconds == 10
    assert run.metrics["loss"] == 0.2
    assert run.metrics["tree.rss_mb.n"] == 100
    assert run.remarks == ()


def test_samples_come_back_with_reasons(store, tmp_path):
    run = store.attach(make_run(tmp_path, ticks=100))
    table = run.samples()
    assert table.column_names == ["series", "time_ns", "value", "absent"]
    rows = table.to_pylist()
    power = [row for row in rows if row["series"] == "tree.power_w"]
    assert len(rows) == 300
    assert {row["value"] for row in power} == {None}
    assert {row["absent"] for row in power} == {REASON}
    cpu = [row for row in rows if row["series"] == "tree.cpu_s"]
    assert [row["value"] for row in cpu] == [tick / 20 for tick in range(100)]
    assert [row["time_ns"] for row in cpu[:2]] == [START_NS, START_NS + 100_000_000]
    assert {row["absent"] for row in cpu} == {None}


def test_mlflow_itself_finds_the_run(store, store_file, tmp_path):
    from mlflow.tracking import MlflowClient

    told = store.attach(make_run(tmp_path, ticks=600))
    client = MlflowClient(f"sqlite:///{store_file}")
    run = client.get_run(told.id)
    assert run.data.params == {"lr": "0.1", "batch": "32"}
    assert run.data.tags["team"] == "a"
    assert run.data.tags["environment/git_commit"] == "0123456"
    assert run.data.tags["absent/tree.power_w"] == REASON
    assert run.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(told.id, "loss")] == [0, 1, 2, 3, 4]
    assert len(client.get_metric_history(told.id, "system/tree.rss_mb")) == 60


def test_attaching_again_changes_nothing(store, tmp_path):
    folder = make_run(tmp_path)
    assert store.attach(folder).id == store.attach(folder).id
    assert len(store.runs()) == 1


def test_a_request_that_was_repeated_on_its_way_leaves_one_run(store, tmp_path):
    folder = make_run(tmp_path)
    first = store.attach(folder)
    client = client_of(store)
    experiment = client.get_run(first.id).info.experiment_id
    client.create_run(experiment, tags={"dippm.uuid": first.uuid})
    again = store.attach(folder)
    assert again.id == first.id
    assert len(client.search_runs([experiment])) == 1


def test_an_attach_that_was_killed_goes_on_where_it_was(store, store_file, tmp_path):
    folder = make_run(tmp_path)
    program = """
import os, pathlib, signal, sys
from dippm.runs.store.runs import open_store
store = open_store(sys.argv[1])
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(store._runs, sys.argv[3], die)
store.attach(pathlib.Path(sys.argv[2]))
"""
    for step in ("put", "log", "end"):
        words = [sys.executable, "-c", program, store_file, folder, step]
        assert subprocess.run(words, capture_output=True).returncode == -9
        assert store.runs() == []  # a list shows whole runs only
    store.attach(folder)
    (run,) = store.runs()
    client = client_of(store)
    experiments = [run.experiment_id for run in client.search_experiments()]
    assert len(client.search_runs(experiments)) == 1
    assert run.samples().num_rows == 300
    assert len(client.get_metric_history(run.id, "loss")) == 5


@pytest.mark.nightly(part="processes")
def test_attachers_of_one_folder_at_once(store, store_file, tmp_path):
    folder = make_run(tmp_path)
    words = [sys.executable, "-m", "dippm.runs.store.attach", folder, "--store", store_file]
    started = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(p.wait(), p.stderr.read()) for p in started] == [(0, b"")] * 2
    assert len(store.runs()) == 1


def test_runs_are_found(store, tmp_path):
    for number, name in enumerate(("alpha", "beta", "gamma")):
        status = "failed" if name == "beta" else "finished"
        store.attach(make_run(tmp_path, name=name, number=number, ticks=0, status=status))
    store.attach(make_run(tmp_path, name="delta", experiment="text", number=3, ticks=20))
    names = lambda **given: [run.name for run in store.runs(**given)]  # noqa: E731
    assert names() == ["delta", "gamma", "beta", "alpha"]
    assert names(limit=2) == ["delta", "gamma"]
    assert names(experiment="text") == ["delta"]
    assert names(experiment="none") == []
    assert names(status="failed") == ["beta"]
    assert names(search="GAM") == ["gamma"]
    assert names(search="0.1 beta") == ["beta"]
    assert names(where=["loss >= 2"]) == ["delta", "gamma"]
    assert names(where=["loss < 3", "loss > 1"]) == ["gamma", "beta"]
    assert names(where=["tree.rss_mb.max > 100"]) == ["delta"]
    assert names(where=["loss > 100"]) == []
    with pytest.raises(UnknownNameError, match="lss") as error:
        names(where=["lss > 1"])
    assert "loss" in error.value.hint


@pytest.mark.parametrize("text", ["", "loss", "loss ~ 3", "loss > a", "> 3"])
def test_what_is_no_condition_is_said(store, text):
    with pytest.raises(RunError, match="no condition"):
        store.runs(where=[text])


def test_a_run_that_is_none_is_said(store, tmp_path):
    store.attach(make_run(tmp_path, ticks=0))
    for uuid, said in (
        ("", "not the UUID"),
        ("' OR 1", "not the UUID"),
        ("0" * 32, "there is no run"),
    ):
        with pytest.raises(RunError, match=said):
            store.run(uuid)


def test_a_document_is_kept_beside_a_run(store, tmp_path):
    run = store.attach(make_run(tmp_path, ticks=0))
    store.keep(run, "comparison", {"verdict": "equal"}, {"latency_error": 0.1})
    again = store.run(run.uuid)
    assert again.comparison == {"verdict": "equal"}
    assert again.metrics["comparison/latency_error"] == 0.1
    assert again.document("other") is None


def test_hostile_texts_come_back_exactly(store, tmp_path):
    odd = {HOSTILE: HOSTILE, "a" * 400: "b" * 9000, "x/../y": "1", "x_.._y": "2"}
    told = {"name": HOSTILE, "experiment": HOSTILE, "description": HOSTILE}
    folder = make_run(tmp_path, params=odd, tags=odd, **told)
    run = store.run(store.attach(folder).uuid)
    assert run.start == read_folder(folder).start
    assert run.name == HOSTILE
    assert [found.uuid for found in store.runs(experiment=HOSTILE)] == [run.uuid]


def test_a_run_of_which_nobody_wrote_the_end_is_lost(store, tmp_path):
    run = store.attach(make_run(tmp_path, status=None))
    assert run.status == "lost"
    assert run.end.at.monotonic_ns == START_NS + 9_900_000_000  # its last sample


def test_damaged_samples_lose_what_is_damaged(store, tmp_path):
    folder = make_run(tmp_path, ticks=200)
    file = folder / "samples-1.dippm"
    file.write_bytes(file.read_bytes()[:-700])
    sample(folder, 10, name="samples-2.dippm")
    (folder / "samples-3.dippm").write_bytes(b"nothing of a sampler")
    (folder / "samples-4.dippm").touch()
    run = store.attach(folder)
    assert 3 * 100 < run.samples().num_rows < 3 * 200
    assert [remark.partition(":")[0] for remark in run.remarks] == [
        "samples-1.dippm", "samples-3.dippm", "samples-4.dippm"
    ]  # fmt: skip


def test_samplers_of_two_devices_are_told_apart(store, tmp_path):
    folder = make_run(tmp_path, ticks=0)
    for device, ticks in (("0", 10), ("1", 20)):
        sample(folder, ticks, name=f"samples-7-1-{device}.dippm")
    run = store.attach(folder)
    assert run.summaries["tree:0.rss_mb"].n == 10
    assert run.summaries["tree:1.rss_mb"].n == 20


def test_a_counter_is_summed_up_by_its_rate():
    summary = summarise(column([0, 2, 2, 8, 8], counter=True))
    assert (summary.integral, summary.mean, summary.max, summary.n) == (8, 2, 3, 5)
    assert summarise(column([5, 9, 1, 4], counter=True)).integral == 7  # it was set back


def test_a_gauge_is_summed_up_over_time():
    summary = summarise(column([1, 3, np.nan, 5], reasons=[(START_NS + 2, "lost")]))
    assert (summary.integral, summary.max, summary.n, summary.reason) == (10, 5, 3, "lost")
    assert summary.mean == pytest.approx(10 / 3)
    assert summarise(column([])).reason == "nothing was read"
    assert summarise(column([4])).mean == 4


def test_the_copy_of_a_long_series_is_bounded():
    long = column(np.arange(1_000_000.0), hz=10)
    copied = list(points(long))
    assert len(copied) <= MOST_POINTS + 1
    assert copied[0][1] == pytest.approx(499.5)
    short = [value for _, value in points(column(np.arange(40.0), hz=10))]
    assert short == [4.5, 14.5, 24.5, 34.5]


def test_a_hundred_thousand_samples_take_ten_bytes_each(tmp_path):
    random = np.random.default_rng(0)
    times = START_NS + np.cumsum(random.integers(99_000_000, 101_000_000, 5000))
    columns = [
        Column(f"tree.q{n}", "W", "tree", False, times, 100 + random.normal(size=5000))
        for n in range(20)
    ]
    write_samples(columns, tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10 * 100_000
    again = read_samples(tmp_path)
    assert [c.series for c in again] == [c.series for c in columns]
    assert all(np.array_equal(a.values, b.values) for a, b in zip(again, columns, strict=True))


@pytest.mark.nightly(part="processes")
def test_a_run_of_a_million_samples(store, tmp_path):
    run = store.attach(make_run(tmp_path, ticks=340_000))
    assert run.samples().num_rows == 3 * 340_000
    history = client_of(store).get_metric_history(run.id, "system/tree.rss_mb")
    assert len(history) <= MOST_POINTS + 1


def test_a_damaged_artifact_is_said(store, tmp_path):
    run = store.attach(make_run(tmp_path))
    for file in (tmp_path / "runs-artifacts").rglob("*"):
        if file.is_file():
            file.write_bytes(b"?")
    again = store.run(run.uuid)
    with pytest.raises(RunError, match="cannot be read"):
        _ = again.spans
    with pytest.raises(RunError, match="cannot be read"):
        again.samples()
    assert again.name == "training"  # a list needs no artifact


@pytest.mark.parametrize("said", ['{"name": 7}', '{"seconds": "x"}', "[]", "7", '{"of_late": 1}'])
def test_a_list_names_the_run_whose_own_words_are_damaged(store, tmp_path, said):
    run = store.attach(make_run(tmp_path))
    client_of(store).set_tag(run.id, ABOUT, said)
    with pytest.raises(StoreError, match=f"run {run.uuid}: its tag dippm.run is damaged"):
        store.runs()


def stored(run, file):
    """Return a run whose record is in a file."""
    return replace(run, fetch=lambda path: file if path == RECORD else None)


PARTS = ("start", "end", "spans", "values", "summaries", "remarks", "artifacts")


@pytest.mark.parametrize("odd", [7, [7], {"a": 7}, [{"name": 7}], "x", [None], {"at": {}}])
def test_a_record_of_other_types_is_said(store, tmp_path, odd):
    run = store.attach(make_run(tmp_path))
    whole = json.loads(run.fetch(RECORD).read_bytes())
    file = tmp_path / "odd.json"
    for part in PARTS:
        file.write_text(json.dumps({**whole, part: odd}))
        again = stored(run, file)
        with pytest.raises(RunError, match=f"record of run {run.uuid} cannot be read: {part}"):
            getattr(again, part)
        others = [other for other in PARTS if other != part]
        assert all(getattr(again, other) == getattr(run, other) for other in others)


@pytest.mark.parametrize("content", ["7", "[[]]", "[" * 100_000, '["spans"]', '{"spans": [{}]}'])
def test_a_record_that_is_none_is_said(store, tmp_path, content):
    run = store.attach(make_run(tmp_path))
    file = tmp_path / "odd.json"
    file.write_text(content)
    with pytest.raises(RunError, match="cannot be read"):
        _ = stored(run, file).spans


def test_a_place_is_understood(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert locate_store().file == tmp_path / "dippm" / "runs.db"
    assert locate_store(f"sqlite:///{tmp_path}/a.db").file == tmp_path / "a.db"
    assert locate_store("https://host").artifacts is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://other:5000")
    assert locate_store().uri == "http://other:5000"
    for given in ("ftp://x", "file:///tmp", str(tmp_path), "postgresql://u:secret@h/d"):
        with pytest.raises(StoreError) as error:
            locate_store(given)
        assert "secret" not in str(error.value)
        assert error.value.hint


def test_telemetry_is_off_and_importing_the_store_imports_no_mlflow():
    program = (
        "import sys, dippm.runs.store.runs, dippm.runs.store.attach, json;"
        "print([name for name in ('mlflow', 'pyarrow', 'numpy', 'torch') if name in sys.modules]);"
        "from dippm.runs.store.client import SETTINGS;"
        "print(json.dumps(SETTINGS))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    heavy, settings = out.splitlines()
    assert heavy == "[]"
    assert json.loads(settings)["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_two_make_the_same_new_store_at_once(tmp_path):
    folders = [make_run(tmp_path / "spool", ticks=0, number=n) for n in range(2)]
    new = tmp_path / "new" / "runs.db"
    words = [sys.executable, "-m", "dippm.runs.store.attach"]
    started = [
        subprocess.Popen([*words, folder, "--store", new], stderr=subprocess.PIPE)
        for folder in folders
    ]
    assert [(p.wait(), p.stderr.read()) for p in started] == [(0, b"")] * 2
    assert len(open_store(str(new)).runs()) == 2


PAUSED = """
import sys
from dippm.runs.store import client
make = client._make_tables
def make_when_told(uri, artifacts):
    print("making", flush=True)
    sys.stdin.readline()
    make(uri, artifacts)
client._make_tables = make_when_told
from dippm.runs.store.attach import main
sys.exit(main(sys.argv[1:]))
"""
WORKLOAD = """
import mlflow
with mlflow.start_run(run_name="own"):
    for step in range(20):
        mlflow.log_metric("loss", step, step=step)
"""


@pytest.mark.parametrize(
    "address",
    sampled(["sqlite:///{}/new.db", "sqlite:///new.db"], pytest.mark.nightly(part="processes")),
)
def test_mlflow_in_a_workload_opens_a_store_that_is_being_made(tmp_path, monkeypatch, address):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.format(tmp_path))
    monkeypatch.setenv("DIPPM_CACHE_DIR", str(tmp_path / "cache"))  # no tables of before
    new, folder = tmp_path / "new.db", make_run(tmp_path / "spool", ticks=0)
    pipe = subprocess.PIPE
    there = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "text": True, "cwd": tmp_path}
    with subprocess.Popen([sys.executable, "-c", PAUSED, folder], **there) as attacher:
        assert attacher.stdout.readline() == "making\n"
        with subprocess.Popen([sys.executable, "-c", WORKLOAD], **there) as workload:
            while not new.exists() and workload.poll() is None:
                time.sleep(0.01)
            opened = new.stat().st_ino
            said = [process.communicate("\n") for process in (attacher, workload)]
    assert [attacher.returncode, workload.returncode] == [0, 0], said
    assert new.stat().st_ino == opened
    store = open_store(str(new))
    assert len(store.runs()) == 1
    (own,) = (run for run in store._runs.find([]) if run.tags["mlflow.runName"] == "own")
    assert client_of(store).get_run(own.id).info.status == "FINISHED"
    assert own.metrics == {"loss": 19.0}
    assert not list(tmp_path.glob(".*"))


def test_folders_of_a_spool_go_where_they_were_meant_for(store, store_file, tmp_path):
    spool = tmp_path / "spool"
    meant = make_run(spool, name="meant", store=str(store_file))
    broken = spool / "broken"
    broken.mkdir(parents=True)
    (broken / "start.json").write_text("{")
    going_on = make_run(spool, name="going on", status=None)  # written to a moment ago
    replayed = attach_all(spool)
    assert [run.name for run in replayed.attached] == ["meant"]
    assert list(replayed.waiting) == [broken]
    assert replayed.running == [going_on]
    assert json.loads((meant / MARK).read_text())["uuid"] == replayed.attached[0].uuid
    assert attach_all(spool).attached == []
    assert [run.name for run in store.runs()] == ["meant"]
