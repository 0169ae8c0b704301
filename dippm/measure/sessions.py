"""Sessions: files of frameworks other than PyTorch, run unchanged for inference on the CPU.

`open_session` loads a file as a `Session`, its model with random inputs. To add a framework, write
a function that opens its files and list it in `OPENERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dippm.errors import (
    ConditionsError,
    FrameworkNotInstalledError,
    InputShapeError,
    ModelFileError,
    ModelNotFoundError,
    UnknownFormatError,
    UnsafeModelError,
)
from dippm.measure.protocol import Regime
from dippm.model.frontends import InputSpec, registry
from dippm.model.frontends.frontend import FORMS
from dippm.model.frontends.registry import Entry


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model, ready to run.

    Attributes:
        run: function that runs one forward pass and returns when it is complete.
        framework: name and version, for provenance.
    """

    run: Callable[[], object]
    framework: str


def entry_of(source: object) -> Entry | None:
    """Return the frontend of a file of a framework other than PyTorch, else None.

    Raises:
        ModelFileError: if the path is not a file of a known framework.
    """
    if not isinstance(source, str | Path):
        return None
    entry = registry.find(source)
    return None if entry.framework == "pytorch" else entry


def runtime_of(source: object) -> str:
    """Return the runtime that measures a model: "torch", "onnxruntime", "keras", ...

    Raises:
        ModelFileError: if the path is not a file of a known framework.
    """
    entry = entry_of(source)
    return "torch" if entry is None else registry.RUNTIMES.get(entry.framework, entry.framework)


def open_session(
    entry: Entry,
    path: Path,
    inputs: InputSpec,
    *,
    batch: int,
    regime: Regime,
    on_cpu: bool,
    trust: bool,
) -> Session:
    """Load a file with random inputs.

    Args:
        entry: frontend of the file.
        path: path of the file.
        inputs: input shapes without the batch; if empty, those that the file states.
        batch: number of samples.
        regime: conditions, which must be the default ones.
        on_cpu: whether to run on the CPU.
        trust: whether the file may run code.

    Raises:
        UnknownFormatError: if no opener exists for the framework.
        FrameworkNotInstalledError: if the framework is missing.
        UnsafeModelError: if running the file could run code and `trust` is false.
        ConditionsError: if the conditions differ from running the file unchanged on the CPU.
        InputShapeError: if a size is missing or does not fit.
    """
    if entry.framework not in OPENERS:
        raise UnknownFormatError(
            f"files of {entry.framework} cannot be run here", f"Known: {', '.join(OPENERS)}"
        )
    if regime != Regime() or not on_cpu:
        raise ConditionsError(
            f"{path.name} is measured as it is, for inference on the CPU",
            "For a GPU, another precision or a training step measure the PyTorch model.",
        )
    entry.check_installed(path.name)
    return OPENERS[entry.framework](path, inputs, batch=batch, trust=trust)


