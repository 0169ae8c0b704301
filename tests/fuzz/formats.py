"""`FORMATS`: the files that DIPPM reads, each with real ones and with what reads it.

A format reads bytes as a user's file would be read, in this process. It answers, or raises a
`DippmError`; anything else is a defect. To add one: a function that returns real contents, one that
reads, and a row.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from dippm.errors import DippmError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        ending: of the file's name.
        seeds: real contents, made in a folder.
        read: reads a file of this kind, and uses what it gave.
        slow: whether one file takes more than a tenth of a second.
        needs: a module without which it cannot be read, "" for none.
        waits: whether other processes do the reading.
    """

    ending: str
    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path], Any]
    slow: bool = False
    needs: str = ""
    waits: bool = False

    def __call__(self, path: Path) -> None:
        """Read a file, which may be any; only what is no error of ours gets out."""
        with contextlib.suppress(DippmError):
            self.read(path)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _texts(*texts: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [text.encode() for text in texts]


def _files(*names: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(ROOT / name).read_bytes() for name in names]


# Models


def _onnx(folder: Path) -> list[bytes]:
    from tests.conftest import write_onnx
    from tests.test_hostile_graphs import conv, onnx_graph

    files = [
        write_onnx(folder / "small.onnx", batch="batch"),
        onnx_graph(folder / "conv.onnx", conv(pads=[1] * 4, strides=[2, 2])),
    ]
    return [file.read_bytes() for file in files]


def _read_onnx(path: Path) -> None:
    from dippm.model.frontends import InputSpec, onnx

    onnx.accepts(path)
    onnx.load(path, InputSpec.parse(None))


def _torch(folder: Path) -> list[bytes]:
    import torch

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    contents = []
    for write in (
        lambda file: torch.save(module, file),
        lambda file: torch.save(module.state_dict(), file),
        lambda file: torch.save(module, file, _use_new_zipfile_serialization=False),
        lambda file: torch.jit.save(torch.jit.script(module), file),
        lambda file: torch.export.save(
            torch.export.export(module.eval(), (torch.zeros(2, 3, 8, 8),)), file
        ),
    ):
        file = io.BytesIO()
        write(file)
        contents.append(file.getvalue())
    return contents


def _read_torch(path: Path) -> None:
    from dippm.model.frontends import InputSpec, pytorch
    from dippm.model.frontends.torch.archive import archive_kind, load_pickled

    pytorch.accepts(path)
    if archive_kind(path) in ("pt2", "torchscript"):  # refused without trust
        pytorch.load(path, InputSpec.parse("3,8,8"), trust=False)
    else:
        load_pickled(path, trust=False)


def _member(made: Callable[[Path], list[bytes]], ending: str) -> Callable[[Path], list[bytes]]:
    """Return seeds: a member of each archive that has it, to be changed inside."""

    def seeds(folder: Path) -> list[bytes]:
        found = []
        for content in made(folder):
            if zipfile.is_zipfile(io.BytesIO(content)):
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    names = [name for name in archive.namelist() if name.endswith(ending)]
                    found += [archive.read(name) for name in names]
        return found

    return seeds


def _read_member(
    made: Callable[[Path], list[bytes]], ending: str, read: Callable[[Path], None]
) -> Callable[[Path], None]:
    """Return a reader of an archive whose member has other bytes and the checksum of these."""

    @cache
    def archive() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return made(Path(folder))[0]

    def of(path: Path) -> None:
        whole = path.with_name("whole.zip")
        with (
            zipfile.ZipFile(io.BytesIO(archive())) as held,
            zipfile.ZipFile(whole, "w") as changed,
        ):
            for name in held.namelist():
                own = name.endswith(ending)
                changed.writestr(name, path.read_bytes() if own else held.read(name))
        read(whole)

    return of


def _keras(folder: Path) -> list[bytes]:
    """The archive alone: HDF5 in C may loop over a damaged file, and is read in the worker only."""
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="relu")])
    model.save(folder / "m.keras")
    return [(folder / "m.keras").read_bytes()]


