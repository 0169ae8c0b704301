from __future__ import annotations

import gzip
import json
import os
import struct

import pytest
import torch
from torch import nn

from dippm.model import frontends
from dippm.model.frontends import cache, registry
from dippm.model.frontends.frontend import InputSpec

SHAPE = "3,32,32"


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DIPPM_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.pt"
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), path)
    return path


def no_worker(*_args, **_kwargs):
    raise AssertionError("a worker was asked")


def kept(tmp_path):
    return list((tmp_path / "cache").rglob("*.json.gz"))


def test_the_second_time_needs_no_worker(model_file, tmp_path, monkeypatch):
    first = frontends.load(model_file, SHAPE)
    assert len(kept(tmp_path)) == 1
    monkeypatch.setattr(frontends, "_convert", no_worker)
    assert frontends.load(model_file, SHAPE) == first
    assert frontends.load(str(model_file), (3, 32, 32)) == first
    with pytest.raises(AssertionError):
        frontends.load(model_file, "3,64,64")
    with pytest.raises(AssertionError):
        frontends.load(model_file, SHAPE, cache=False)


def test_content_decides_not_the_path(model_file, tmp_path, monkeypatch):
    first = frontends.load(model_file, SHAPE)
    twin = tmp_path / "twin.pt"
    twin.write_bytes(model_file.read_bytes())
    monkeypatch.setattr(frontends, "_convert", no_worker)
    assert frontends.load(twin, SHAPE) == first
    torch.save(nn.Sequential(nn.Conv2d(3, 5, 3)), twin)
    with pytest.raises(AssertionError):
        frontends.load(twin, SHAPE)


def test_a_damaged_entry_counts_as_absent(model_file, tmp_path):
    first = frontends.load(model_file, SHAPE)
    (entry,) = kept(tmp_path)
    whole = entry.read_bytes()
    document = json.loads(gzip.decompress(whole))
    header = struct.pack("<4sIBB", b"\x1f\x8b\x08\x00", 0, 0, 3)
    for damage in (
        b"",
        b"no gzip",
        gzip.compress(b"{}"),
        whole[:50],
        header + b"\xff" * 400,
        gzip.compress(b"[" * 100_000),
        *(changed(document, **change) for change in CHANGES),
    ):
        entry.write_bytes(damage)
        assert frontends.load(model_file, SHAPE) == first
        assert cache.read(entry.name.partition(".")[0]) == first, "it is written anew"


CHANGES: tuple[dict[str, object], ...] = (
    {"batch": None},
    {"batch": 1018},
    {"inputs": [-1]},
    {"values": None},
    {"values": [[[1 << 62], "float32", "input", "x", None]]},
    {"operators": []},
    {"notes": "text"},
)


def changed(document, **change):
    return gzip.compress(json.dumps({**document, **change}).encode())


def test_an_entry_of_another_graph_counts_as_absent(model_file, tmp_path):
    frontends.load(model_file, SHAPE)
    (entry,) = kept(tmp_path)
    other = cache._file("0" * 64)
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(entry.read_bytes())
    assert cache.read("0" * 64) is None


def test_an_entry_that_is_no_file_counts_as_absent(model_file):
    entry = cache._file("0" * 64)
    entry.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(entry)
    assert cache.read("0" * 64) is None


def test_a_cache_without_a_home_is_no_error(model_file, monkeypatch):
    monkeypatch.setenv("DIPPM_CACHE_DIR", "~nobody-of-this-name/cache")
    assert cache.read("0" * 64) is None
    assert frontends.load(model_file, SHAPE).operators


def test_a_cache_that_cannot_be_written_is_no_error(model_file, tmp_path, monkeypatch):
    (tmp_path / "blocked").write_text("a file, not a folder")
    monkeypatch.setenv("DIPPM_CACHE_DIR", str(tmp_path / "blocked"))
    assert frontends.load(model_file, SHAPE).operators


def test_versions_are_part_of_the_key(model_file, monkeypatch):
    entry, spec = registry.find(model_file), InputSpec.parse(SHAPE)
    keys = {cache.key(model_file, entry, spec, trust=trust) for trust in (True, False)}
    monkeypatch.setattr(cache, "_version", lambda name: "other")
    keys.add(cache.key(model_file, entry, spec, trust=False))
    monkeypatch.setattr(cache, "RAW_GRAPH_VERSION", "other")
    keys.add(cache.key(model_file, entry, spec, trust=False))
    assert len(keys) == 4


def test_big_files_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "WHOLE_BYTES", 1 << 20)
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(64 << 20))
    before = cache.digest(path)
    assert cache.digest(path) == before
    with path.open("r+b") as file:
        file.seek(-10, 2)
        file.write(b"x")
    assert cache.digest(path) != before


def test_folders_cover_all_their_files(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_text("1")
    before = cache.digest(tmp_path / "model")
    (tmp_path / "model" / "b").write_text("2")
    assert cache.digest(tmp_path / "model") != before


class Anchored(nn.Module):
    """Keeps what a pass computes for the next one, as detectors keep their anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shape = nn.Conv2d(3, 4, 3, padding=1), None
        self.anchors = torch.empty(0)
        self.scale = 1.0

    def forward(self, x):
        y = self.layer(x).flatten(2)
        if self.shape != x.shape:
            self.shape = x.shape
            self.anchors = torch.arange(y.shape[-1], device=x.device, dtype=x.dtype) + 0.5
        return (y + self.anchors) * self.scale if self.scale != 1.0 else y + self.anchors


def test_a_module_is_translated_once_whatever_a_pass_leaves_in_it(monkeypatch):
    module, translated = Anchored().eval(), []
    worked = frontends._translate
    monkeypatch.setattr(frontends, "_TRANSLATED", {})
    monkeypatch.setattr(
        frontends, "_translate", lambda *given: translated.append(1) or worked(*given)
    )
    first = frontends.load(module, "3,8,8")
    module(torch.rand(2, 3, 16, 16))  # leaves anchors of another size
    assert frontends.load(module, "3,8,8") == first
    assert len(translated) == 1
    module.scale = 2.0
    assert frontends.load(module, "3,8,8") != first
    assert frontends.load(module, "3,4,4") != first
    assert len(translated) == 3
    frontends.load(module, "3,4,4", cache=False)
    assert len(translated) == 4