@dataclass(frozen=True, slots=True)
class _Argument:
    """One input of a model.

    Attributes:
        name: name in the file.
        shape: shape with the batch; None for a size that the file leaves open.
        dtype: NumPy name of the element type.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


def _random_feeds(arguments: Sequence[_Argument], inputs: InputSpec, batch: int) -> dict[str, Any]:
    """Return random arrays by input name: normally distributed floats, or integers 0 and 1.

    Raises:
        InputShapeError: if a name is unknown, a size is missing, or the batch is fixed otherwise.
    """
    names = [argument.name for argument in arguments]
    shapes = {names[0] if name == "" else name: s for name, s in inputs.shapes.items()}
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise InputShapeError(
            f"the model has no input {unknown[0]!r}", f"Its inputs: {', '.join(names)}. {FORMS}"
        )
    return {a.name: _array(a, shapes.get(a.name), batch) for a in arguments}


def _array(argument: _Argument, shape: tuple[int, ...] | None, batch: int) -> Any:
    import numpy as np

    own = shape if shape is not None else argument.shape[1:]
    sizes = (batch, *(size for size in own if size is not None))
    if len(sizes) <= len(own):
        raise InputShapeError(f"input {argument.name!r} has open sizes {argument.shape[1:]}", FORMS)
    fixed = argument.shape[0] if argument.shape else None
    if fixed is not None and fixed != batch:
        raise InputShapeError(
            f"the file fixes the batch of {argument.name!r} at {fixed}", f"Give batch={fixed}."
        )
    kind = np.dtype(argument.dtype)
    generator = np.random.default_rng(0)
    if kind.kind == "f":
        return generator.standard_normal(sizes).astype(kind)
    return generator.integers(0, 2, sizes).astype(kind)


# ONNX files, in ONNX Runtime.


ONNX_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
"""NumPy name of each ONNX element type."""


def _open_onnx(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
    """Load an ONNX file; it contains no code, so `trust` is not needed.

    Raises:
        FrameworkNotInstalledError: if ONNX Runtime is missing.
        InputShapeError: if a size is missing or does not fit.
    """
    if find_spec("onnxruntime") is None:
        raise FrameworkNotInstalledError(
            f"{path.name} needs ONNX Runtime to run", "pip install onnxruntime"
        )
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    arguments = [
        _Argument(
            one.name,
            tuple(size if isinstance(size, int) else None for size in one.shape),
            ONNX_TYPES.get(one.type, "float32"),
        )
        for one in session.get_inputs()
    ]
    feeds = _random_feeds(arguments, inputs, batch)
    return Session(lambda: session.run(None, feeds), f"onnxruntime {onnxruntime.__version__}")


# Keras files, as a compiled TensorFlow function.


def _open_keras(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
    """Load a `.keras` archive in Keras's safe mode; `.h5` has none, so it needs `trust`.

    Raises:
        UnsafeModelError: for a `.h5` file without `trust`.
        InputShapeError: if a size is missing or does not fit.
    """
    if path.suffix != ".keras" and not trust:
        raise UnsafeModelError(
            f"{path.name}: loading the weights of this older format can run code that it carries",
            "Save it as .keras, or, if you know where the file comes from, pass trust=True.",
        )
    from dippm.model.frontends.tensorflow_inputs import import_tensorflow

    import_tensorflow()
    import keras
    import tensorflow as tf

    model = keras.saving.load_model(path, compile=False, safe_mode=not trust)
    arguments = [_Argument(one.name, tuple(one.shape), str(one.dtype)) for one in model.inputs]
    feeds = _random_feeds(arguments, inputs, batch)
    tensors = [tf.constant(feeds[argument.name]) for argument in arguments]
    function = tf.function(lambda *given: model(list(given) if len(given) > 1 else given[0]))
    return Session(lambda: function(*tensors), f"keras {keras.__version__}")


# TensorFlow SavedModel folders.


PREFERRED_SIGNATURES = ("serving_default", "serve")
"""Names of signatures to call, the preferred one first; otherwise the first of the file."""


def _open_savedmodel(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
    """Load a SavedModel; its graph may read and write files, so it needs `trust`.

    Raises:
        UnsafeModelError: without `trust`.
        ModelFileError: if it has no callable signature.
        InputShapeError: if a size is missing or does not fit.
    """
    if not trust:
        raise UnsafeModelError(
            f"{path.name} is a SavedModel: running one can run code that it carries",
            "If you know where it comes from, pass trust=True; `dippm predict` runs nothing of it.",
        )
    from dippm.model.frontends.tensorflow_inputs import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    folder = path if path.is_dir() else path.parent
    loaded = tf.saved_model.load(str(folder))
    names = [name for name in PREFERRED_SIGNATURES if name in loaded.signatures] or list(
        loaded.signatures
    )
    if not names:
        raise ModelFileError(
            f"{path.name} has no signature to call", "Save it with model.export(folder)."
        )
    call = loaded.signatures[names[0]]
    specs = call.structured_input_signature[1]
    arguments = [
        _Argument(name, tuple(spec.shape), spec.dtype.name) for name, spec in sorted(specs.items())
    ]
    tensors = {n: tf.constant(a) for n, a in _random_feeds(arguments, inputs, batch).items()}

    def run() -> object:
        _ = loaded  # the function alone does not keep the variables alive
        return call(**tensors)

    return Session(run, f"tensorflow {tf.__version__}")


# PaddlePaddle programs, loaded by Paddle.


def _open_paddle(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
    """Load a program with its parameters.

    Raises:
        ModelNotFoundError: if the parameters are missing.
        UnsafeModelError: for a `.pdmodel` without `trust`: it may come with pickled files.
        InputShapeError: if a size is missing or does not fit.
    """
    from dippm.model.frontends.paddle import find_program

    program = find_program(path)
    parameters = program.with_suffix(".pdiparams")
    if not parameters.is_file():
        raise ModelNotFoundError(
            f"{parameters.name} is missing beside {program.name}",
            "A program runs with its parameters only; `dippm predict` does not need them.",
        )
    if program.suffix != ".json" and not trust:
        raise UnsafeModelError(
            f"{program.name}: loading this older format can run code from files beside it",
            "Save it again with paddle.jit.save, or, if you know where it comes from, pass "
            "trust=True.",
        )
    import paddle

    layer = paddle.jit.load(str(program.with_suffix("")))
    layer.eval()
    arguments = [
        _Argument(
            spec.name,
            tuple(size if size > 0 else None for size in spec.shape),
            str(spec.dtype).rpartition(".")[2],
        )
        for spec in layer._input_spec()
    ]
    feeds = _random_feeds(arguments, inputs, batch)
    tensors = [paddle.to_tensor(feeds[argument.name]) for argument in arguments]

    def run() -> object:
        with paddle.no_grad():
            return layer(*tensors)

    return Session(run, f"paddle {paddle.__version__}")


OPENERS: Mapping[str, Callable[..., Session]] = {
    "onnx": _open_onnx,
    "keras": _open_keras,
    "tensorflow": _open_savedmodel,
    "paddle": _open_paddle,
}
"""Function that loads a file, by framework."""
