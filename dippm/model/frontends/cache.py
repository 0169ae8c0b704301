"""Converted graphs on disk, so that another batch, precision or device needs no conversion.

The key covers the file's content, the input shapes, the version of `RawGraph`, our converting code,
and the versions of the packages involved. Entries are gzipped JSON that begins with its own
checksum; a damaged one counts as absent and is written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from dippm.base import files
from dippm.errors import ModelFileError
from dippm.model.frontends import named
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.registry import Entry
from dippm.model.relax.raw_graph import MAX_TEXT_BYTES, RAW_GRAPH_VERSION, RawGraph, pack, unpack

WHOLE_BYTES = 64 << 20
"""Files up to this size (in a folder: up to this total) are hashed whole; others by samples, size
and modification time."""

SAMPLES = 64
SAMPLE_BYTES = 1 << 18
DISTRIBUTIONS = {
    "torch": "torch",
    "keras": "keras",
    "tensorflow": "tensorflow-cpu",
    "paddle": "paddlepaddle",
    "paddle2onnx": "paddle2onnx",
    "onnx": "onnx",
}
NAMED_DISTRIBUTIONS: tuple[str, ...] = ("torch", "timm", "torchvision", "transformers")


def folder() -> Path:
    """Return the folder of the cached graphs: `DIPPM_CACHE_DIR`, or the user's cache folder."""
    if given := os.environ.get("DIPPM_CACHE_DIR"):
        return Path(given).expanduser() / "graphs"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "dippm" / "graphs"


def key(source: str | Path, entry: Entry, inputs: InputSpec, *, trust: bool) -> str:
    """Return the cache key of a source's graph."""
    distributions = NAMED_DISTRIBUTIONS
    if entry.module == named.__name__:
        content = _named_digest(str(source))
    else:
        content = digest(Path(source))
        distributions = tuple(DISTRIBUTIONS.get(name, name) for name in entry.needs)
    parts = {
        "content": content,
        "inputs": inputs.key(),
        "trust": trust,
        "frontend": entry.module,
        "raw_graph": RAW_GRAPH_VERSION,
        "code": _code_digest(),
        "versions": {name: _version(name) for name in ("apache-tvm", *distributions)},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read(name: str) -> RawGraph | None:
    """Return a cached graph, None if there is none."""
    with contextlib.suppress(OSError, RuntimeError, ValueError, MemoryError):
        file = _file(name)
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_TEXT_BYTES:
            return RawGraph.from_json(_unseal(name, unpack(file.read_bytes())))
    return None


def write(name: str, graph: RawGraph) -> None:
    """Cache a graph; a cache that cannot be written is not an error."""
    with contextlib.suppress(OSError, RuntimeError, MemoryError):
        file = _file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(pack(_seal(name, graph.to_json())))
            os.replace(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise


def _seal(name: str, text: str) -> str:
    """Insert a checksum of name and text into the JSON object, as its first key."""
    return f'{{"checksum":"{_checksum(name, text[1:].encode())}",{text[1:]}'


def _unseal(name: str, text: bytes) -> bytes:
    head, comma, rest = text.partition(b",")
    if not comma or head != f'{{"checksum":"{_checksum(name, rest)}"'.encode():
        raise ValueError("another graph's entry, or a changed one")
    return b"{" + rest


def _checksum(name: str, rest: bytes) -> str:
    return hashlib.sha256(name.encode() + rest).hexdigest()


def digest(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder.

    A model file may come with others (external weights), but a graph does not depend on weight
    values, so only the file itself is read.

    Raises:
        ModelFileError: if it cannot be read, or a folder holds more files than any model.
    """
    hashed = hashlib.sha256()
    if not path.is_dir():
        with files.open_regular(path) as file:
            _hash_file(file, hashed, WHOLE_BYTES, SAMPLES)
        return hashed.hexdigest()
    left = WHOLE_BYTES
    for member in files.walk(path):
        hashed.update(os.fsencode(member.relative_to(path)) + b"\0")
        with contextlib.suppress(ModelFileError), files.open_regular(member) as file:
            left -= _hash_file(file, hashed, left, 2)
    return hashed.hexdigest()


def _hash_file(file: IO[bytes], hashed: hashlib._Hash, whole_bytes: int, samples: int) -> int:
    """Hash a small file whole, a larger one by samples, size and time; return the bytes hashed."""
    status = os.fstat(file.fileno())
    size = status.st_size
    if size <= whole_bytes:
        left = size  # files of /proc have size 0 and may have no end
        while left and (chunk := file.read(min(left, 1 << 20))):
            hashed.update(chunk)
            left -= len(chunk)
        return size
    hashed.update(f"{size}:{status.st_mtime_ns}".encode())
    length = min(SAMPLE_BYTES, size)
    for i in range(samples):
        file.seek(i * (size - length) // (samples - 1))
        hashed.update(file.read(length))
    return 0


def _named_digest(source: str) -> str:
    prefix, _, name = source.partition(":")
    if prefix == "hf-config" and files.is_regular(file := named.config_file(name)):
        return digest(file)
    return source


@cache
def _code_digest() -> str:
    """Hash our own converting code, so that a changed converter never serves older graphs."""
    package = Path(__file__).parent.parent
    hashed = hashlib.sha256()
    parts = ("frontends", "relax", "networks")
    for file in sorted(file for part in parts for file in package.glob(f"{part}/**/*.py")):
        hashed.update(str(file.relative_to(package)).encode() + file.read_bytes())
    return hashed.hexdigest()


@cache
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _file(name: str) -> Path:
    return folder() / name[:2] / f"{name}.json.gz"
