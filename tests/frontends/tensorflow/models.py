"""Runs in the child process: builds model files and converts them."""

from __future__ import annotations

import json
import os
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

KINDS = {"keras": "model.keras", "h5": "model.h5", "savedmodel": "folder"}


def convert(path: Path, given: Any = None, trust: bool = False):
    """Return the raw graph as JSON, or (error type, message, hint); `given` is what users write."""
    from dippm.errors import DippmError
    from dippm.model.frontends import keras, savedmodel
    from dippm.model.frontends.frontend import InputSpec

    frontend = keras if keras.accepts(path) or path.suffix in (".keras", ".h5") else savedmodel
    try:
        return frontend.load(path, InputSpec.parse(given), trust=trust).to_json()
    except DippmError as error:
        return type(error).__name__, error.message, error.hint


def places_while_called(path: Path) -> list[str]:
    """Return where a worker would say that it is, in the midst of each dense layer."""
    import sys

    import keras

    from dippm.model.frontends import worker

    places, whole = [], keras.layers.Dense.call

    def call(self, inputs, training=None):
        places.append(worker.place_in(sys._getframe()))
        return whole(self, inputs, training)

    keras.layers.Dense.call = call
    try:
        convert(path)
    finally:
        keras.layers.Dense.call = whole
    return places


def convert_measured(path: Path) -> tuple[Any, float]:
    """Return the result and this process' peak memory in MiB."""
    result = convert(path)
    return result, peak_of_this_process_mb()


def peak_of_this_process_mb() -> float:
    """Return the peak since this program started; `ru_maxrss` would count the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def save(name: str, folder: Path, kinds: tuple[str, ...] = tuple(KINDS)) -> dict[str, Path]:
    """Build a model by its name in `build` and write it as each kind of file."""
    model = _built(name)
    paths = {kind: folder / KINDS[kind] for kind in kinds}
    for kind, path in paths.items():
        if kind == "savedmodel":
            model.export(path, verbose=False)
        else:
            model.save(path)
    return paths


@lru_cache(maxsize=1)
def _built(name: str) -> Any:
    """Return a model, for the next kind of file the same."""
    return build(name)


def save_with_weights(folder: Path, value: float) -> dict[str, Path]:
    """Write the small network with every weight set to one value."""
    import keras
    import numpy as np

    keras.utils.clear_session()  # so that layers get the same names each time
    model = build("small")
    model.set_weights([np.full(w.shape, value, w.dtype) for w in model.get_weights()])
    paths = {kind: folder / file for kind, file in KINDS.items()}
    model.save(paths["keras"])
    model.save(paths["h5"])
    model.export(paths["savedmodel"], verbose=False)
    return paths


def save_module(folder: Path, kind: str) -> Path:
    """Write a SavedModel that Keras has no part in."""
    import tensorflow as tf

    sizes = {"fixed": [4, 8], "baked": [None, 8], "two": [None, 8], "bare": [None, 8]}[kind]
    module = tf.Module()
    module.weight = tf.Variable(tf.ones((8, 3)))

    given = None if kind == "bare" else [tf.TensorSpec(sizes, tf.float32, name="x")]

    @tf.function(input_signature=given)
    def call(x):
        product = tf.matmul(x, module.weight)
        return {"y": tf.reshape(product, (4, 3)) if kind == "baked" else tf.nn.relu(product)}

    module.call = call
    call.get_concrete_function(tf.TensorSpec(sizes, tf.float32, name="x"))
    signatures = {
        "fixed": call,
        "baked": call,
        "two": {"one": call, "other": call},
        "bare": None,
    }[kind]
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


def save_first_generation(folder: Path, resource: bool) -> Path:
    """Write a SavedModel of a graph with variables but without functions."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (None, 8, 8, 3), name="x")
        kernel = v1.get_variable("kernel", (3, 3, 3, 4), use_resource=resource)
        matrix = v1.get_variable("matrix", (8 * 8 * 4, 5), use_resource=resource)
        y = tf.reshape(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), (-1, 8 * 8 * 4))
        y = tf.matmul(y, matrix)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            v1.saved_model.simple_save(session, str(folder), {"x": x}, {"y": y})
    return folder


