"""Keras models: `.keras` archives and `.h5` files.

Only the configuration is read. The layers are built inside `keras.StatelessScope`, where variables
have a shape but no value, and are traced into a TensorFlow graph with a placeholder for each
variable. `savedmodel` continues from there, so `.keras`, `.h5` and an exported folder of one model
give the same graph. The torch backend would need no TensorFlow, but would allocate every weight and
give another graph than the SavedModel.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dippm.base import files
from dippm.base.process import end_after_cpu
from dippm.errors import (
    ConversionError,
    FrameworkNotInstalledError,
    InputShapeError,
    ModelFileError,
    UnsafeModelError,
    shortened,
)
from dippm.model.frontends import keras_allowlist
from dippm.model.frontends.containers import member_names, objects_in
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.limits import innermost_part
from dippm.model.frontends.savedmodel import at_any_batch, convert
from dippm.model.frontends.tensorflow_inputs import (
    BoundInputs,
    DeclaredInput,
    bind,
    import_tensorflow,
)
from dippm.model.frontends.worker import locating, step
from dippm.model.frontends.worker_errors import no_process_error
from dippm.model.relax.raw_graph import RawGraph

NAME = "keras"

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_CONFIG_BYTES = 256 << 20
HDF5_CPU_S = 10
"""Limit on the processor time for reading one attribute of an HDF5 file, which takes milliseconds:
HDF5 1.14 loops forever if an entry of the file's heap is 0 bytes long."""
DAMAGED = "The file is damaged: copy it again, or save the model again with model.save(...)."
OPERATION = "operation "
_MISSING = re.compile(
    r"(?:Could not locate|Unknown) (?P<kind>class|function|layer):? '(?P<name>[^']+)'"
)
"""Keras' messages about a name in the configuration that it does not have."""


