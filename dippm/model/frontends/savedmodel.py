"""TensorFlow SavedModel folders.

`saved_model.pb` is read as a protobuf: signature, graph and function library. The model is never
restored, none of its code runs, and the variables' file is not opened, so neither time nor memory
depends on the size of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base.progress import listening
from dippm.errors import ConversionError, InputShapeError, ModelFileError
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.tensorflow_inputs import (
    BoundInputs,
    DeclaredInput,
    bind,
    import_tensorflow,
)
from dippm.model.frontends.worker import step
from dippm.model.relax.raw_graph import RawGraph

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

NAME = "tensorflow"

FILE = "saved_model.pb"
EXPORT = "Save it again with model.export(folder) or tf.saved_model.save(model, folder)."
PREFERRED = ("serving_default", "serve")
INTERNAL = "__saved_model_"


def accepts(path: Path) -> bool:
    """Return whether this is a SavedModel folder, its protobuf, or a frozen graph."""
    if path.is_dir():
        return (path / FILE).is_file() or (path / "saved_model.pbtxt").is_file()
    return path.suffix == ".pb" and path.is_file()


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Convert a SavedModel; nothing in it is executed, so `trust` is not needed.

    Raises:
        ModelFileError: one of its subclasses, with the next step in `hint`.
    """
    import_tensorflow()
    meta_graph = _read(path)
    signature = _signature(meta_graph.signature_def, path)
    declared = [_declared_input(name, info) for name, info in sorted(signature.inputs.items())]
    outputs = [_tensor(name, info) for name, info in sorted(signature.outputs.items())]
    graph = meta_graph.graph_def
    bound = bind(declared, inputs, _weight_sizes(graph))

    def attempt(bound: BoundInputs) -> RawGraph:
        return convert(graph, declared, bound, outputs)

    try:
        return at_any_batch(attempt, bound)
    except InputShapeError:
        batch = state_batch(graph, declared, bound, outputs) if bound.batch_is_symbolic else None
        if batch is None:
            raise
        raw = attempt(bound.at(batch))
        return replace(raw, notes=(*raw.notes, f"the model keeps states for a batch of {batch}"))


def at_any_batch(attempt: Callable[[BoundInputs], RawGraph], bound: BoundInputs) -> RawGraph:
    """Convert at the marker batch, or with one sample if the model loops over samples."""
    from dippm.model.relax.tensorflow.control_flow import BatchLoopError

    try:
        return attempt(bound)
    except BatchLoopError as loop:
        raw = attempt(bound.at(1))
        note = f"the loop {loop} runs once for each sample: the model was read at a batch of 1"
        return replace(raw, notes=(*raw.notes, note))


def state_batch(
    graph: GraphDef, declared: Sequence[DeclaredInput], bound: BoundInputs, outputs: Sequence[str]
) -> int | None:
    """Return the batch of a model's states; None if it has no states."""
    import tensorflow as tf

    from dippm.model.relax.tensorflow.graph import Feed, flatten, updates_variables

    if not updates_variables(graph, outputs):
        return None
    feeds = []
    for one, shape, axis in zip(declared, bound.shapes, bound.axes, strict=True):
        open_shape = tuple(None if i == axis else size for i, size in enumerate(shape))
        feeds.append(Feed(one.tensor, open_shape, one.dtype, one.name))
    step("reading the graph")
    try:
        flat = flatten(graph, feeds, outputs)
    except (ValueError, tf.errors.OpError):
        return None
    sizes = {t.shape[0] if t.shape.rank else None for t in flat.outputs}
    return next(iter(sizes)) if len(sizes) == 1 else None


def convert(
    graph: GraphDef, declared: Sequence[DeclaredInput], bound: BoundInputs, outputs: Sequence[str]
) -> RawGraph:
    """Convert a TensorFlow graph whose inputs have static shapes.

    Raises:
        ConversionError: if an operator or its shapes cannot be read.
        InputShapeError: if the graph does not take these shapes.
        BatchLoopError: if a loop in it runs once per sample.
    """
    import tensorflow as tf

    from dippm.model.relax.tensorflow.control_flow import Unfolding
    from dippm.model.relax.tensorflow.graph import Feed, flatten
    from dippm.model.relax.tensorflow.importer import import_graph
    from dippm.model.relax.tensorflow.recurrent import Layers
    from dippm.model.relax.walk import walk

    marker = bound.batch if bound.batch_is_symbolic else None
    feeds = [
        Feed(one.tensor, shape, one.dtype, one.name, value)
        for one, shape, value in zip(declared, bound.shapes, bound.values, strict=True)
    ]
    step("reading the graph")
    try:
        flat = flatten(graph, feeds, outputs, Unfolding(Layers().is_layer, marker))
    except ModelFileError:
        raise
    except (ValueError, tf.errors.OpError) as error:
        raise _unreadable_or_misshapen(error, declared, bound) from error
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConversionError(
            f"the graph contradicts itself: {type(error).__name__} {_first_line(error)}",
            "The file may be damaged; export it again.",
        ) from error
    _check_batch(flat.outputs, bound)
    try:
        with listening(step):
            module = import_graph(flat)
        step("reading the operators")
        raw = walk(module, bound.batch, bound.batch_is_symbolic)
        return replace(raw, notes=flat.notes)
    except ModelFileError:
        raise
    except Exception as error:
        raise ConversionError(
            f"the graph could not be translated: {_first_line(error)}",
            "Export the model to ONNX, or report the operator.",
        ) from error