def _read_keras(path: Path) -> None:
    from dippm.model.frontends import keras, keras_allowlist

    keras.accepts(path)
    keras_allowlist.check(keras._read_config(path), path)


def _hdf5(folder: Path) -> list[bytes]:
    """As Keras writes them: text of any length, attributes and data sets in groups."""
    import h5py

    with h5py.File(folder / "m.h5", "w") as file:
        file.attrs["model_config"] = '{"class_name": "Sequential", "config": {"layers": []}}'
        file.attrs["keras_version"] = "3.15.1"
        layer = file.create_group("model_weights").create_group("dense")
        layer["kernel"] = [[0.5] * 4] * 8
        layer.attrs["weight_names"] = ["kernel"]
    return [(folder / "m.h5").read_bytes()]


def _read_hdf5(path: Path) -> None:
    from dippm.model.frontends import keras

    keras.HDF5_CPU_S = 1
    keras.accepts(path)
    if keras._is_hdf5(path):
        keras._read_config(path)


def _savedmodel(folder: Path) -> list[bytes]:
    import tensorflow as tf

    tf.saved_model.save(tf.Module(), str(folder / "saved"))
    return [(folder / "saved" / "saved_model.pb").read_bytes()]


def _read_savedmodel(path: Path) -> None:
    from dippm.model.frontends import savedmodel

    where = path.parent / "saved_model.pb"
    shutil.copyfile(path, where)
    savedmodel.accepts(path.parent)
    savedmodel._read(path.parent)


def _paddle(folder: Path) -> list[bytes]:
    """A program of one parameter and one operator, as Paddle writes it."""
    tensor = {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [8, 4], "NCHW", [], 0]}
    held = {"#": "p", "A": [0, 1, 1, "w"], "O": {"%": 1, "TT": tensor}}
    relu = {"#": "1.relu", "I": [{"%": 1}], "O": [{"%": 2, "TT": tensor}]}
    program = {"regions": [{"blocks": [{"args": [], "ops": [held, relu]}]}]}
    document = {"base_code": {"magic": "pir", "version": 1}, "program": program}
    return [json.dumps(document).encode()]


def _read_paddle(path: Path) -> None:
    from dippm.model.frontends import paddle

    paddle.accepts(path)
    paddle._check(path)
    document = paddle._document(path)
    paddle._check_operators(document, path)
    list(paddle._stored_shapes(document))


def _hf_config(folder: Path) -> list[bytes]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 256,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return [json.dumps(config).encode()]


def _read_hf_config(path: Path) -> None:
    from dippm.decide.language import read_decoder

    repr(read_decoder(path))


def _read_hf_config_folder(path: Path) -> None:
    """Convert a folder of a configuration whole, in the worker."""
    from dippm.model import frontends

    folder = path.parent / "folder"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / "config.json")
    frontends.load(f"hf-config:{folder}", cache=False, timeout_s=40, memory_limit_mb=3000)


# Databases and records of runs


def umlaut_values() -> list[Any]:
    """Return what UMLAUT pickled."""
    import numpy as np

    at = datetime(2024, 8, 13, 9, 18, 33, 309111)
    return [
        6.5,
        {"timestamps": [at, at], "measurements": [1.5, 2.0], "interval": 1},
        {"matrix": np.arange(6).reshape(2, 3), "labels": np.array(["a", "bcd"])},
        [np.float32(1), np.int64(2), np.bool_(True)],
        np.array(["x", None], dtype=object),
    ]


def _pickles(folder: Path) -> list[bytes]:
    return [pickle.dumps(value, protocol) for value in umlaut_values() for protocol in range(6)]


def _read_pickle(path: Path) -> None:
    from dippm.umlaut.pickled import plain_pickle

    with contextlib.suppress(ValueError):
        json.dumps(plain_pickle(path.read_bytes()), allow_nan=False)