def accepts(path: Path) -> bool:
    """Return whether this is a Keras archive or an HDF5 file."""
    if not files.is_regular(path):
        return False
    head = files.beginning(path, 8)
    if head == HDF5_MAGIC:
        return True
    if not head.startswith(b"PK"):
        return False
    try:
        parts = {"config.json", "metadata.json"}
        return len({name for name in member_names(path) if name in parts}) == len(parts)
    except zipfile.BadZipFile:
        return path.suffix == ".keras"


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Convert a Keras file.

    Raises:
        ModelFileError: one of its subclasses, with the next step in `hint`.
    """
    config = _read_config(path)
    if not trust:
        keras_allowlist.check(config, files.shown(path))
    step("importing TensorFlow")
    import_tensorflow()
    _check_backend()
    step("building the model")
    model = _build(config, path, trust=trust)
    declared = _declared_inputs(model, inputs)
    sizes = [size for v in model.variables for size in v.shape]
    from dippm.model.relax.tensorflow import restore_layer_names

    layers = _number_layers(model)
    names = {id(layer): name for layer, name in layers}

    def attempt(bound: BoundInputs) -> RawGraph:
        step("calling the model")
        return convert(*_trace(model, declared, bound))

    if inputs.values:
        raise InputShapeError(
            f"a Keras model takes its inputs as data: {', '.join(inputs.values)} cannot be a value",
            "Give its sizes without the batch, or export the model as a SavedModel.",
        )
    with locating(lambda frames: innermost_part(lambda part: names.get(id(part)), frames)):
        graph = at_any_batch(attempt, bind(declared, inputs, sizes))
    return restore_layer_names(graph, [name for _, name in layers])


def _read_config(path: Path) -> dict[str, Any]:
    text = _hdf5_config(path) if _is_hdf5(path) else _archive_config(path)
    try:
        config = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"the configuration in {path} is not JSON: {error}", DAMAGED
        ) from error
    if not isinstance(config, dict) or "class_name" not in config:
        raise ModelFileError(f"the configuration in {path} does not describe a model", DAMAGED)
    return config


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse one with two different values for the same key.

    Training settings are dropped: they are not needed, and they name losses and optimizers.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object in it has a key twice")
    if "class_name" in found:
        found.pop("compile_config", None)
    return found


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8) == HDF5_MAGIC


def _archive_config(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.namelist().count("config.json") > 1:
                raise ModelFileError(f"{path} has two configurations", DAMAGED)
            if archive.getinfo("config.json").file_size > MAX_CONFIG_BYTES:
                raise ModelFileError(f"the configuration in {path} is implausibly large", DAMAGED)
            return archive.read("config.json")
    except _UNREADABLE_ARCHIVE as error:
        raise ModelFileError(
            f"{path} is not a readable Keras archive: {error}",
            "The file may be truncated; copy or save it again.",
        ) from error


_UNREADABLE_ARCHIVE = (
    *(zipfile.BadZipFile, KeyError, EOFError, OSError, struct.error, zlib.error),
    RuntimeError,  # encrypted, or of an unknown version or compression
    ValueError,  # a name that is not UTF-8, a negative offset
    OverflowError,
)


def _hdf5_config(path: Path) -> bytes | str:
    try:
        import h5py
    except ImportError as error:
        raise FrameworkNotInstalledError(
            f"HDF5 files need h5py, which cannot be imported: {error}",
            'pip install "dippm[tensorflow]"',
        ) from error
    step("reading the configuration with HDF5")
    config = _in_a_child(lambda: _model_config(h5py, path))
    if config is None:
        raise ModelFileError(f"{path} is damaged: HDF5 crashes on it or never ends", DAMAGED)
    kind, text = config[:1], config[1:]
    if kind == _FAILED:
        raise ModelFileError(
            f"{path} is not a readable HDF5 file: {text.decode(errors='replace')}",
            "The file may be truncated; copy or save it again.",
        )
    if kind == _ABSENT:
        raise ModelFileError(
            f"{path} holds weights without an architecture",
            "Save the whole model: model.save('model.keras').",
        )
    if kind == _NO_TEXT:
        raise ModelFileError(f"the configuration in {path} is not text", DAMAGED)
    return text


_TEXT, _NO_TEXT, _ABSENT, _FAILED = b"t", b"n", b"a", b"f"


def _model_config(h5py: Any, path: Path) -> bytes:
    """Return the file's configuration as bytes: a kind, then the text or the error."""
    try:
        with h5py.File(path, "r") as file:
            config = file.attrs.get("model_config")
        if isinstance(config, str):
            config = config.encode("utf-8", "surrogateescape")
    except Exception as error:  # of HDF5, numpy or decoding
        return _FAILED + str(error).encode("utf-8", "replace")
    if config is None:
        return _ABSENT
    return _TEXT + config if isinstance(config, bytes) else _NO_TEXT


def _in_a_child(work: Callable[[], bytes]) -> bytes | None:
    """Return the result of C code, run in a child; None if a damaged file crashed or blocked it.

    The limit is processor time, so that a busy machine does not make a good file look damaged.
    """
    ours, its = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, unused there
        try:
            child = os.fork()
        except OSError as error:
            os.close(ours)
            os.close(its)
            raise no_process_error(error) from error
    if not child:
        try:
            os.close(ours)
            end_after_cpu(HDF5_CPU_S)
            with open(its, "wb") as answer:
                answer.write(work())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(its)
    with open(ours, "rb") as answer:
        result = answer.read()
    return result if os.waitpid(child, 0)[1] == 0 else None


def _check_backend() -> None:
    try:
        import keras
    except ImportError as error:
        raise FrameworkNotInstalledError(
            f"this model needs Keras, which cannot be imported: {error}",
            'pip install "dippm[tensorflow]"',
        ) from error
    if keras.backend.backend() != "tensorflow":
        raise ConversionError(
            f"Keras already runs on {keras.backend.backend()} in this process",
            "Set KERAS_BACKEND=tensorflow before Keras is imported.",
        )