def _unreadable_or_misshapen(
    error: Exception, declared: Sequence[DeclaredInput], bound: BoundInputs
) -> ModelFileError:
    """Return the error for a graph that TensorFlow cannot read, or for sizes that do not fit."""
    text = _first_line(error)
    foreign = ("does not know the operator", "not registered", "does not have", "is read through")
    if any(phrase in str(error) for phrase in foreign):
        return ConversionError(
            f"the graph cannot be read: {text}",
            "Operators of add-on libraries have no shapes here; export the model without them.",
        )
    if "first TensorFlow generation" in text:
        return ConversionError(text, "Save the model again with TensorFlow 2.")
    shapes = ", ".join(
        f"{one.name} {shape}" for one, shape in zip(declared, bound.shapes, strict=True)
    )
    note = f" ({bound.batch} stands for any batch)" if bound.batch_is_symbolic else ""
    return InputShapeError(
        f"the model does not take {shapes}{note}: {text}",
        "Give other sizes; if the sizes are right, the file has its batch baked in: "
        "export it again with a dynamic batch.",
    )


def _check_batch(outputs: Sequence[Any], bound: BoundInputs) -> None:
    """Refuse graphs that accept any batch, but whose results have a fixed one."""
    known = [t.shape.as_list() for t in outputs if t.shape.is_fully_defined()]
    scales = any(size % bound.batch == 0 for shape in known for size in shape)
    if bound.batch_is_symbolic and len(known) == len(outputs) and not scales:
        raise InputShapeError(
            f"the results do not scale with the batch: shapes {known}",
            "The file has its batch baked in; export it again with a dynamic batch.",
        )


def _read(path: Path) -> Any:
    """Return the meta graph for serving.

    Raises:
        ModelFileError: if the file is damaged, or is a frozen graph.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    file = path / FILE if path.is_dir() else path
    document = SavedModel()
    try:
        if file.is_file():
            document.ParseFromString(file.read_bytes())
        else:
            text_format.Parse((path / "saved_model.pbtxt").read_text(), document)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise _damaged_error(file, str(error)) from error
    usable = [m for m in document.meta_graphs if len(m.graph_def.node)]
    if not usable:
        raise _damaged_error(file, "it holds no graph")
    serving = [m for m in usable if "serve" in m.meta_info_def.tags]
    return (serving or usable)[0]


def _damaged_error(file: Path, reason: str) -> ModelFileError:
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.graph_pb2 import GraphDef

    frozen = GraphDef()
    try:
        frozen.ParseFromString(file.read_bytes())
    except (DecodeError, OSError):
        frozen.Clear()
    if len(frozen.node) and frozen.node[0].op:
        return ModelFileError(
            f"{file} is a frozen graph of TensorFlow 1, without signature",
            "Load it in TensorFlow and save it with a signature: "
            "tf.compat.v1.saved_model.simple_save(session, folder, inputs, outputs).",
        )
    return ModelFileError(
        f"{file} is not a readable SavedModel: {reason}",
        "The file may be truncated; copy or export it again.",
    )


def _signature(signatures: Mapping[str, Any], path: Path) -> Any:
    usable = {
        name: signature
        for name, signature in signatures.items()
        if not name.startswith(INTERNAL) and signature.inputs and signature.outputs
    }
    for name in PREFERRED:
        if name in usable:
            return usable[name]
    if len(usable) == 1:
        return next(iter(usable.values()))
    if not usable:
        raise ModelFileError(f"{path} has no signature with inputs and outputs", EXPORT)
    raise ModelFileError(
        f"{path} has several signatures and none is the default: {', '.join(sorted(usable))}",
        'Save it with the one to predict as "serving_default".',
    )


def _declared_input(name: str, info: Any) -> DeclaredInput:
    import tensorflow as tf

    tensor = _tensor(name, info)
    if info.dtype == tf.string.as_datatype_enum:
        raise ConversionError(
            f"input {name} is text", "Export the model without its text processing."
        )
    sizes = info.tensor_shape
    shape = (
        None
        if sizes.unknown_rank
        else tuple(None if dim.size < 0 else dim.size for dim in sizes.dim)
    )
    dtype = tf.as_dtype(info.dtype)
    return DeclaredInput(name, tensor, shape, info.dtype, dtype.is_integer or dtype.is_bool)


def _tensor(name: str, info: Any) -> str:
    if not info.name:
        raise ConversionError(
            f"{name} is a sparse or composite tensor", "Export the model with dense tensors."
        )
    return str(info.name)


def _weight_sizes(graph: GraphDef) -> list[int]:
    return [dim.size for node in graph.node for dim in node.attr["shape"].shape.dim if dim.size > 0]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]
