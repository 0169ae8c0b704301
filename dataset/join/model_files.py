"""Models in the user's own files, by names such as "file:/models/net.onnx@3,224,224#1f…".

The name contains the sizes of one sample and the SHA-256 of the file's content: another model at
the same path has another name.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from dippm.model import frontends
from dippm.model.frontends import InputSpec
from dippm.model.relax.raw_graph import RawGraph

ZOO = "file"
SPEC = re.compile(r"file:(?P<path>.+?)(@(?P<sizes>[^@#]*))?#(?P<digest>[0-9a-f]{12})")


def is_file(spec: str) -> bool:
    """Return whether a name is that of a file."""
    return spec.startswith(f"{ZOO}:")


def stem_of(spec: str) -> str:
    """Return a file name that is unique to the spec."""
    return f"{ZOO}.{_path(spec).name}.{hashlib.sha256(spec.encode()).hexdigest()[:16]}"


def family_of_file(spec: str) -> str:
    """Return the family of a file: each file name is its own family."""
    return f"{ZOO}-{_path(spec).stem}"


def convert_file(spec: str) -> RawGraph:
    """Convert the file without running code in it.

    Raises:
        ValueError: if the file has changed.
        ModelFileError: if it cannot be converted.
    """
    found = SPEC.fullmatch(spec)
    if found is None:
        raise ValueError(f"{spec!r} does not say its content, as in 'file:net.onnx@3,32,32#<hash>'")
    path = Path(found["path"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(found["digest"]):
        raise ValueError(f"{path} is another file than the one that ran")
    return frontends.load(path, InputSpec.parse(found["sizes"] or None))


def _path(spec: str) -> Path:
    found = SPEC.fullmatch(spec)
    return Path(found["path"] if found else spec.partition(":")[2])