def _build(config: dict[str, Any], path: Path, *, trust: bool) -> Any:
    """Build the model without weights; with weights if one of its layers requires them."""
    import keras

    scope: AbstractContextManager[Any] = keras.StatelessScope(initialize_variables=False)
    try:
        with scope:
            return _deserialize(config, trust=trust)
    except UnsafeModelError:
        raise
    except Exception:
        keras.backend.clear_session()  # drop all state of the attempt
    step("building the model with values")
    try:
        return _deserialize(config, trust=trust)
    except ModelFileError:
        raise
    except Exception as error:
        raise _unbuildable(error, path) from error


def _unbuildable(error: Exception, path: Path) -> ConversionError:
    """Return an error that names the missing class, if any, or else quotes Keras."""
    cause = _root_cause(error)
    missing = _MISSING.search(cause)
    if missing is not None:
        what = f"{missing['kind']} {shortened(missing['name'])!r}"
        return ConversionError(
            f"{files.shown(path)} holds the {what}, which Keras does not have and the file does "
            "not bring",
            "Call model.export(FOLDER) where it is defined, and give that folder: it needs no "
            "classes. trust=True does not help.",
        )
    return ConversionError(
        f"Keras could not build the model in {files.shown(path)}: {cause}",
        "Call model.export(FOLDER) where the model was made, and give that folder.",
    )


def _root_cause(error: BaseException) -> str:
    """Return the first line of the innermost cause of a Keras error."""
    cause, link = error, error.__context__
    while link is not None:
        if str(link).strip() and not isinstance(link, KeyError):
            cause = link
        link = link.__context__
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[0][:400]


def _deserialize(config: dict[str, Any], *, trust: bool) -> Any:
    config = copy.deepcopy(config)  # Keras empties the dictionary that it reads
    with contextlib.nullcontext() if trust else keras_allowlist.allowed_parts_only():
        return _build_parts(config, trust=trust)


def _build_parts(config: dict[str, Any], *, trust: bool) -> Any:
    import keras

    if "module" in config or "registered_name" in config:
        return keras.saving.deserialize_keras_object(config, safe_mode=not trust)
    from keras.src.legacy.saving.saving_options import keras_option_scope
    from keras.src.legacy.saving.saving_utils import model_from_config
    from keras.src.saving.serialization_lib import SafeModeScope

    with (
        keras_option_scope(use_legacy_config=True),
        SafeModeScope(not trust),
        keras.saving.custom_object_scope(_operations()),
    ):
        return model_from_config(_with_operations(config))


def _with_operations(config: Any) -> Any:
    """Distinguish `a + b` from the layer `Add`, in place: HDF5 files give both the same name."""
    import keras

    for item in objects_in(config):
        nodes = item.get("inbound_nodes")
        first = nodes[0] if isinstance(nodes, list) and nodes else None
        arguments = first.get("args") if isinstance(first, dict) else None
        if isinstance(arguments, list) and len(arguments) > 1:
            name = str(item.get("class_name"))
            if hasattr(keras.layers, name) and OPERATION + name in _operations():
                item["class_name"] = OPERATION + name
    return config


@functools.cache
def _operations() -> dict[str, Any]:
    """Return Keras' own operations, and the layers of its applications, by name.

    HDF5 files contain these names without their modules.
    """
    import keras
    from keras.src.applications import convnext, inception_resnet_v2

    own = (convnext.LayerScale, convnext.StochasticDepth, inception_resnet_v2.CustomScaleLayer)
    found: dict[str, Any] = {layer.__name__: layer for layer in own}
    stack = list(keras.Operation.__subclasses__())
    while stack:
        one = stack.pop()
        stack.extend(one.__subclasses__())
        if one.__module__.startswith("keras.src.ops."):
            is_layer = hasattr(keras.layers, one.__name__)
            found[OPERATION * is_layer + one.__name__] = one
    return found


