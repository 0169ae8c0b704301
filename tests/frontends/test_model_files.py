"""What a path may lead to: only regular files are opened, links stay with the model."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from dippm.base import files
from dippm.errors import ModelFileError, ModelNotFoundError, UnknownFormatError
from dippm.model import frontends
from dippm.model.frontends import cache, containers, paddle, registry

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")

SUFFIXES = (".onnx", ".pt", ".keras", ".h5", ".pb", ".json", ".pdmodel", ".pdiparams", "")


def refused(path, kind=ModelFileError, **asked):
    with pytest.raises(kind) as caught:
        frontends.load(path, "3,4,4", **asked)
    assert caught.value.hint
    return caught.value


def fifo(path):
    os.mkfifo(path)


def server(path):
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as open_socket:
            open_socket.bind(path.name)
    finally:
        os.chdir(here)


def device(path):
    path.symlink_to("/dev/zero")


def silent_device(path):
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("make", "what"),
    [(fifo, "named pipe"), (server, "socket"), (device, "device"), (silent_device, "device")],
)
def test_what_is_no_file_is_not_opened(tmp_path, make, what, suffix):
    path = tmp_path / f"model{suffix}"
    make(path)
    assert what in refused(path, UnknownFormatError).message


@pytest.mark.parametrize("framework", ["pytorch", "onnx", "keras", "tensorflow", "paddle"])
def test_a_fifo_is_not_opened_when_the_framework_is_given(tmp_path, framework):
    fifo(tmp_path / "model")
    refused(tmp_path / "model", framework=framework)


@pytest.mark.parametrize("name", ["saved_model.pb", "model.json", "model.pdmodel", "m.pdiparams"])
@pytest.mark.parametrize("make", [fifo, device])
def test_a_folder_with_something_else_in_it(tmp_path, name, make):
    make(tmp_path / name)
    error = refused(tmp_path, UnknownFormatError)
    assert f"{name} in it is a " in error.message


def test_an_empty_folder(tmp_path):
    assert "an empty folder" in refused(tmp_path, UnknownFormatError).message


def test_a_folder_of_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ENTRIES", 50)
    for i in range(51):
        (tmp_path / f"{i}.json").write_text("{}")
    assert "more than 50" in refused(tmp_path).message


@pytest.mark.parametrize("name", ["mem", "environ", "maps", "kmsg"])
def test_files_that_the_kernel_makes_up_are_empty(name):
    path = Path("/proc/kmsg" if name == "kmsg" else f"/proc/self/{name}")
    with contextlib.suppress(OSError):
        assert not path.stat().st_size
    refused(path)


@pytest.mark.parametrize(
    "name", ["n" * 5000 + ".onnx", "a/" * 5000 + "m.onnx", "nul\0.onnx", "half\ud800.onnx"]
)
def test_names_that_no_file_has(tmp_path, name):
    error = refused(tmp_path / name, ModelNotFoundError)
    assert len(error.message) < 500
    refused(f"hf-config:{tmp_path / name}")
    refused(f"hf-config:~nobody-of-this-name/{name}")


def test_a_class_in_a_program_gets_the_hint_for_programs(tmp_path):
    (tmp_path / "net.py").write_text("class Net: ...")
    error = refused(f"{tmp_path}/net.py:Net", ModelNotFoundError)
    assert "net.py is a program in Python" in error.message
    assert "pass the object" in error.hint
    assert "in Python" not in refused(f"{tmp_path}/other.py:Net", ModelNotFoundError).message


def test_links_to_nothing_and_in_circles(tmp_path):
    (tmp_path / "broken.onnx").symlink_to(tmp_path / "gone.onnx")
    refused(tmp_path / "broken.onnx", ModelNotFoundError)
    (tmp_path / "round.onnx").symlink_to(tmp_path / "round.onnx")
    refused(tmp_path / "round.onnx")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_must_not_be_read(as_nobody, suffix):
    folder, begin = as_nobody
    path = folder / f"model{suffix}"
    path.write_text("secret")
    path.chmod(0)
    begin()
    error = refused(path)
    assert "must not be read" in error.message
    assert "permissions" in error.hint


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
def test_a_folder_that_must_not_be_read(as_nobody, mode):
    folder, begin = as_nobody
    inner = folder / "model"
    inner.mkdir()
    (inner / "saved_model.pb").write_text("secret")
    inner.chmod(mode)
    begin()
    refused(inner)
    if not mode & 0o100:
        assert "must not be read" in refused(inner / "saved_model.pb").message


def test_a_configuration_that_must_not_be_read(as_nobody):
    folder, begin = as_nobody
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "config.json").chmod(0)
    begin()
    assert "ermission" in refused(f"hf-config:{folder}").message


def test_folders_are_hashed_without_waiting(tmp_path):
    (tmp_path / "saved_model.pb").write_text("1")
    before = cache.digest(tmp_path)
    fifo(tmp_path / "pipe")
    device(tmp_path / "zero")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "round").symlink_to(tmp_path)
    assert cache.digest(tmp_path) == before
    with (tmp_path / "weights").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert cache.digest(tmp_path) != before


def test_a_config_that_is_no_file(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
    fifo(tmp_path / "a" / "config.json")
    device(tmp_path / "b" / "config.json")
    fifo(tmp_path / "pipe")
    for name in ("a", "b", "pipe", "a/config.json"):
        refused(f"hf-config:{tmp_path / name}")


def test_fields_without_end_are_not_read_to_their_end(tmp_path):
    """A graph behind a hundred thousand fields is no ONNX file, whoever wrote it."""
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08" * 10_000_000 + b"\x3a\x00")
    refused(tmp_path / "model.onnx", UnknownFormatError)


# Archives


def archive(path, count):
    """Write a zip of `count` empty members, as a file that only its directory makes large."""
    entries, names = bytearray(), (b"archive/data/%d" % i for i in range(count))
    for name in names:
        header = (b"PK\x01\x02", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0)
        entries += struct.pack("<4s4B4HL2L5H2L", *header) + name
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    most = min(count, 0xFFFF)
    end = (b"PK\x05\x06", 0, 0, most, most, len(entries), len(local), 0)
    path.write_bytes(local + entries + struct.pack("<4s4H2LH", *end))


def test_an_archive_of_very_many_members_is_not_indexed(tmp_path):
    archive(path := tmp_path / "model.pt", 70_000)  # more than an archive without ZIP64 can count
    assert sum(1 for _ in containers.member_names(path)) == 70_000
    tracemalloc.start()
    try:
        with pytest.raises(UnknownFormatError):
            registry.find(path)
        assert tracemalloc.get_traced_memory()[1] < 14 << 20  # an index takes twice that
    finally:
        tracemalloc.stop()


def test_an_archive_of_more_members_than_any_model(tmp_path, monkeypatch):
    archive(path := tmp_path / "model.pt", 3000)
    monkeypatch.setattr(containers, "MAX_DIRECTORY_BYTES", 100_000)
    assert "is not a model" in refused(path).message


def test_names_are_those_that_zipfile_finds(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "torch.zip")
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), tmp_path / "script.zip")
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as plain:
        plain.comment = b"a comment" * 1000
        for name in ("config.json", "unicode-äß漢", "a" * 3000):
            plain.writestr(name, "x" * 100)
    (tmp_path / "behind.zip").write_bytes(b"x" * 500 + (tmp_path / "plain.zip").read_bytes())
    for path in tmp_path.glob("*.zip"):
        with zipfile.ZipFile(path) as opened:
            assert list(containers.member_names(path)) == opened.namelist()


def test_damaged_archives_are_damaged(tmp_path):
    buffer = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2), buffer)
    content, path = buffer.getvalue(), tmp_path / "model.pt"
    for cut in range(4, len(content), 97):
        path.write_bytes(content[:cut])
        refused(path)


# Links


@pytest.fixture
def external(tmp_path):
    """An ONNX model whose sizes stand in another file, in a folder of its own."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    folder = tmp_path / "download"
    folder.mkdir()
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], np.array([-1, 8]).tobytes(), True)
    shape.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "sizes.bin"), ("offset", "0"), ("length", "16")):
        shape.external_data.add(key=key, value=value)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 2, 4])],
        [value("y", TensorProto.FLOAT, None)],
        [shape],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        folder / "model.onnx",
    )
    (folder / "sizes.bin").unlink()  # each test puts its own there
    return folder