def _umlaut(folder: Path) -> list[bytes]:
    from tests.unit.umlaut.test_import import OTHER, UUID, made

    rows = [
        (UUID, n / 10, f"text {n}", kind, pickle.dumps(value), "s", "f")
        for n, (kind, value) in enumerate(
            zip(("time", *["loss"] * 4), umlaut_values(), strict=True)
        )
    ]
    rows += [(OTHER, n, "y" * 300, "time", n / 8, "s", "f") for n in range(40)]
    return [made(folder / "old.db", rows).read_bytes()]


def _read_umlaut(path: Path) -> None:
    from dippm.umlaut.importing import import_database
    from dippm.umlaut.rows import rows_of_folder

    runs = path.parent / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    for run in import_database(path, runs).folders:
        rows_of_folder(run)


def _run(folder: Path, name: str) -> list[bytes]:
    from tests.run_folders import make_run

    return [file.read_bytes() for file in sorted(make_run(folder / "spool").glob(name))]


def _read_run(name: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from dippm.runs.store.run_contents import gather, logged_metrics, logged_params, logged_tags
        from dippm.umlaut.rows import rows_of_folder
        from tests.run_folders import make_run

        home = path.parent / "spool"
        ready = next(home.glob("*"), None) or make_run(home)
        kept = path.parent / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(ready, kept)
        shutil.copyfile(path, next(kept.glob(name)))
        gathered = gather(kept)
        logged_metrics(gathered), logged_params(gathered.recorded.start), logged_tags(gathered)
        rows_of_folder(kept)

    return read


def _parquet(folder: Path) -> list[bytes]:
    from dippm.runs.store.columns import read_columns
    from dippm.runs.store.parquet import write_samples
    from tests.run_folders import make_run

    run = make_run(folder / "spool")
    columns, _ = read_columns(run.glob("samples-*.dippm"))
    (folder / "parquet").mkdir()
    write_samples(columns, folder / "parquet")
    return [file.read_bytes() for file in sorted((folder / "parquet").glob("*.parquet"))]


def _read_parquet(path: Path) -> None:
    from dippm.runs.store.parquet import read_samples

    alone = path.parent / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    alone.mkdir()
    for name in ("tree-0.parquet", "absent.parquet"):
        shutil.copyfile(path, alone / name)
        read_samples(alone)


def _shards(folder: Path) -> list[bytes]:
    from tests.collected_rows import rows

    return ["\n".join(json.dumps(row) for row in rows()[:5]).encode()]


def _parquet_shards(folder: Path) -> list[bytes]:
    from dippm.measure.collected.shards import _parquet
    from tests.collected_rows import rows

    return [_parquet(rows()[:5])]


def _read_shard(path: Path) -> None:
    from dippm.measure.collected.rows import collected

    folder = path.parent / "collected"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if path.suffix == ".jsonl":  # changed inside: what is packed has a checksum
        packed = gzip.compress(path.read_bytes(), mtime=0)
        (folder / "shard-0000.jsonl.gz").write_bytes(packed)
    else:
        shutil.copyfile(path, folder / f"shard-0000{path.suffix}")
    collected(folder)


def _cache_entry(folder: Path) -> list[bytes]:
    from dippm.model.frontends import InputSpec, onnx

    _onnx(folder)
    return [onnx.load(folder / "small.onnx", InputSpec.parse(None)).to_json().encode()]


def _read_cache_entry(path: Path) -> None:
    """Read the bytes as an entry, and as a graph in an entry that somebody sealed."""
    from dippm.model.frontends import cache as graphs
    from dippm.model.graph import build
    from dippm.model.relax.raw_graph import pack

    os.environ["DIPPM_CACHE_DIR"], before = str(path.parent), os.environ.get("DIPPM_CACHE_DIR")
    try:
        entry = graphs._file("ab" * 32)
        entry.parent.mkdir(parents=True, exist_ok=True)
        text = _text(path)
        for content in (path.read_bytes(), pack(text), pack(graphs._seal("ab" * 32, text))):
            entry.write_bytes(content)
            if graph := graphs.read("ab" * 32):
                build(graph)
    finally:
        del os.environ["DIPPM_CACHE_DIR"]
        if before is not None:
            os.environ["DIPPM_CACHE_DIR"] = before


def _journals(folder: Path) -> list[bytes]:
    from dippm.runs.plans.journal import JOURNAL, Journal
    from dippm.runs.plans.row import Process

    here = str(Process.of(os.getpid()))
    journal = Journal(folder / "plan")
    journal.write(row=1)
    journal.write(row=1, process=here)
    journal.write(row=1, run="ab" * 16, folder="/runs/ab")
    journal.write(row=2, process=here)
    journal.write(row=2, ended="FINISHED")
    return [(folder / "plan" / JOURNAL).read_bytes()]


def _read_journal(path: Path) -> None:
    """Read what a recovery reads; nothing that the journal names is ended."""
    from dippm.runs.plans.journal import JOURNAL, is_left, left_open

    folder = path.parent / "plan"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path, folder / JOURNAL)
    is_left(folder)
    for row in left_open(folder)[0]:
        assert row.process is None or not row.process.goes_on or row.process.pid > 0
        Path(row.folder) / row.run, row.row + 1