def save_text_model(folder: Path) -> Path:
    """Write a SavedModel with gathered embeddings, an attention, a condition and a loop."""
    import tensorflow as tf

    class Text(tf.Module):
        def __init__(self):
            self.table = tf.Variable(tf.ones((100, 16)))
            self.matrix = tf.Variable(tf.ones((16, 16)))

        @tf.function(
            input_signature=[tf.TensorSpec([None, 12], tf.int32, n) for n in ("ids", "mask")]
        )
        def call(self, ids, mask):
            hidden = tf.gather(self.table, ids)
            bias = (1.0 - tf.cast(mask, tf.float32)[:, None, None, :]) * -1e9
            x = tf.einsum("bld,de->ble", hidden, self.matrix)
            x = tf.transpose(tf.reshape(x, (tf.shape(x)[0], 12, 2, 8)), (0, 2, 1, 3))
            scores = tf.nn.softmax(tf.matmul(x, x, transpose_b=True) + bias)
            x = tf.reshape(tf.transpose(tf.matmul(scores, x), (0, 2, 1, 3)), (-1, 12, 16))
            mean, variance = tf.nn.moments(x, -1, keepdims=True)
            x = tf.nn.batch_normalization(x, mean, variance, tf.ones(16), tf.ones(16), 1e-6)
            x = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, self.matrix), lambda: x * 2.0)
            _, x = tf.while_loop(
                lambda i, x: i < 3, lambda i, x: (i + 1, tf.matmul(x, self.matrix)), (0, x)
            )
            return {"first": x[:, 0], "top": tf.math.top_k(x, 2).values}

    module = Text()
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


def convert_damaged(source: Path, folder: Path, seed: int) -> list[str]:
    """Convert forty randomly damaged copies; return what was raised beside our own errors."""
    import random
    import traceback

    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    chance, found = random.Random(seed), []
    for _ in range(40):
        document = SavedModel()
        document.ParseFromString((source / "saved_model.pb").read_bytes())
        graph = document.meta_graphs[0].graph_def
        for _ in range(chance.randint(1, 3)):
            bodies = [f.node_def for f in graph.library.function if len(f.node_def)]
            _damage(chance.choice([graph.node, *bodies]), chance)
        (folder / "saved_model.pb").write_bytes(document.SerializeToString())
        try:
            convert(folder)
        except Exception:
            found.append(traceback.format_exc(limit=-3))
    return found


def _damage(nodes: Any, chance: Any) -> None:
    at = chance.randrange(len(nodes))
    node, other = nodes[at], chance.choice(nodes)
    match chance.randrange(5):
        case 0:
            del nodes[at]
        case 1:
            node.op = chance.choice(["Relu", "MatMul", "Unheard", "While", "Reshape", other.op])
        case 2 if len(node.input):
            node.input[0] = other.name
        case 3 if len(node.input):
            del node.input[-1]
        case _ if len(node.attr):
            key = chance.choice(sorted(node.attr))
            if node.attr[key].WhichOneof("value") == "i":
                node.attr[key].i = chance.choice([-1, 0, 1 << 40])
            else:
                del node.attr[key]


