"""Damaged model files give a typed error or a graph, and never anything else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dippm.errors import DippmError, ModelFileError, RunError
from dippm.estimate.pretrained import store
from dippm.model import frontends
from dippm.model.frontends import InputSpec
from dippm.model.graph import build
from dippm.model.relax.raw_graph import RawGraph
from dippm.runs.store.folder import read_folder
from tests.fuzz.damage import damaged as damaged_as_text
from tests.fuzz.formats import FORMATS
from tests.run_folders import make_run

BOUNDED = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def damages(draw):
    """Where to cut, what to overwrite."""
    cut = draw(st.one_of(st.none(), st.floats(0, 1)))
    spots = draw(
        st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6)
    )
    return cut, spots


def damaged(content: bytes, damage) -> bytes:
    cut, spots = damage
    data = bytearray(content)
    for place, new in spots:
        start = int(place * len(data))
        data[start : start + len(new)] = new
    return bytes(data if cut is None else data[: int(cut * len(data))])


def read(path, shape):
    with contextlib.suppress(ModelFileError):
        frontends.load(path, InputSpec.parse(shape), cache=False, timeout_s=60.0)


@pytest.fixture(scope="module")
def torch_files(tmp_path_factory):
    """Paths, because hypothesis prints what a failing test was given."""
    folder = tmp_path_factory.mktemp("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    torch.save(module, folder / "module.pt")
    torch.jit.save(torch.jit.script(module), folder / "torchscript.pt")
    return folder


@pytest.mark.slow
@BOUNDED
@given(damage=damages())
def test_onnx(onnx_file, tmp_path, damage):
    path = tmp_path / "damaged.onnx"
    path.write_bytes(damaged(onnx_file.read_bytes(), damage))
    read(path, "3,32,32")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "torchscript"])
@BOUNDED
@given(damage=damages())
def test_torch(torch_files, tmp_path, kind, damage):
    path = tmp_path / "damaged.pt"
    path.write_bytes(damaged((torch_files / f"{kind}.pt").read_bytes(), damage))
    read(path, "3,32,32")


@BOUNDED
@given(text=st.text(max_size=30))
def test_input_sizes(text):
    with contextlib.suppress(ModelFileError):
        for shape in InputSpec.parse(text).shapes.values():
            assert all(isinstance(size, int) and size > 0 for size in shape)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


odd_values = st.one_of(
    json_values,
    st.sampled_from([None, -1, 0, 1 << 70, 10**400, True, "", "\x1b[0m", [], {}, [[[]]], 1e308]),
    st.floats(allow_nan=False, allow_infinity=False),
)


def places(document, path=()):
    """Yield the path of every part of a document."""
    yield path
    parts = document.items() if isinstance(document, dict) else ()
    if isinstance(document, list):
        parts = enumerate(document[:3])
    for key, part in parts:
        yield from places(part, (*path, key))


def with_part(document, path, value):
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = with_part(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("name", ["hybrid-gpu", "pmgns-cpu-epyc"])
@BOUNDED
@given(data=st.data())
def test_a_part_of_a_shipped_configuration(name, data, onnx_graph, tmp_path):
    """A checkpoint with odd parts is refused or predicts; nothing else."""
    import dippm
    from dippm.errors import DippmError

    original = store.find(name).path
    file = data.draw(st.sampled_from(["config.json", "metrics.json"]))
    document = json.loads((original / file).read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = with_part(document, path, data.draw(odd_values))
    folder = tmp_path / "name" / "1"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    (folder / file).write_text(json.dumps(document))
    device = "A100" if name == "hybrid-gpu" else "CPU-AMD-EPYC-2c"
    with contextlib.suppress(DippmError):
        answer = dippm.predict(onnx_graph, device=device, checkpoint=folder)
        json.dumps(answer.to_dict(), allow_nan=False)
        assert str(answer)


@pytest.fixture(scope="module")
def onnx_raw(onnx_file):
    return json.loads(frontends.load(onnx_file, InputSpec.parse(None)).to_json())


@pytest.fixture(scope="module")
def onnx_graph(onnx_file):
    import dippm

    return dippm.read_graph(onnx_file)


@settings(BOUNDED, max_examples=300)
@given(data=st.data())
def test_raw_graphs(onnx_raw, data):
    """A changed raw graph is refused where it is read, or becomes a graph, or says why not."""
    document = onnx_raw
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = with_part(document, path, data.draw(odd_values))
    with contextlib.suppress(ValueError):
        graph = RawGraph.from_json(json.dumps(document))
        assert graph.batch >= 1
        assert all(size >= 0 for value in graph.values for size in value.shape)
        assert RawGraph.from_json(graph.to_json()) == graph
        with contextlib.suppress(ModelFileError):
            assert build(graph).batch == graph.batch


@BOUNDED
@given(document=json_values)
def test_checkpoint_configuration(document, checkpoint_folder, tmp_path):
    from dippm.errors import CheckpointError
    from dippm.estimate.pretrained.store import read_info

    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError):
        read_info(tmp_path)


FAST = [name for name, form in FORMATS.items() if not form.slow]


@pytest.mark.parametrize("name", FAST)
def test_damaged_files_are_refused_or_read(name, tmp_path):
    """The same damages at each run; `make nightly` tries others for a minute a format."""
    form = FORMATS[name]
    if form.needs:
        pytest.importorskip(form.needs)
    (tmp_path / "seeds").mkdir()
    seeds, chance = form.seeds(tmp_path / "seeds"), random.Random(name)
    path = tmp_path / f"m{form.ending}"
    for _ in range(60):
        content = damaged_as_text(chance.choice(seeds), chance)
        path.write_bytes(content)
        form(path)


def test_entries_that_are_no_small_files(tmp_path):
    """Each is refused by each reader of a path, or read; nobody waits, nobody takes all memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("not-there")
    (tmp_path / "empty").touch()
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    read_by_path = (
        "umlaut database",
        "device",
        "prices",
        "space",
        "plan",
        "measured rows",
        "hf-config",
    )
    for name in read_by_path:
        for entry in ("pipe", "folder", "loop", "nowhere", "empty", "sparse"):
            link = tmp_path / f"{name} {entry}{FORMATS[name].ending}"
            link.symlink_to(entry)
            with pytest.raises(DippmError):
                pytest.fail(f"{name}, {entry}: {FORMATS[name].read(link)}")


def test_runs_in_entries_that_are_no_files(tmp_path):
    """A folder of a run with a pipe, a folder or a link that leads nowhere in place of a file."""
    for name in ("start.json", "events.jsonl", "end.json"):
        for number, kind in enumerate(("pipe", "folder", "loop")):
            run = make_run(tmp_path / f"{name}-{number}")
            (run / name).unlink()
            if kind == "pipe":
                os.mkfifo(run / name)
            elif kind == "folder":
                (run / name).mkdir()
            else:
                (run / name).symlink_to(name)
            with contextlib.suppress(RunError):
                assert name != "start.json", read_folder(run)
                read_folder(run)


@pytest.mark.slow
def test_damaged_stores_are_refused_or_read(tmp_path):
    """MLflow's database in SQLite, damaged in its pages."""
    form = FORMATS["store"]
    (tmp_path / "seeds").mkdir()
    (content,) = form.seeds(tmp_path / "seeds")
    chance = random.Random(1)
    for number in range(12):
        path = tmp_path / f"{number}.db"
        path.write_bytes(damaged_as_text(content, chance))
        form(path)
