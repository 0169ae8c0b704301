"""TensorFlow SavedModel folders."""

from __future__ import annotations

from pathlib import Path

from dippm.errors import ModelFileError, UnsafeModelError
from dippm.measure.sessions.session import Argument, Session, random_feeds
from dippm.model.frontends import InputSpec
from dippm.model.frontends.tensorflow_inputs import import_tensorflow

PREFERRED = ("serving_default", "serve")


def open_session(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
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
    import_tensorflow()
    import tensorflow as tf

    folder = path if path.is_dir() else path.parent
    loaded = tf.saved_model.load(str(folder))
    names = [name for name in PREFERRED if name in loaded.signatures] or list(loaded.signatures)
    if not names:
        raise ModelFileError(
            f"{path.name} has no signature to call", "Save it with model.export(folder)."
        )
    call = loaded.signatures[names[0]]
    specs = call.structured_input_signature[1]
    arguments = [
        Argument(name, tuple(spec.shape), spec.dtype.name) for name, spec in sorted(specs.items())
    ]
    tensors = {n: tf.constant(a) for n, a in random_feeds(arguments, inputs, batch).items()}

    def run() -> object:
        _ = loaded  # the function alone does not keep the variables alive
        return call(**tensors)

    return Session(run, f"tensorflow {tf.__version__}")
