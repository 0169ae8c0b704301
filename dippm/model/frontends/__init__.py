"""Model file, name or object → `RawGraph`, converted in its own process."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base import files
from dippm.errors import DippmError, UnknownFormatError
from dippm.model.frontends import cache as graph_cache
from dippm.model.frontends import named, registry
from dippm.model.frontends.frontend import Frontend, InputSpec
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, Limits
from dippm.model.frontends.worker import POOL, Worker
from dippm.model.frontends.worker_errors import convert_file_errors, no_room_error
from dippm.model.relax.raw_graph import RawGraph

if TYPE_CHECKING:
    from dippm.model.frontends.pytorch import ProgramBytes

MOST_TRANSLATED = 16
_TRANSLATED: dict[bytes, str] = {}
"""Graphs of recent modules by a hash of their programs, least recently used first."""

__all__ = ["Frontend", "InputSpec", "load"]


def load(
    source: Any,
    inputs: Any = None,
    *,
    framework: str | None = None,
    trust: bool = False,
    cache: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> RawGraph:
    """Convert a model.

    Args:
        source: a path, a name ("timm:resnet50", "torchvision:vgg16", "hf-config:FOLDER"), or an
            object: `torch.nn.Module`, `ExportedProgram`, ONNX `ModelProto`, Keras `Model`.
        inputs: shapes without the batch, see `InputSpec.parse`; None for the model's own.
        framework: "pytorch", "tensorflow", "keras", "paddle", "onnx"; inferred if None.
        trust: whether loading may run code that the file carries.
        cache: whether graphs are stored on disk and reused.
        timeout_s: wall time limit of one conversion; infinite for none.
        memory_limit_mb: limit on the private memory of the conversion.

    Raises:
        ModelFileError: one of its subclasses, with the next step in `hint`.
        UnknownNameError: if a framework or a named model is unknown.
        ConditionsError: if one of the limits is invalid.
    """
    spec = InputSpec.parse(inputs)
    source = files.expand_home(source)
    limits = Limits(timeout_s, memory_limit_mb)
    if not isinstance(source, str | os.PathLike):
        return _load_object(source, spec, limits, cache=cache)
    where = source if isinstance(source, str) else Path(source)
    with convert_file_errors(source):
        entry = registry.find(where, framework)
        name = graph_cache.key(where, entry, spec, trust=trust) if cache else ""
        kept = graph_cache.read(name) if cache else None
        if kept is not None:
            return kept
        graph = _convert(entry.module, _request(where, spec, trust), limits)
    if cache:
        graph_cache.write(name, graph)
    return graph


def _load_object(source: Any, spec: InputSpec, limits: Limits, *, cache: bool) -> RawGraph:
    kind = registry.object_framework(source)
    if kind is None and isinstance(source, type):
        raise UnknownFormatError(
            f"{source.__module__}.{source.__qualname__} is a class, not a model",
            f"Give an object of it: {source.__name__}(...).",
        )
    if kind is None:
        raise UnknownFormatError(
            f"a {type(source).__module__}.{type(source).__qualname__} is not a model",
            "Give a path, a name, or a torch.nn.Module, ExportedProgram, ModelProto or Keras "
            "model.",
        )
    if kind.startswith("pytorch"):
        registry.warn_of_untested_torch()
    if kind == "pytorch" or (kind == "pytorch script" and not _is_whole_in_a_file(source)):
        return _load_module(source, spec, limits, cache=cache)
    entry = registry.built_in(kind.partition(" ")[0])
    with _borrow_worker(entry.module, limits) as (worker, folder):
        path = _save(source, kind, folder)
        return worker.convert(_request(path, spec, True), timeout_s=limits.timeout_s)


def _save(source: Any, kind: str, folder: Path) -> Path:
    """Write an object into the folder from which its worker reads it."""
    if kind == "onnx":
        path = folder / "model.onnx"
        path.write_bytes(source.SerializeToString())
    elif kind == "keras":
        source.save(path := folder / "model.keras")
    elif kind == "pytorch script":
        source.save(path := folder / "model.pt")
    else:
        import torch

        torch.export.save(source, path := folder / "model.pt2")
    return path


def _is_whole_in_a_file(script: Any) -> bool:
    """Return whether a scripted module uses no operator that only this process has."""
    from dippm.model.frontends.torch.script import check_not_rewritten, operators
    from dippm.model.relax.torch_programs import OWN

    check_not_rewritten(script)
    return {name.partition("::")[0] for name in operators(script)} <= OWN


def _load_module(module: Any, spec: InputSpec, limits: Limits, *, cache: bool) -> RawGraph:
    """Export in this process, where the module's class exists; translate in the worker.

    Translated graphs are looked up by the exported program, not by the module: nothing else
    proves that its code and settings are still the same.
    """
    from dippm.model.frontends import pytorch

    POOL.warm(pytorch.__name__, limits.memory_limit_mb)
    program = pytorch.export_bytes(module, spec, timeout_s=limits.timeout_s)
    known = hashlib.sha256(program.data + repr(replace(program, data=b"")).encode()).digest()
    if cache and (text := _TRANSLATED.pop(known, None)) is not None:
        _TRANSLATED[known] = text
        return RawGraph.from_json(text)
    graph = _translate(program, limits)
    if cache:
        _TRANSLATED[known] = graph.to_json()
        for oldest in list(_TRANSLATED)[:-MOST_TRANSLATED]:
            _TRANSLATED.pop(oldest, None)
    return graph


def _translate(program: ProgramBytes, limits: Limits) -> RawGraph:
    from dippm.model.frontends import pytorch

    with _borrow_worker(pytorch.__name__, limits) as (worker, folder):
        file = folder / "program.pt2"
        file.write_bytes(program.data)
        request = {
            "program": str(file),
            "batch": program.batch,
            "batch_is_symbolic": program.batch_is_symbolic,
            "notes": program.notes,
            "schemas": program.schemas,
        }
        return worker.convert(request, timeout_s=limits.timeout_s)


@contextmanager
def _borrow_worker(module: str, limits: Limits) -> Iterator[tuple[Worker, Path]]:
    """Yield a worker and a folder for one conversion, which is removed in any case.

    Raises:
        ConversionError: if the folder cannot be created, or the block cannot write into it.
    """
    with POOL.borrow(module, limits.memory_limit_mb) as worker:
        try:
            with tempfile.TemporaryDirectory(
                dir=worker.folder, ignore_cleanup_errors=True
            ) as folder:
                os.chmod(folder, 0o700)  # whatever the umask of this process
                yield worker, Path(folder)
        except OSError as error:
            if isinstance(error, DippmError) or error.errno is None:
                raise
            raise no_room_error(error, str(worker.folder)) from error


def _request(source: str | Path, spec: InputSpec, trust: bool) -> dict[str, Any]:
    """Return the request for a file, under its given name: related files lie next to it."""
    text = str(source)
    if named.is_name(text):
        prefix, _, name = text.partition(":")
        if prefix == "hf-config":
            text = f"{prefix}:{os.path.abspath(os.path.expanduser(name))}"
    else:
        text = str(Path(source).absolute())
    return {"source": text, "inputs": spec.to_dict(), "trust": trust}


def _convert(module: str, request: dict[str, Any], limits: Limits) -> RawGraph:
    with POOL.borrow(module, limits.memory_limit_mb) as worker:
        return worker.convert(request, timeout_s=limits.timeout_s)
