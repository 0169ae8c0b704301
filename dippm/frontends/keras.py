"""Keras models: `.keras` archives and `.h5` files.

Only the configuration is read. The layers are built inside `keras.StatelessScope`, where variables
have a shape but no value, and are traced into a TensorFlow graph with a placeholder for each
variable; from there the way is that of `savedmodel`, so `.keras`, `.h5` and an exported folder of
one model give one graph. Building on the torch backend instead would need no TensorFlow, but
allocates every weight and gives another graph than the SavedModel.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dippm.errors import (
    ConversionError,
    FrameworkNotInstalledError,
    InputShapeError,
    ModelFileError,
    UnsafeModelError,
)
from dippm.frontends.frontend import InputSpec
from dippm.frontends.savedmodel import convert
from dippm.frontends.tensorflow_inputs import Bound, Declared, bind, import_tensorflow
from dippm.relax.raw_graph import RawGraph

NAME = "keras"

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_CONFIG_BYTES = 256 << 20
DAMAGED = "The file is damaged: copy it again, or save the model again with model.save(...)."
CODE_CLASSES = frozenset(
    ("Lambda", "__lambda__", "__typespec__", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")
)
SAFE_MODULES = (
    "keras.layers",
    "keras.models",
    "keras.initializers",
    "keras.regularizers",
    "keras.constraints",
    "keras.activations",
    "keras.dtype_policies",
    "keras.ops",
    "keras.random",
    "keras.quantizers",
    "keras.src.models",
    "keras.src.layers",
    "keras.src.ops",
    "keras.src.dtype_policies",
    "keras.src.initializers",
    "keras.src.activations",
    "keras.src.applications",
)
"""Where Keras keeps parts that only compute; not its downloads, files and callbacks."""


def accepts(path: Path) -> bool:
    """Return whether this is a Keras archive or an HDF5 file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(8)
    if head == HDF5_MAGIC:
        return True
    if not head.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {"config.json", "metadata.json"} <= set(archive.namelist())
    except zipfile.BadZipFile:
        return path.suffix == ".keras"


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Convert a Keras file.

    Raises:
        ModelFileError: one of its subclasses, with the next step in `hint`.
    """
    config = _read_config(path)
    if not trust:
        _check_safe(config, path)
    import_tensorflow()
    _check_backend()
    model = _build(config, path, trust=trust)
    declared = _declared(model, inputs)
    sizes = [size for v in model.variables for size in v.shape]
    bound = bind(declared, inputs, sizes)
    from dippm.relax.tensorflow.paths import named_by_layers

    names = _number_layers(model)
    definition, outputs = _trace(model, declared, bound)
    return named_by_layers(convert(definition, declared, bound, outputs), names)


def _read_config(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        is_hdf5 = file.read(8) == HDF5_MAGIC
    text = _hdf5_config(path) if is_hdf5 else _archive_config(path)
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ModelFileError(
            f"the configuration in {path} is not JSON: {error}", DAMAGED
        ) from error
    if not isinstance(config, dict) or "class_name" not in config:
        raise ModelFileError(f"the configuration in {path} describes no model", DAMAGED)
    return config


def _archive_config(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("config.json").file_size > MAX_CONFIG_BYTES:
                raise ModelFileError(f"the configuration in {path} is implausibly large", DAMAGED)
            return archive.read("config.json")
    except (zipfile.BadZipFile, KeyError, EOFError, OSError) as error:
        raise ModelFileError(
            f"{path} is not a readable Keras archive: {error}",
            "The file may be truncated; copy or save it again.",
        ) from error


def _hdf5_config(path: Path) -> bytes | str:
    try:
        import h5py
    except ImportError as error:
        raise FrameworkNotInstalledError(
            f"HDF5 files need h5py, which cannot be imported: {error}",
            'pip install "dippm[tensorflow]"',
        ) from error
    try:
        with h5py.File(path, "r") as file:
            config = file.attrs.get("model_config")
    except (OSError, RuntimeError, KeyError) as error:
        raise ModelFileError(
            f"{path} is not a readable HDF5 file: {error}",
            "The file may be truncated; copy or save it again.",
        ) from error
    if config is None:
        raise ModelFileError(
            f"{path} holds weights without an architecture",
            "Save the whole model: model.save('model.keras').",
        )
    if not isinstance(config, bytes | str):
        raise ModelFileError(f"the configuration in {path} is no text", DAMAGED)
    return config


def _check_safe(config: dict[str, Any], path: Path) -> None:
    """Refuse configurations that make Keras run or import what is not Keras' own.

    Raises:
        UnsafeModelError: names what would run.
    """
    found = sorted(set(_code_in(config)))
    if found:
        raise UnsafeModelError(
            f"{path} has parts that can run code when loaded: {', '.join(found)}",
            "Export it to ONNX or as a SavedModel, or pass trust=True if you trust it.",
        )


def _code_in(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        if not isinstance(item, dict):
            continue
        stack.extend(item.values())
        name = item.get("class_name")
        if isinstance(name, str) and name.rpartition(">")[2] in CODE_CLASSES:
            yield name
        module = item.get("module")
        if isinstance(module, str) and name is not None and not _is_safe_module(module):
            yield f"{module}.{name}"


def _is_safe_module(module: str) -> bool:
    return module in ("keras", "builtins") or any(
        module == safe or module.startswith(safe + ".") for safe in SAFE_MODULES
    )


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
    """Build the model without values; with values if one of its layers insists on them."""
    import keras

    scope: AbstractContextManager[Any] = keras.StatelessScope(initialize_variables=False)
    try:
        with scope:
            return _deserialize(config, trust=trust)
    except Exception:
        try:
            return _deserialize(config, trust=trust)
        except Exception as error:
            raise ConversionError(
                f"Keras could not build the model in {path}: {_root_cause(error)}",
                "Models with own classes: export them with model.export(folder) and give that.",
            ) from error


def _root_cause(error: BaseException) -> str:
    """Return the first line of the error that Keras' own errors wrap."""
    cause, link = error, error.__context__
    while link is not None:
        if str(link).strip() and not isinstance(link, KeyError):
            cause = link
        link = link.__context__
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[0][:400]


