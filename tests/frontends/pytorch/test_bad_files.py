"""Missing, wrong, truncated and random files: a typed error with a next step, never a crash."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dippm.errors import (
    ModelFileError,
    ModelNotFoundError,
    UnknownFormatError,
    UnknownNameError,
    UnsafeModelError,
)
from dippm.model import frontends
from dippm.model.frontends import pytorch, registry
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.archive import archive_kind, load_pickled
from tests.samples import sampled

SHAPE = "3,32,32"


def test_a_missing_file_names_its_neighbours(files):
    with pytest.raises(ModelNotFoundError, match=r"pickel\.pt") as caught:
        frontends.load(files / "pickel.pt", SHAPE)
    assert "pickle.pt" in caught.value.hint
    assert isinstance(caught.value, FileNotFoundError)


def test_a_state_dict_has_no_architecture(files):
    with pytest.raises(ModelFileError, match="weights without an architecture") as caught:
        frontends.load(files / "state_dict.pt", SHAPE)
    assert "nn.Module" in caught.value.hint


def test_something_else_than_a_model(tmp_path):
    torch.save([1, 2, 3], tmp_path / "list.pt")
    with pytest.raises(ModelFileError, match="a list, not a model"):
        frontends.load(tmp_path / "list.pt", SHAPE)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"hello world", "unknown format"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_unknown_content_lists_the_formats(tmp_path, content, words):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(UnknownFormatError, match=words) as caught:
        frontends.load(path, SHAPE)
    assert "Known formats" in caught.value.hint
    assert "pytorch" in caught.value.message


def test_the_wrong_framework(files):
    with pytest.raises(UnknownFormatError) as caught:
        frontends.load(files / "pickle.pt", SHAPE, framework="onnx")
    assert "looks like pytorch" in caught.value.hint
    with pytest.raises(UnknownNameError, match="pytorch"):
        frontends.load(files / "pickle.pt", SHAPE, framework="pytroch")


def test_an_object_that_is_no_model():
    with pytest.raises(UnknownFormatError, match="is not a model"):
        frontends.load(object(), SHAPE)


@pytest.mark.parametrize(
    "name",
    sampled(
        ["pickle.pt", "legacy.pth", "traced.pt", "static.pt2"], pytest.mark.nightly(part="hostile")
    ),
)
@pytest.mark.parametrize("part", [0.5, 0.97])
def test_truncated_files(files, tmp_path, name, part):
    data = (files / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(ModelFileError) as caught:
        frontends.load(path, SHAPE, trust=True)
    assert "again" in caught.value.hint


@given(data=st.data())
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_damaged_pickles_are_refused_or_read(files, tmp_path, data):
    name = data.draw(st.sampled_from(["pickle.pt", "legacy.pth"]))
    content = bytearray((files / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.pt"
    path.write_bytes(bytes(content))
    archive_kind(path)
    with contextlib.suppress(ModelFileError):
        assert pytorch.load(path, InputSpec.parse(SHAPE), trust=False).operators


@given(content=st.binary(max_size=300), suffix=st.sampled_from([".pt", ".onnx", ".bin", ""]))
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_bytes_are_recognised_as_nothing(tmp_path, content, suffix):
    path = tmp_path / f"random{suffix}"
    path.write_bytes(content)
    assert archive_kind(path) is None
    with contextlib.suppress(ModelFileError):
        assert registry.find(path).framework != "pytorch"


def test_trust_is_not_remembered(files):
    frontends.load(files / "traced.pt", SHAPE, trust=True)
    with pytest.raises(UnsafeModelError):
        frontends.load(files / "traced.pt", SHAPE)


def test_long_names_in_an_old_file_are_not_searched(tmp_path):
    """What torch says of a name is cut before `torch.load` searches it in quadratic time."""
    name = b"x" * 20_000
    header = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."
    (tmp_path / "model.pt").write_bytes(header + b"\x80\x02c" + name + b"\n" + name + b"\n.")
    assert archive_kind(tmp_path / "model.pt") == "legacy pickle"
    with pytest.raises(ModelFileError) as caught:
        load_pickled(tmp_path / "model.pt", trust=False)
    assert len(str(caught.value.__cause__)) < 5_000