def save_frozen_graph(path: Path) -> Path:
    """Write a graph of the first TensorFlow generation."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 8), name="x")
        tf.nn.relu(tf.matmul(x, tf.ones((8, 3))), name="y")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def save_lambda(folder: Path, witness: Path) -> dict[str, Path]:
    """Write models with a layer that holds code; running it would create the witness."""
    import keras

    code = f"lambda x: (open({str(witness)!r}, 'w').close(), x)[1]"
    inputs = keras.Input((4,))
    outputs = keras.layers.Lambda(eval(code))(inputs)
    model = keras.Model(inputs, outputs)
    witness.unlink(missing_ok=True)
    paths = {"keras": folder / "lambda.keras", "h5": folder / "lambda.h5"}
    for path in paths.values():
        model.save(path)
    witness.unlink(missing_ok=True)
    return paths


def bytecode_that_writes(witness: Path) -> list[Any]:
    """Return a function as Keras pickles it; calling it creates the witness."""
    from keras.src.utils import python_utils

    function = eval(f"lambda x: (open({str(witness)!r}, 'w').close(), x)[1]")
    return list(python_utils.func_dump(function))


def save_that_runs_when_loaded(folder: Path, witness: Path) -> Path:
    """Write a SavedModel that creates the witness when TensorFlow loads it."""
    import tensorflow as tf

    class Writer(tf.saved_model.experimental.TrackableResource):
        def _create_resource(self) -> Any:
            return tf.raw_ops.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)

        def _initialize(self) -> None:
            tf.io.write_file(str(witness), "ran")

    module = tf.Module()
    module.writer = Writer()
    call = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec((None, 4))])
    module.call = call
    module.serve = call
    module.writer.resource_handle  # noqa: B018 - makes it
    tf.saved_model.save(module, folder, signatures={"serve": call, "serving_default": call})
    witness.unlink(missing_ok=True)
    return folder


def load_saved_model(folder: Path) -> None:
    """Load a SavedModel as TensorFlow does."""
    import tensorflow as tf

    tf.saved_model.load(folder)


def save_own_class(folder: Path, witness: Path) -> list[Path]:
    """Write models with a layer of a class of their own; building it would create the witness."""
    import keras

    class Own(keras.layers.Layer):
        def call(self, x):
            return x * 2.0

        @classmethod
        def from_config(cls, config):
            witness.touch()
            return super().from_config(config)

    model = chain((4,), Own())
    paths = [folder / "own.keras", folder / "own.h5"]
    for path in paths:
        model.save(path)
    return paths


def save_lookup(path: Path) -> Path:
    """Write a model that looks up numbers."""
    from keras import layers

    chain((4,), layers.IntegerLookup(vocabulary=[1, 2, 3]), dtype="int64").save(path)
    return path


def save_hdf5_configuration(path: Path, configuration: bytes) -> Path:
    """Write an HDF5 file with this text where Keras keeps the architecture."""
    import h5py
    import numpy as np

    with h5py.File(path, "w") as file:
        big = len(configuration) > 60_000  # HDF5's limit
        file.attrs["model_config"] = np.zeros(3) if big else configuration.decode()
    return path


def hdf5_configuration(name: str, folder: Path) -> str:
    """Return the architecture of a model as HDF5 files hold it."""
    import h5py

    with h5py.File(save(name, folder, ("h5",))["h5"]) as file:
        return str(file.attrs["model_config"])


def unlisted_parts() -> list[str]:
    """Return layers that are neither allowed nor known to run code, and what cannot be found."""
    import inspect

    import keras

    from dippm.model.frontends import keras_allowlist as allowed

    layers = {n for n, o in vars(keras.layers).items() if inspect.isclass(o)}
    bases = {"InputSpec", "Layer", "Wrapper"}
    found = [f"layer {n}" for n in layers - allowed.LAYERS - allowed.CODE - bases]
    found += [f"no layer {n}" for n in allowed.LAYERS - layers]
    found += [f"no activation {n}" for n in allowed.ACTIVATIONS - set(dir(keras.activations))]
    places = {"models": keras.src.models, "engine": keras.src.models}
    for place, names in allowed.CLASSES.items():
        owner = places.get(place) or getattr(keras, place or "dtype_policies", None)
        if place and place != "applications":
            found += [f"no {place}.{name}" for name in names if not hasattr(owner, name)]
    for name in dir(keras.ops):
        function = getattr(keras.ops, name)
        if inspect.isfunction(function):
            home = inspect.unwrap(function).__module__
            if home not in {f"keras.src.ops.{m}" for m in allowed.OPERATION_MODULES["ops"]}:
                found.append(f"operation {name} of {home}")
    return sorted(found)


def build(name: str) -> Any:
    """Return a Keras model: of the zoo without weights, or one of those below."""
    import keras

    if name in ZOO:
        return getattr(keras.applications, name)(weights=None)
    return globals()["_" + name]()


ZOO = frozenset(
    ("ResNet50", "VGG16", "MobileNetV2", "DenseNet121", "EfficientNetB0", "ConvNeXtTiny")
)


def chain(shape, *layers, dtype=None):
    """Return the model that applies layers one after the other."""
    import keras

    inputs = outputs = keras.Input(shape, dtype=dtype)
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def _small():
    from keras import layers

    return chain(
        (16, 16, 3),
        layers.Conv2D(8, 3, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
        layers.Dense(5),
    )


def _unet():
    import keras
    from keras import layers

    inputs = x = keras.Input((512, 512, 17))
    skips = []
    for width in (16, 32):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(skips[-1])
    x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    for skip in reversed(skips):
        width = skip.shape[-1]
        x = layers.Conv2DTranspose(width, 2, strides=2, padding="same")(x)
        x = layers.Conv2D(width, 3, padding="same")(layers.Concatenate()([x, skip]))
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))


def _lstm():
    from keras import layers

    return chain((32, 16), layers.LSTM(64, return_sequences=True), layers.LSTM(24), layers.Dense(3))


def _gru():
    from keras import layers

    return chain((32, 16), layers.GRU(24, return_sequences=True))


def _gru_reset_before():
    from keras import layers

    return chain((32, 16), layers.GRU(24, reset_after=False))


def _rnn():
    from keras import layers

    return chain((32, 16), layers.SimpleRNN(24))


def _masked_lstm():
    from keras import layers

    return chain((32,), layers.Embedding(100, 16, mask_zero=True), layers.LSTM(24), dtype="int32")


def _bilstm():
    from keras import layers

    return chain((32, 16), layers.Bidirectional(layers.LSTM(24, return_sequences=True)))


def _conv_lstm():
    from keras import layers

    return chain((5, 8, 8, 3), layers.ConvLSTM2D(4, 3, padding="same"))


def _conv_lstm_1d():
    from keras import layers

    return chain((5, 8, 3), layers.ConvLSTM1D(4, 3, padding="same"))


def _conv_lstm_3d():
    from keras import layers

    return chain((5, 4, 4, 4, 3), layers.ConvLSTM3D(4, 3, padding="same"))


def _conv_lstm_both():
    from keras import layers

    layer = layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True)
    return chain((5, 8, 8, 3), layers.Bidirectional(layer))


def _applied(function, *shapes):
    """Return the model of a function of its inputs."""
    import keras

    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs, function(*inputs))


def _lstm_states():
    from keras import layers

    return _applied(layers.LSTM(24, return_state=True, return_sequences=True), (8, 16))


def _encoder_decoder():
    from keras import layers

    def decoded(source, target):
        _, *states = layers.LSTM(24, return_state=True)(source)
        return layers.LSTM(24, return_sequences=True)(target, initial_state=states)

    return _applied(decoded, (10, 16), (7, 16))


def _both_with_states():
    from keras import layers

    return _applied(layers.Bidirectional(layers.LSTM(24, return_state=True)), (8, 16))


def _both_summed():
    from keras import layers

    return chain((8, 16), layers.Bidirectional(layers.SimpleRNN(24), merge_mode="sum"))


def _backwards():
    from keras import layers

    return chain((8, 16), layers.LSTM(24, go_backwards=True, use_bias=False))


def _unrolled_lstm():
    from keras import layers

    return chain((8, 16), layers.LSTM(24, unroll=True))


def _unrolled_gru():
    from keras import layers

    return chain((8, 16), layers.GRU(24, unroll=True, return_sequences=True))


def _stacked_cells():
    from keras import layers

    cells = layers.StackedRNNCells([layers.LSTMCell(24), layers.LSTMCell(12)])
    return chain((8, 16), layers.RNN(cells, name="two_cells"))


def _stacked_gru_cells():
    from keras import layers

    return chain((8, 16), layers.RNN([layers.GRUCell(24), layers.GRUCell(12)]))


def _zero_output():
    from keras import layers

    layer = layers.LSTM(24, return_sequences=True, zero_output_for_mask=True)
    return chain((8, 16), layers.Masking(), layer)


def _masked_both():
    from keras import layers

    layer = layers.Bidirectional(layers.GRU(24, return_sequences=True))
    return chain((8, 16), layers.Masking(), layer)


def _lstm_on_every_step():
    from keras import layers

    return chain((3, 8, 16), layers.TimeDistributed(layers.LSTM(24)))


def _at_batch_4(layer):
    import keras

    inputs = keras.Input(batch_shape=(4, 8, 16))
    return keras.Model(inputs, layer(inputs))


def _stateful_lstm():
    from keras import layers

    return _at_batch_4(layers.LSTM(24, stateful=True))


def _stateful_gru():
    from keras import layers

    return _at_batch_4(layers.GRU(24, stateful=True, return_sequences=True))


def _stateful_both():
    from keras import layers

    return _at_batch_4(layers.Bidirectional(layers.LSTM(24, stateful=True)))


def _attention():
    import keras
    from keras import layers

    inputs = keras.Input((12, 64))
    x = layers.LayerNormalization()(inputs)
    x = layers.Add()([layers.MultiHeadAttention(4, 16)(x, x), inputs])
    return keras.Model(inputs, layers.Dense(64, activation="gelu")(x))


def _norms():
    from keras import layers

    return chain(
        (8, 8, 12),
        layers.BatchNormalization(scale=False),
        layers.BatchNormalization(center=False),
        layers.GroupNormalization(4),
        layers.LayerNormalization(),
        layers.LayerNormalization(center=False),
        layers.RMSNormalization(),
    )


def _conv_kinds():
    from keras import layers

    return chain(
        (16, 16, 4),
        layers.Conv2D(8, 3, strides=2, padding="same", groups=2),
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2),
        layers.Conv2D(6, 3, dilation_rate=2),
        layers.Conv2DTranspose(5, 3, strides=2, padding="same"),
    )


def _conv1d():
    from keras import layers

    return chain((32, 6), layers.Conv1D(8, 3, strides=2, padding="same", groups=2))


def _conv1d_dilated():
    from keras import layers

    return chain((32, 6), layers.Conv1D(8, 3, padding="causal", dilation_rate=2))


def _conv3d():
    from keras import layers

    return chain(
        (8, 8, 8, 4), layers.Conv3D(6, 3, padding="same"), layers.Conv3DTranspose(5, 2, strides=2)
    )


def _activations():
    from keras import layers

    names = "relu relu6 elu selu gelu silu hard_silu hard_sigmoid softplus tanh sigmoid".split()
    return chain((8, 8, 3), *(layers.Activation(name) for name in names))


def _movers():
    from keras import layers

    return chain(
        (8, 8, 4),
        layers.UpSampling2D(interpolation="bilinear"),
        layers.Permute((3, 1, 2)),
        layers.Reshape((4, 256)),
        layers.ZeroPadding1D(1),
        layers.Cropping1D(2),
        layers.Flatten(),
        layers.RepeatVector(3),
    )


def _per_step():
    from keras import layers

    return chain((5, 8, 8, 3), layers.TimeDistributed(layers.Conv2D(4, 3)))


def _flexible():
    from keras import layers

    return chain((None, None, 3), layers.Conv2D(8, 3), layers.GlobalMaxPooling2D())


def _two_inputs():
    import keras
    from keras import layers

    left, right = keras.Input((None, 6), name="left"), keras.Input((7, 6), name="right")
    return keras.Model([left, right], layers.Dot(axes=2)([left, right]))


def _operators():
    """Operators and layers of one name, which HDF5 files do not tell apart."""
    from keras import layers

    def joined(a, b):
        x = layers.Dense(8)(a) * (layers.Dense(8)(b) + 3.0) + layers.Dense(8)(a)
        return layers.Multiply()([layers.Add()([x, x]), 1.0 - x])

    return _applied(joined, (8,), (8,))


def _own_layers():
    """Layers that Keras' applications define for themselves."""
    from keras import layers
    from keras.src.applications import convnext, inception_resnet_v2

    def joined(a, b):
        x = convnext.LayerScale(1e-6, 8)(layers.Dense(8)(a))
        x = convnext.StochasticDepth(0.1)(x)
        return inception_resnet_v2.CustomScaleLayer(0.2)([x, layers.Dense(8)(b)])

    return _applied(joined, (8,), (8,))