SIZES = np.array([-1, 8]).tobytes()


def test_external_data_in_a_store_of_blobs_is_found(external, tmp_path):
    """As hubs keep models: each file of the folder is a link into a store."""
    (external / "sizes.bin").write_bytes(SIZES)
    expected = frontends.load(external / "model.onnx", cache=False)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for number, name in enumerate(("model.onnx", "sizes.bin")):
        (external / name).rename(tmp_path / "blobs" / f"blob{number}")
        (tmp_path / "snapshot" / name).symlink_to(Path("..", "blobs", f"blob{number}"))
    assert frontends.load(tmp_path / "snapshot" / "model.onnx", cache=False) == expected


def test_a_link_within_the_folder_is_followed(external):
    (external / "parts").mkdir()
    (external / "parts" / "1").write_bytes(SIZES)
    (external / "sizes.bin").symlink_to(Path("parts", "1"))
    assert frontends.load(external / "model.onnx", cache=False).operators


@pytest.mark.parametrize("through", ["link", "folder"])
def test_a_link_out_of_the_folder_is_not_followed(external, tmp_path, through):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "sizes.bin").write_bytes(SIZES)
    if through == "link":
        (external / "sizes.bin").symlink_to(tmp_path / "secret" / "sizes.bin")
    else:
        data = (external / "model.onnx").read_bytes()
        (external / "abc").symlink_to(tmp_path / "secret")
        data = data.replace(b"sizes.bin", b"abc/sizes")
        (tmp_path / "secret" / "sizes").write_bytes(SIZES)
        (external / "model.onnx").write_bytes(data)
    error = refused(external / "model.onnx", cache=False)
    assert "leads out of the folder" in error.message


def test_external_data_that_never_ends(external):
    device(external / "sizes.bin")
    refused(external / "model.onnx", cache=False)
    (external / "sizes.bin").unlink()
    fifo(external / "sizes.bin")
    refused(external / "model.onnx", cache=False)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "inner/../../secret", "nul\0"])
def test_locations_that_lead_out(tmp_path, location):
    with pytest.raises(ModelFileError):
        files.companion(tmp_path / "model.onnx", location)


def test_parameters_that_lead_out(tmp_path):
    (tmp_path / "model").mkdir()
    program = tmp_path / "model" / "net.json"
    program.write_text('{"base_code": {"magic":"pir"}}')
    (tmp_path / "secret").write_text("")
    (tmp_path / "model" / "net.pdiparams").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFileError, match="leads out of the folder"):
        paddle._check(program)