def _study(path: Path) -> Any:
    """Open a search as `explore` does; its models are never built."""
    from dippm.decide.exploration import Space
    from dippm.decide.exploration.evaluation import SearchQuestion
    from dippm.decide.exploration.objectives import objectives_of
    from dippm.decide.exploration.study import Study

    space = Space({"small": lambda: None}, batch=[1, 4])
    question = SearchQuestion(space, objectives_of(["latency_ms"]), (), None)  # type: ignore[arg-type]
    asked = {"sampler": "random", "trials": 2, "seed": 0, "take_over": True}
    return Study(question, storage=f"sqlite:///{path}", name="dippm", **asked)


def _studies(folder: Path) -> list[bytes]:
    from dippm.decide.exploration.evaluation import DesignOutcome

    study = _study(folder / "search.db")
    for number in study.ask(2):
        study.tell(number, DesignOutcome("ok", {"latency_ms": 1.5}, checkpoint="hybrid-gpu"))
    study.release()
    study._study._storage._backend.engine.dispose()
    return [(folder / "search.db").read_bytes()]


def _read_study(path: Path) -> None:
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()
    study = _study(path)
    study.tried()
    study.release()
    study._study._storage._backend.engine.dispose()


def _outcomes(folder: Path) -> list[bytes]:
    from dippm.decide.exploration.evaluation import DesignOutcome

    found = DesignOutcome(
        "infeasible", {"latency_ms": 1.5}, {"memory_mb": 0.5}, "too large", ("a",)
    )
    return [json.dumps(found.to_dict()).encode()]


@cache
def _whole_study() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return _studies(Path(folder))[0]


def _read_outcome(path: Path) -> None:
    database = path.with_name("search.db")
    for beside in path.parent.glob("search.db*"):
        beside.unlink()
    database.write_bytes(_whole_study())
    connection = sqlite3.connect(database)
    with contextlib.closing(connection), connection:
        change = "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'outcome'"
        connection.execute(change, (_text(path),))
    _read_study(database)


# Checkpoints


def _checkpoint(name: str, file: str) -> Callable[[Path], list[bytes]]:
    def seeds(folder: Path) -> list[bytes]:
        from dippm.estimate.pretrained import store

        return [(store.find(name).path / file).read_bytes()]

    return seeds


@cache
def _graph() -> Any:
    import dippm
    from tests.conftest import write_onnx

    with tempfile.TemporaryDirectory() as folder:
        return dippm.read_graph(write_onnx(Path(folder, "m.onnx"), batch="batch"))