def _parts():
    import keras

    return {
        "ids": keras.Input((12,), dtype="int32", name="ids"),
        "image": keras.Input((6, 16), name="image"),
        "flag": keras.Input((), dtype="bool", name="flag"),
    }


def _joined(parts):
    from keras import layers, ops

    text = layers.Dense(3)(layers.Embedding(50, 16)(parts["ids"]))
    image = layers.Dense(5)(parts["image"])
    flag = layers.Reshape((1,))(ops.cast(parts["flag"], "float32"))
    pooled = [layers.GlobalAveragePooling1D()(x) for x in (text, image)]
    return layers.Concatenate()([*pooled, flag])


def _dict_inputs():
    import keras

    parts = _parts()
    return keras.Model(parts, _joined(parts))


def _nested_inputs():
    import keras

    parts = _parts()
    nest = [{"image": parts["image"], "ids": parts["ids"]}, (parts["flag"],)]
    return keras.Model(nest, {"y": _joined(parts)})


def save_unbuilt(path):
    """Write a model that was called, but that has no input of its own."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Dense(3)])
    model(np.zeros((2, 8), "float32"))
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    config.pop("build_config", None)
    config["config"].pop("build_input_shape", None)
    config["config"]["layers"] = [
        {k: v for k, v in layer.items() if k != "build_config"}
        for layer in config["config"]["layers"]
        if layer["class_name"] != "InputLayer"
    ]
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _fixed_batch():
    import keras
    from keras import layers

    inputs = keras.Input(batch_shape=(4, 8))
    return keras.Model(inputs, layers.Dense(3)(inputs))


def save_unread(folder: Path) -> dict[str, Path]:
    """Write what TensorFlow writes and nobody reads, and what the way out makes of it."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (None, 16), name="x")
        tf.matmul(x, tf.compat.v1.get_variable("w", (16, 4)), name="y")
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver().save(session, str(folder / "v1" / "model.ckpt"))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.import_meta_graph(f"{prefix}.meta").restore(session, prefix)
        x, y = (tf.compat.v1.get_default_graph().get_tensor_by_name(f"{n}:0") for n in "xy")
        made = folder / "made"
        tf.compat.v1.saved_model.simple_save(session, str(made), {"x": x}, {"y": y})
    lite = folder / "model.tflite"
    lite.write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(made)).convert())
    v1 = folder / "v1"
    kinds = {"meta": "model.ckpt.meta", "index": "model.ckpt.index", "state": "checkpoint"}
    return {"folder": v1, "lite": lite, "made": made} | {k: v1 / n for k, n in kinds.items()}