def _declared_inputs(model: Any, spec: InputSpec) -> list[DeclaredInput]:
    tensors = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if tensors:
        return [_of_tensor(i, tensor) for i, tensor in enumerate(tensors)]
    if len(spec.shapes) != 1:
        raise InputShapeError(
            "the file does not state the inputs of the model",
            'Give the sizes without the batch, for instance input="224,224,3".',
        )
    ((name, shape),) = spec.shapes.items()
    axis = spec.batch_axes.get(name, 0)
    full = shape if axis is None else (*shape[:axis], None, *shape[axis:])
    model.build(full)
    return [DeclaredInput(name or "input", "input_0", full, 1)]


def _of_tensor(position: int, tensor: Any) -> DeclaredInput:
    import tensorflow as tf

    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        raise ConversionError(
            f"input {tensor.name} is text", "Save the model without its text processing."
        )
    is_whole = dtype.is_integer or dtype.is_bool
    shape = tuple(tensor.shape)
    return DeclaredInput(tensor.name, f"input_{position}", shape, dtype.as_datatype_enum, is_whole)


def _number_layers(model: Any) -> list[tuple[Any, str]]:
    """Rename layers to names that are unique as scopes; return each with its former name."""
    from dippm.model.relax.tensorflow import numbered_name

    layers = [model, *(layer for layer in model._flatten_layers() if layer is not model)]
    names = [layer.name for layer in layers]
    for position, layer in enumerate(layers):
        layer.name = numbered_name(position)
    return list(zip(layers, names, strict=True))


def _trace(
    model: Any, declared: Sequence[DeclaredInput], bound: BoundInputs
) -> tuple[Any, Sequence[DeclaredInput], BoundInputs, list[str]]:
    """Call the model on placeholders; return the arguments of `convert`."""
    import keras
    import tensorflow as tf

    graph = tf.__internal__.FuncGraph("main")
    try:
        with graph.as_default():
            given = [
                tf.compat.v1.placeholder(tf.as_dtype(one.dtype), shape, name=one.tensor)
                for one, shape in zip(declared, bound.shapes, strict=True)
            ]
            values = [
                (v, tf.compat.v1.placeholder(v.dtype, v.shape, name=f"parameter/{i}"))
                for i, v in enumerate(model.variables)
            ]
            structure = getattr(model, "_inputs_struct", None)
            arguments = given if len(given) > 1 else given[0]
            if structure is not None:
                arguments = keras.tree.pack_sequence_as(structure, given)
            with keras.StatelessScope(values, initialize_variables=False):
                results = model(arguments, training=False)
    except Exception as error:
        raise _uncallable(error, bound) from error
    names = [t.name for t in keras.tree.flatten(results) if t is not None]
    return _with_states(graph), declared, bound, names


def _with_states(graph: Any) -> Any:
    """Return a graph's definition, including captured variables that are not weights."""
    definition = graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    for outside, inside in graph.captures:
        known = getattr(outside, "_handle_data", None)
        if known is not None and known.is_set:
            node = nodes[inside.op.name]
            node.op = "VarHandleOp"
            node.attr["dtype"].type = known.shape_and_type[0].dtype
            node.attr["shape"].shape.CopyFrom(known.shape_and_type[0].shape)
    return definition


def _uncallable(error: Exception, bound: BoundInputs) -> ModelFileError:
    import tensorflow as tf

    wanted = [
        shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
        for shape, axis in zip(bound.shapes, bound.axes, strict=True)
    ]
    if isinstance(error, ValueError | tf.errors.InvalidArgumentError):
        return InputShapeError(
            f"the model does not take inputs of shape {wanted}: {_root_cause(error)}",
            "Give other sizes, without the batch.",
        )
    return ConversionError(
        f"Keras could not call the model on {wanted}: {_root_cause(error)}",
        "Export it with model.export(folder) where it was made, and give that.",
    )
