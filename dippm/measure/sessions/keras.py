"""Keras files, as a compiled TensorFlow function."""

from __future__ import annotations

from pathlib import Path

from dippm.errors import UnsafeModelError
from dippm.measure.sessions.session import Argument, Session, random_feeds
from dippm.model.frontends import InputSpec
from dippm.model.frontends.tensorflow_inputs import import_tensorflow


def open_session(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
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
    import_tensorflow()
    import keras
    import tensorflow as tf

    model = keras.saving.load_model(path, compile=False, safe_mode=not trust)
    arguments = [Argument(one.name, tuple(one.shape), str(one.dtype)) for one in model.inputs]
    feeds = random_feeds(arguments, inputs, batch)
    tensors = [tf.constant(feeds[argument.name]) for argument in arguments]
    function = tf.function(lambda *given: model(list(given) if len(given) > 1 else given[0]))
    return Session(lambda: function(*tensors), f"keras {keras.__version__}")