def save_xla(folder: Path) -> Path:
    """Write a SavedModel with a compiled program in it, as jax2tf does."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    @tf.function(input_signature=[tf.TensorSpec((4, 16), tf.float32)])
    def run(x):
        out = [4, 10]
        return gen_xla_ops.xla_call_module(
            [x], version=9, module=b"", Sout=[out], Tout=[tf.float32], platforms=["CPU"]
        )[0]

    module = tf.Module()
    module.run = run
    tf.saved_model.save(module, str(folder), signatures=run)
    return folder


def save_own_parts(folder: Path) -> dict[str, Path]:
    """Write models with a layer, a model class and a function that only this process knows."""
    import keras

    class Own(keras.layers.Layer):
        def call(self, x):
            return x * 2

    class OwnModel(keras.Model):
        def __init__(self, **named):
            super().__init__(**named)
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    def doubled(x):
        return x * 2

    of_layer = keras.Sequential([keras.Input((8,)), Own(), keras.layers.Dense(2)])
    of_function = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, doubled)])
    subclassed = OwnModel()
    subclassed(keras.ops.zeros((1, 8)))
    paths = {}
    for name, model in (("layer", of_layer), ("function", of_function), ("model", subclassed)):
        model.save(paths.setdefault(name, folder / f"{name}.keras"))
    of_layer.save(paths.setdefault("h5", folder / "layer.h5"))
    of_layer.export(paths.setdefault("folder", folder / "exported"), verbose=False)
    return paths