def _read_checkpoint(name: str, file: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        import dippm
        from dippm.estimate.pretrained import store

        folder = path.parent / "name" / "1"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(store.find(name).path, folder)
        shutil.copyfile(path, folder / file)
        answer = dippm.predict(_graph(), device="A100", checkpoint=folder)
        json.dumps(answer.to_dict(), allow_nan=False)

    return read


# Texts


def _read_device(path: Path) -> None:
    from dippm.devices import read_device, write_device

    device = read_device(path)
    write_device(device, path.with_name("again.toml"))
    read_device(path.with_name("again.toml"))


def _read_prices(path: Path) -> None:
    from dippm.decide.choice.prices import read_prices

    for price in read_prices(path).per_hour.values():
        assert 0 < 1 / price < 1e9


def _read_pipeline(path: Path) -> None:
    from dippm.decide.pipelines import read_pipeline

    read_pipeline(path)


def _spaces(folder: Path) -> list[bytes]:
    from dippm.decide.exploration.space_file import EXAMPLE

    return [EXAMPLE.encode()]


def _read_space(path: Path) -> None:
    from dippm.decide.exploration.space_file import read_space

    read_space(path)


def _read_plan(path: Path) -> None:
    from dippm.runs.plans.table import read_plan

    plan = read_plan(path)
    assert len(plan.rows) <= 200_000


def _read_rows(path: Path) -> None:
    from dippm.measure.calibration import _table

    _table(path)


def _read_list(path: Path) -> None:
    from dippm.estimate.model_list import candidates_of

    candidates_of(_text(path))


def _read_condition(path: Path) -> None:
    from dippm.runs.store.query import Condition

    condition = Condition.parse(_text(path))
    assert condition.clause().text().startswith("metrics.`")
    condition.holds({condition.metric: 1.0})


def _read_input(path: Path) -> None:
    from dippm.model.frontends import InputSpec

    spec = InputSpec.parse(_text(path))
    assert all(size > 0 for shape in spec.shapes.values() for size in shape)


def _read_exploration(path: Path) -> None:
    from dippm.show.ui.exploration import exploration_of
    from dippm.show.ui.selection import filter_runs

    found = exploration_of(path.read_bytes())
    filter_runs([], found.search, found.status, found.condition)
    assert exploration_of(found.text()) == found


def _explorations(folder: Path) -> list[bytes]:
    from dippm.show.ui.exploration import ChartSelection, ChartView

    chart = ChartView(stream="tree.rss_mb", log=True, x=(0.0, 9.5))
    found = ChartSelection(runs=("ab" * 16,), charts=(chart,), condition="loss < 3", search="a b")
    return [found.text().encode()]


def _stores(folder: Path) -> list[bytes]:
    from dippm.runs.store.runs import open_store
    from tests.run_folders import make_run

    open_store(str(folder / "runs.db")).attach(make_run(folder / "spool"))
    with sqlite3.connect(folder / "runs.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return [(folder / "runs.db").read_bytes()]


def _read_store(path: Path) -> None:
    from dippm.runs.store.runs import open_store

    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()
    store = open_store(str(path))
    for run in store.runs(search="training", where=["loss < 10"]):
        repr(run.spans), repr(run.values), repr(run.columns)


def _record(folder: Path) -> list[bytes]:
    from dippm.runs.store.run_contents import gather
    from tests.run_folders import make_run

    return [json.dumps(gather(make_run(folder / "spool")).document(), default=str).encode()]


def _read_record(path: Path) -> None:
    """Read each part of a run of a store, whatever became of the others."""
    from dippm.runs.store.stored_run import RECORD, StoredRun

    def fetch(name: str) -> Path | None:
        return path if name == RECORD else None

    run = StoredRun("ab" * 16, "", "", "finished", 0, 0.0, "", {}, "1", fetch)
    for part in ("start", "end", "spans", "values", "summaries", "remarks", "artifacts"):
        with contextlib.suppress(DippmError):
            json.dumps(getattr(run, part), default=str)


DEVICE = """
name = "Mine"
memory_mb = 16384
bandwidth_gb_s = 320.0
peak_tflops = {fp32 = 8.1, fp16 = 65}
mig_profiles = [["1g.5gb", 4864, 14, 1, 1]]
[calibration]
base = "T4"
log_slowdown = 0.1
classes = {gemm = 0.2}
rows = 12
"""
PLAN = (
    b"Experiment,Workload,Status,Run,Devices,Collocation,Listeners,File,Params\n"
    b'1,1,,,0,-,smi,a.py,"batch-size=32"\n1,1,,,1,MPS,,b.py,\n'
)
SWEEP = """
experiment: 1
devices: 0
file: train.py
method: random
parameters:
  batch-size: {values: [32, 64]}
  lr: {min: 0.001, max: 0.1, log: true}
runs: 4
"""

FORMATS: dict[str, Format] = {
    "onnx": Format(".onnx", _onnx, _read_onnx),
    "torch": Format(".pt", _torch, _read_torch),
    "keras": Format(".keras", _keras, _read_keras, needs="keras"),
    "pickle in an archive": Format(
        ".pkl", _member(_torch, "/data.pkl"), _read_member(_torch, "/data.pkl", _read_torch)
    ),
    "configuration of Keras": Format(
        ".json",
        _member(_keras, "config.json"),
        _read_member(_keras, "config.json", _read_keras),
        needs="keras",
    ),
    "savedmodel": Format(".pb", _savedmodel, _read_savedmodel, needs="tensorflow", slow=True),
    "paddle": Format(".json", _paddle, _read_paddle),
    "hf-config": Format(".json", _hf_config, _read_hf_config),
    "umlaut pickle": Format(".pickle", _pickles, _read_pickle),
    "umlaut database": Format(".db", _umlaut, _read_umlaut),
    "start of a run": Format(".json", lambda f: _run(f, "start.json"), _read_run("start.json")),
    "events of a run": Format(".jsonl", lambda f: _run(f, "events.jsonl"), _read_run("events.*")),
    "end of a run": Format(".json", lambda f: _run(f, "end.json"), _read_run("end.json")),
    "samples of a run": Format(".dippm", lambda f: _run(f, "samples*"), _read_run("samples*")),
    "stored samples": Format(".parquet", _parquet, _read_parquet, needs="pyarrow"),
    "collected rows": Format(".jsonl", _shards, _read_shard, needs="pyarrow"),
    "collected Parquet": Format(".parquet", _parquet_shards, _read_shard, needs="pyarrow"),
    "cached graph": Format(".json", _cache_entry, _read_cache_entry),
    "store": Format(".db", _stores, _read_store, slow=True, needs="mlflow"),
    "record of a stored run": Format(".json", _record, _read_record),
    "HDF5 file": Format(".h5", _hdf5, _read_hdf5, needs="h5py", slow=True),
    "folder of hf-config": Format(
        ".json", _hf_config, _read_hf_config_folder, slow=True, waits=True, needs="transformers"
    ),
    "journal of a plan": Format(".jsonl", _journals, _read_journal),
    "search": Format(".db", _studies, _read_study, slow=True, needs="optuna"),
    "outcome of a search": Format(".json", _outcomes, _read_outcome, slow=True, needs="optuna"),
    "device": Format(".toml", _texts(DEVICE), _read_device),
    "prices": Format(".toml", _files("examples/prices.toml"), _read_prices),
    "space": Format(".toml", _spaces, _read_space),
    "pipeline": Format(".toml", _files("examples/pipelines/caption.toml"), _read_pipeline),
    "plan": Format(".csv", lambda folder: [PLAN], _read_plan),
    "sweep": Format(".yml", _texts(SWEEP), _read_plan),
    "measured rows": Format(".csv", _texts("model,latency_ms,batch\na.onnx,3.5,8\n"), _read_rows),
    "list of models": Format(".csv", _texts('model,input,batch\na,"3,2","1,8"\n'), _read_list),
    "condition": Format(".txt", _texts("tree.rss_mb.max > 100", "loss <= 1e-3"), _read_condition),
    "input": Format(".txt", _texts("3,224,224", "a=N,3;b=value:[1, 2.5]", "x=4×N"), _read_input),
    "exploration": Format(".json", _explorations, _read_exploration),
    **{
        f"{file} of a checkpoint": Format(
            Path(file).suffix,
            _checkpoint("hybrid-gpu", file),
            _read_checkpoint("hybrid-gpu", file),
            slow=True,
        )
        for file in ("config.json", "metrics.json", "model.safetensors")
    },
}
