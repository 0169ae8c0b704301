"""Model file, name or object → `RawGraph`, converted in its own process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from dippm.errors import UnknownFormatError
from dippm.frontends import cache as graph_cache
from dippm.frontends import named, registry
from dippm.frontends.frontend import Frontend, InputSpec
from dippm.frontends.worker import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S, POOL
from dippm.relax.raw_graph import RawGraph

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
        cache: whether a graph may be kept on disk and reused.
        timeout_s: wall time for one conversion.
        memory_limit_mb: private memory that the conversion may use.

    Raises:
        ModelFileError: one of its subclasses, with the next step in `hint`.
        UnknownNameError: if a framework or a named model is unknown.
    """
    spec = InputSpec.parse(inputs)
    limits = (timeout_s, memory_limit_mb)
    if not isinstance(source, str | os.PathLike):
        return _load_object(source, spec, limits)
    where = source if isinstance(source, str) else Path(source)
    entry = registry.find(where, framework)
    name = graph_cache.key(where, entry, spec, trust=trust) if cache else ""
    kept = graph_cache.read(name) if cache else None
    if kept is not None:
        return kept
    graph = _convert(entry.module, _request(where, spec, trust), limits)
    if cache:
        graph_cache.write(name, graph)
    return graph


def _load_object(source: Any, spec: InputSpec, limits: tuple[float, int]) -> RawGraph:
    kind = registry.object_framework(source)
    if kind == "pytorch":
        return _load_module(source, spec, limits)
    with tempfile.TemporaryDirectory(prefix="dippm-") as folder:
        path = Path(folder)
        if kind == "pytorch program":
            import torch

            torch.export.save(source, path := path / "model.pt2")
        elif kind == "onnx":
            (path := path / "model.onnx").write_bytes(source.SerializeToString())
        elif kind == "keras":
            source.save(path := path / "model.keras")
        else:
            raise UnknownFormatError(
                f"a {type(source).__module__}.{type(source).__qualname__} is not a model",
                "Give a path, a name, or a torch.nn.Module, ExportedProgram, ModelProto or Keras "
                "model.",
            )
        entry = registry.find(path, kind.partition(" ")[0])
        return _convert(entry.module, _request(path, spec, True), limits)


def _load_module(module: Any, spec: InputSpec, limits: tuple[float, int]) -> RawGraph:
    """Export here, where the module's class exists; translate in the worker."""
    from dippm.frontends import pytorch

    timeout_s, memory_limit_mb = limits
    POOL.warm(pytorch.__name__, memory_limit_mb)
    program, batch, is_symbolic = pytorch.export_bytes(module, spec)
    with POOL.borrow(pytorch.__name__, memory_limit_mb) as worker:
        file = worker.folder / "program.pt2"
        file.write_bytes(program)
        request = {"program": str(file), "batch": batch, "batch_is_symbolic": is_symbolic}
        return worker.convert(request, timeout_s=timeout_s)


def _request(source: str | Path, spec: InputSpec, trust: bool) -> dict[str, Any]:
    text = str(source)
    if named.is_name(text):
        prefix, _, name = text.partition(":")
        text = f"{prefix}:{Path(name).expanduser().resolve()}" if prefix == "hf-config" else text
    else:
        text = str(Path(source).resolve())
    return {"source": text, "inputs": spec.to_dict(), "trust": trust}


def _convert(module: str, request: dict[str, Any], limits: tuple[float, int]) -> RawGraph:
    timeout_s, memory_limit_mb = limits
    with POOL.borrow(module, memory_limit_mb) as worker:
        return worker.convert(request, timeout_s=timeout_s)
