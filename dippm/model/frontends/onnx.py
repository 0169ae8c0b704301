"""ONNX files → `RawGraph`.

Weights are never read, so external data may be absent. `relax.onnx.inputs` and
`relax.onnx.at_marker` bind the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.errors import FrameworkNotInstalledError, ModelFileError, ModelNotFoundError
from dippm.model.frontends.frontend import MARKER_BATCHES, InputSpec, check_kinds
from dippm.model.relax.onnx.wire import looks_like_onnx, map_file, read_without_weights
from dippm.model.relax.raw_graph import RawGraph

if TYPE_CHECKING:
    import onnx


NAME = "onnx"
_PYTORCH = "pytorch"
"""Name of the producer in files of PyTorch's two exporters."""


def accepts(path: Path) -> bool:
    """Return whether a file is an ONNX model, even if truncated or without its external data."""
    try:
        return looks_like_onnx(map_file(Path(path)))
    except (OSError, ValueError):
        return False


def prepare() -> None:
    """Import what every conversion needs, while the caller still works."""
    _require_onnx()
    from dippm.model.relax import import_tvm

    import_tvm()
    from dippm.model.relax.onnx import importer, model  # noqa: F401


def load(path: Path, inputs: InputSpec, *, trust: bool = False) -> RawGraph:
    """Convert an ONNX file.

    Args:
        path: the `.onnx` file.
        inputs: shapes without the batch; may be empty if the file states every size.
        trust: unused, because an ONNX file contains no code.

    Raises:
        ModelNotFoundError: if there is no such file.
        ModelFileError: if the file is damaged.
        InputShapeError: if the shapes do not fit the model, or leave sizes unknown.
        ConversionError: if an operator's result has no static shape.
    """
    path = Path(path)
    try:
        return load_bytes(read_without_weights(path), inputs, name=path.name, folder=path.parent)
    except FileNotFoundError as error:
        if isinstance(error, ModelNotFoundError):
            raise
        raise ModelNotFoundError(f"no file {str(path)!r}", "Check the path.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise damaged_error(path.name, error) from error


def load_bytes(
    data: bytes, inputs: InputSpec, *, name: str = "model", folder: Path | None = None
) -> RawGraph:
    """Convert a serialized ONNX model.

    Args:
        data: the serialized model, with or without the contents of its large tensors.
        inputs: shapes without the batch.
        name: name of the model in errors.
        folder: folder in which small tensors in external files are looked up.

    Raises:
        ModelFileError: one of its subclasses, with the next step in `hint`.
    """
    _require_onnx()
    from dippm.model.relax import import_tvm
    from dippm.model.relax.onnx.at_marker import trace_at_marker
    from dippm.model.relax.onnx.inputs import Binding, declared_inputs, match_request

    with _blame_file(name):
        model = _parse(data, folder, name)
        declared = declared_inputs(model.graph)
        inputs = inputs.in_order([one.name for one in declared])
        check_kinds(inputs, {d.name: _type_name(d.element_type) for d in declared})
        asked = match_request(declared, inputs.shapes, inputs.batch_axes, inputs.values)
        traced = trace_at_marker(model, Binding(declared, asked), MARKER_BATCHES)
    import_tvm()
    from dippm.model.relax.onnx.importer import import_trace

    with _blame_file(name):
        raw = import_trace(traced.trace, traced.batch, batch_is_symbolic=traced.is_symbolic)
    is_exported = model.producer_name == _PYTORCH
    return replace(raw, notes=traced.trace.notes, is_exported_by_pytorch=is_exported)


def _type_name(element_type: int) -> str:
    from onnx import TensorProto

    name = TensorProto.DataType.Name(element_type)
    return "float64" if name == "DOUBLE" else name.lower()


def _parse(data: bytes, folder: Path | None, name: str) -> onnx.ModelProto:
    from dippm.model.relax.onnx import model

    try:
        return model.parse(data, folder / name if folder else None)
    except ModelFileError:
        raise
    except ValueError as error:
        raise damaged_error(name, error) from error


@contextmanager
def _blame_file(name: str) -> Iterator[None]:
    """Convert errors on a graph that protobuf can read into an error about the file."""
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        raise ModelFileError(
            f"{name}: the ONNX graph is not well formed ({type(error).__name__}: "
            f"{str(error)[:300]})",
            "Check the file with onnx.checker.check_model, or export it again.",
        ) from error


def damaged_error(name: str, error: BaseException) -> ModelFileError:
    """Return the error for bytes that are not an ONNX model."""
    return ModelFileError(
        f"{name}: not a complete ONNX model ({str(error)[:300] or type(error).__name__})",
        "The file is cut short or damaged; copy or export it again.",
    )


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise FrameworkNotInstalledError(
            "the package onnx is not installed", "pip install onnx"
        ) from error