def _deserialize(config: dict[str, Any], *, trust: bool) -> Any:
    import keras

    if "module" in config or "registered_name" in config:
        return keras.saving.deserialize_keras_object(config, safe_mode=not trust)
    from keras.src.legacy.saving.saving_options import keras_option_scope
    from keras.src.legacy.saving.saving_utils import model_from_config
    from keras.src.saving.serialization_lib import SafeModeScope

    with keras_option_scope(use_legacy_config=True), SafeModeScope(not trust):
        return model_from_config(config)


def _declared(model: Any, spec: InputSpec) -> list[Declared]:
    tensors = getattr(model, "inputs", None) if getattr(model, "built", False) else None
    if tensors:
        return [_of_tensor(tensor) for tensor in tensors]
    if len(spec.shapes) != 1:
        raise InputShapeError(
            "the file does not say what the model takes",
            'Give the sizes without the batch, for instance input="224,224,3".',
        )
    ((name, shape),) = spec.shapes.items()
    model.build((None, *shape))
    return [Declared(name or "input", name or "input", (None, *shape), 1)]


def _of_tensor(tensor: Any) -> Declared:
    import tensorflow as tf

    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        raise ConversionError(
            f"input {tensor.name} is text", "Save the model without its text processing."
        )
    return Declared(tensor.name, tensor.name, tuple(tensor.shape), dtype.as_datatype_enum)


def _number_layers(model: Any) -> list[str]:
    """Give the layers names that scopes keep unmistakable; return the names that they had."""
    from dippm.relax.tensorflow.paths import numbered

    layers = [model, *(layer for layer in model._flatten_layers() if layer is not model)]
    names = [layer.name for layer in layers]
    for position, layer in enumerate(layers):
        layer.name = numbered(position)
    return names


def _trace(model: Any, declared: Sequence[Declared], bound: Bound) -> tuple[Any, list[str]]:
    """Call the model on placeholders; return the graph and the names of its results."""
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
                (v, tf.compat.v1.placeholder(v.dtype, v.shape, name="parameter/" + v.path))
                for v in model.variables
            ]
            with keras.StatelessScope(values, initialize_variables=False):
                results = model(given[0] if len(given) == 1 else given, training=False)
    except Exception as error:
        wanted = [shape[1:] for shape in bound.shapes]
        if isinstance(error, ValueError | tf.errors.InvalidArgumentError):
            raise InputShapeError(
                f"the model does not take inputs of shape {wanted}: {_root_cause(error)}",
                "Give other sizes, without the batch.",
            ) from error
        raise ConversionError(
            f"Keras could not call the model on {wanted}: {_root_cause(error)}",
            "Export it with model.export(folder) where it was made, and give that.",
        ) from error
    return graph.as_graph_def(), [t.name for t in keras.tree.flatten(results)]
