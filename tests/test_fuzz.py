"""Damaged model files give a typed error or a graph, and never anything else."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dippm import frontends
from dippm.errors import ModelFileError
from dippm.frontends import InputSpec

BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
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


@BOUNDED
@given(document=json_values)
def test_checkpoint_configuration(document, checkpoint_folder, tmp_path):
    from dippm.errors import CheckpointError
    from dippm.pretrained.store import read_info

    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError):
        read_info(tmp_path)
