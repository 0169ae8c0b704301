"""The ONNX backend tests: every operator of the standard, and models of PyTorch and the zoo.

They ship in the package `onnx`, each with inputs and outputs of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from dippm.model.frontends import InputSpec
from dippm.model.graph.model_graph import ModelGraph
from tests.zoo.case import Case, Inputs, Shape
from tests.zoo.onnx_macs import macs

_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_MAX_SIZES = 16
_FOLDERS = ("node", "simple", "pytorch-converted", "pytorch-operator")


def cases() -> Iterator[Case]:
    """Yield every test that is on this disk; those that are downloads are not.

    Raises:
        ModuleNotFoundError: if the package of this version of onnx comes without them.
    """
    if not _DATA.is_dir() or not all((_DATA / kind).is_dir() for kind in _FOLDERS):
        raise ModuleNotFoundError(f"onnx {onnx.__version__} comes without its models for tests")
    for kind in _FOLDERS:
        for folder in sorted((_DATA / kind).iterdir()):
            if (folder / "model.onnx").exists():
                yield _case(f"{kind}/{folder.name}", folder / "model.onnx")
    for file in sorted((_DATA / "light").glob("*.onnx")):
        yield _case(f"light/{file.stem}", file)


def _case(name: str, file: Path) -> Case:
    return Case(
        name,
        lambda _: file,
        then=partial(_values, file),
        batch=partial(_batch, file),
        macs=partial(_macs, file),
        tolerance=0,
        out_shapes=partial(_out_shapes, file),
        not_numeric=partial(not_numeric, file),
    )


def not_numeric(file: Path) -> str:
    """Say why no GPU could work on what a model takes or gives; empty if one could."""
    graph = onnx.load(file).graph
    weights = {tensor.name for tensor in graph.initializer}
    for value in (*graph.input, *graph.output):
        kind = value.type.WhichOneof("value") or "nothing"
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            return f"it takes or gives text ({value.name})"
        if kind != "tensor_type" and value in graph.input:
            return f"it takes a value of type {kind.removesuffix('_type')} ({value.name})"
        sizes = value.type.tensor_type.shape.dim
        if value.name not in weights and any(
            d.HasField("dim_value") and not d.dim_value for d in sizes
        ):
            return f"it takes or gives a tensor without elements ({value.name})"
    return ""


def _values(file: Path) -> InputSpec | None:
    """Return the test's own sizes, axes and the like, as a user gives them; None if it has none."""
    values = {
        name: array
        for name, array in _feeds(file).items()
        if (array.ndim <= 1 and array.size <= _MAX_SIZES and array.dtype.kind in "iub")
        or (array.ndim == 0 and array.dtype.kind == "f")
    }
    return InputSpec({}, values=values) if values else None


def _batch(file: Path, graph: ModelGraph) -> int:
    """Return the size that the test's own inputs have where the graph has its batch."""
    feeds = _feeds(file)
    for tensor in graph.inputs:
        own = feeds[tensor.name].shape if tensor.name in feeds else ()
        for got, want in zip(tensor.shape, own, strict=False):
            if got == graph.batch and want:
                return int(want)
    return graph.batch


def _macs(file: Path, _: Inputs) -> int | None:
    return macs(onnx.load(file), _feeds(file))


@cache
def _feeds(file: Path) -> dict[str, np.ndarray]:
    model = onnx.load(file)
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for i, value in enumerate(v for v in model.graph.input if v.name not in weights):
        data = file.parent / "test_data_set_0" / f"input_{i}.pb"
        array = _tensor(data, value)
        if array is None and value.type.HasField("tensor_type") and not data.exists():
            sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
            array = np.zeros(sizes, np.float32)
        if array is not None:
            feeds[value.name] = array
    return feeds


def _out_shapes(file: Path) -> tuple[Shape, ...] | None:
    if any(0 in array.shape for array in _feeds(file).values()):
        return None  # in a file, a size of 0 is an open one
    alone = file.with_name(f"{file.stem}_output_0.pb")
    found = [
        shape
        for i, value in enumerate(onnx.load(file).graph.output)
        for shape in _result_shapes(
            alone if alone.exists() else file.parent / "test_data_set_0" / f"output_{i}.pb", value
        )
    ]
    known = tuple(shape for shape in found if shape is not None)
    return known if len(known) == len(found) else None


def _result_shapes(path: Path, value: onnx.ValueInfoProto) -> list[Shape | None]:
    """Return the shape of a stored result; a sequence counts as its items."""
    if value.type.HasField("sequence_type") and path.exists():
        sequence = onnx.SequenceProto.FromString(path.read_bytes())
        return [tuple(tensor.dims) for tensor in sequence.tensor_values]
    array = _tensor(path, value)
    return [None if array is None else array.shape]


def _tensor(path: Path, value: onnx.ValueInfoProto) -> np.ndarray | None:
    """Return a stored tensor; None for sequences, optionals and absent files."""
    if not value.type.HasField("tensor_type") or not path.exists():
        return None
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
