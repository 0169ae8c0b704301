"""What is wrong with a file or a request is said, with the next step."""

from __future__ import annotations

import json
import warnings
import zipfile

import pytest

from dippm.errors import ModelFileError, UnknownFormatError
from dippm.model.frontends import keras, registry, savedmodel
from dippm.model.graph import build
from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import read
from tests.samples import sampled

BOTH = pytest.mark.parametrize("kind", ["keras", "savedmodel"])


def refused(result):
    assert not isinstance(result, str), "the file was converted"
    return result


def rewritten(source, target, change):
    """Copy an archive with another configuration."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                config = json.loads(data)
                change(config)
                data = json.dumps(config).encode()
            new.writestr(name, data)
    return target


def test_content_decides_who_reads_a_file(files, tmp_path):
    paths = files("small")
    assert keras.accepts(paths["keras"])
    assert keras.accepts(paths["h5"])
    assert savedmodel.accepts(paths["savedmodel"])
    renamed = tmp_path / "model.bin"
    renamed.write_bytes(paths["h5"].read_bytes())
    assert keras.accepts(renamed)
    assert not savedmodel.accepts(renamed)
    assert not keras.accepts(paths["savedmodel"])
    assert not savedmodel.accepts(tmp_path)
    (tmp_path / "empty.keras").touch()
    assert not keras.accepts(tmp_path / "empty.keras")


@pytest.mark.parametrize("kind", sampled(models.KINDS, pytest.mark.nightly(part="hostile")))
def test_truncated_files(kind, files, child, tmp_path):
    source = files("small")[kind]
    if kind == "savedmodel":
        data = (source / "saved_model.pb").read_bytes()
        target, file = tmp_path / "cut", tmp_path / "cut" / "saved_model.pb"
        target.mkdir()
    else:
        data = source.read_bytes()
        target = file = tmp_path / source.name
    for length in (len(data) // 2, 64):
        file.write_bytes(data[:length])
        error, message, _ = refused(child(models.convert, target))
        assert error == "ModelFileError", message
        assert file.name in message


def with_bytes(source, target, changes):
    """Copy a file with other bytes at some places."""
    data = bytearray(source)
    for place, new in changes.items():
        data[place : place + len(new)] = new
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(
    ("change", "reason"),
    sampled(
        [
            ("a first entry of the heap that is none", "never ends|not a readable HDF5 file"),
            ("a free entry of no bytes", "never ends|not a readable HDF5 file"),
            ("another class of type", "not a readable HDF5 file|crashes"),
        ],
        pytest.mark.nightly(part="hostile"),
    ),
)
def test_hdf5_files_that_hold_up_or_crash_its_library(change, reason, tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(keras, "HDF5_CPU_S", 1)
    with h5py.File(tmp_path / "good.h5", "w") as file:
        file.attrs["model_config"] = '{"class_name": "Sequential"}'
    assert keras._read_config(tmp_path / "good.h5") == {"class_name": "Sequential"}
    good = (tmp_path / "good.h5").read_bytes()
    heap = good.index(b"GCOL")
    entry = heap + 16  # a number, the references, 4 bytes of nothing, 8 bytes of length
    free = entry + 16 + 32
    assert good[entry : entry + 2] == b"\1\0", "the text"
    assert good[free : free + 2] == b"\0\0", "what is left"
    changes = {
        "a first entry of the heap that is none": {entry: bytes(16)},
        "a free entry of no bytes": {free + 8: bytes(8)},
        "another class of type": {good.index(b"model_config\0") + 16: b"\x19\3\1\0"},
    }
    bad = with_bytes(good, tmp_path / "bad.h5", changes[change])
    with pytest.raises(ModelFileError, match=reason) as caught:
        keras._read_config(bad)
    assert caught.value.hint


def test_archives_that_cannot_be_unpacked(tmp_path):
    """A version, a compression, a password, a name: each has another error of `zipfile`."""
    with zipfile.ZipFile(tmp_path / "good.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", '{"class_name": "Sequential"}')
        archive.writestr("metadata.json", "{}")
    good = (tmp_path / "good.keras").read_bytes()
    first, last = good.index(b"PK\1\2"), good.rindex(b"PK\1\2")
    body = good.index(b"config.json") + len("config.json")
    changes = {
        "a later version": {first + 6: b"\xff"},
        "another compression": {10: b"\x63", first + 10: b"\x63"},
        "encrypted": {6: b"\1", first + 8: b"\1"},
        "a name that is no text": {last + 9: b"\x08", last + 46: b"\xff"},
        "a damaged text": {body: b"\xff\xff\xff"},
    }
    for name, change in changes.items():
        bad = with_bytes(good, tmp_path / f"{name}.keras", change)
        with pytest.raises(ModelFileError, match="not a readable Keras archive") as caught:
            keras._read_config(bad)
        assert caught.value.hint, name


@BOTH
def test_channels_first_sizes_for_a_channels_last_model(kind, files, child):
    path = files("small")[kind]
    error, message, hint = refused(child(models.convert, path, {"": (3, 16, 16)}))
    assert error == "InputShapeError"
    assert "(3, 16, 16)" in message
    assert "(16, 16, 3)" in message
    assert "channels last" in hint
    assert "16,16,3" in hint


@BOTH
def test_sizes_with_the_batch(kind, files, child):
    path = files("small")[kind]
    error, _, hint = refused(child(models.convert, path, {"": (8, 16, 16, 3)}))
    assert error == "InputShapeError"
    assert "16,16,3" in hint


@BOTH
def test_open_sizes_must_be_given(kind, files, child):
    path = files("flexible")[kind]
    error, message, hint = refused(child(models.convert, path))
    assert error == "InputShapeError"
    assert "(?, ?, ?, 3)" in message
    assert 'input="128,128,3"' in hint
    assert isinstance(child(models.convert, path, {"": (32, 48, 3)}), str)


def test_sizes_too_small_for_the_network(files, child):
    for kind in ("keras", "savedmodel"):
        path = files("flexible")[kind]
        error, message, _ = refused(child(models.convert, path, {"": (2, 2, 3)}))
        assert error == "InputShapeError", message


@BOTH
def test_several_inputs_are_named(kind, files, child):
    path = files("two_inputs")[kind]
    error, message, hint = refused(child(models.convert, path))
    assert error == "InputShapeError"
    assert "right (?, 7, 6)" in message
    assert "left=128,6" in hint
    error, message, _ = refused(child(models.convert, path, {"middle": (5, 6)}))
    assert error == "InputShapeError"
    assert "middle" in message
    assert isinstance(child(models.convert, path, {"left": (5, 6)}), str)


def test_a_fixed_batch_is_kept(files, child, tmp_path):
    from dippm.model.relax.raw_graph import RawGraph

    kept = files("fixed_batch", ("keras", "h5"))
    paths = [*kept.values(), child(models.save_module, tmp_path / "f", "fixed")]
    for path in paths:
        graph = RawGraph.from_json(child(models.convert, path))
        assert (graph.batch, graph.batch_is_symbolic) == (4, False)
        assert graph.values[graph.outputs[0]].shape == (4, 3)


def test_a_batch_baked_into_the_graph(child, tmp_path):
    path = child(models.save_module, tmp_path / "baked", "baked")
    error, message, hint = refused(child(models.convert, path))
    assert error == "InputShapeError", message
    assert "dynamic batch" in hint


def test_signatures(child, tmp_path):
    several = child(models.save_module, tmp_path / "two", "two")
    error, message, hint = refused(child(models.convert, several))
    assert error == "ModelFileError"
    assert "one, other" in message
    assert "serving_default" in hint
    none = child(models.save_module, tmp_path / "bare", "bare")
    error, message, hint = refused(child(models.convert, none))
    assert error == "ModelFileError"
    assert "no signature" in message
    assert "model.export" in hint


def test_frozen_graph(child, tmp_path):
    path = child(models.save_frozen_graph, tmp_path / "frozen.pb")
    assert savedmodel.accepts(path)
    error, message, hint = refused(child(models.convert, path))
    assert error == "ModelFileError"
    assert "frozen graph" in message
    assert "signature" in hint


def test_weights_without_architecture(files, child, tmp_path):
    with zipfile.ZipFile(files("small")["keras"]) as archive:
        archive.extract("model.weights.h5", tmp_path)
    error, message, _ = refused(child(models.convert, tmp_path / "model.weights.h5"))
    assert error == "ModelFileError"
    assert "weights without an architecture" in message


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_code_in_a_file_does_not_run(kind, child, tmp_path):
    witness = tmp_path / "ran"
    path = child(models.save_lambda, tmp_path, witness)[kind]
    error, message, hint = refused(child(models.convert, path))
    assert error == "UnsafeModelError"
    assert "Lambda" in message
    assert "trust=True" in hint
    assert not witness.exists()
    assert isinstance(child(models.convert, path, None, True), str)
    assert witness.exists()


FOREIGN = [
    ("os", "system"),
    ("pickle", "loads"),
    ("keras.utils", "system"),
    ("keras.src.utils.file_utils", "system"),
    ("keras", "utils.get_file"),
    ("keras", "saving.load_model"),
    ("keras.models", "clone_model"),
]


@pytest.mark.parametrize(
    ("module", "function"), sampled(FOREIGN, pytest.mark.nightly(part="hostile"))
)
def test_foreign_functions_are_not_imported(module, function, files, child, tmp_path):
    def change(config):
        layer = config["config"]["layers"][1]
        layer["config"]["activation"] = {
            "module": module,
            "class_name": "function",
            "config": function,
            "registered_name": "function",
        }

    path = rewritten(files("small")["keras"], tmp_path / "evil.keras", change)
    error, message, _ = refused(child(models.convert, path))
    assert error == "UnsafeModelError"
    assert f"{module}.{function}" in message


def _function(module, name, registered=None):
    return {
        "module": module,
        "class_name": "function",
        "config": name,
        "registered_name": registered or name,
    }


def _with_call(function, *, given):
    """Return a change that has an Activation call a function with a value of the file."""

    def change(config):
        first, second = config["config"]["layers"][:2]
        second.update(module="keras.layers", class_name="Activation", registered_name=None)
        second["config"] = {"name": second["config"]["name"], "activation": function}
        second["inbound_nodes"] = [{"args": [], "kwargs": {"inputs": given}}]
        del second["build_config"], first

    return change


@pytest.mark.parametrize(
    "module",
    sampled(["keras.layers", "keras.src.layers", "keras"], pytest.mark.nightly(part="hostile")),
)
def test_a_layer_is_no_function(module, files, child, tmp_path):
    """`TFSMLayer(folder)` loads a SavedModel, which runs what the folder says."""
    witness = tmp_path / "ran"
    folder = child(models.save_that_runs_when_loaded, tmp_path / "evil", witness)
    function = _function(module, "layers.TFSMLayer" if module == "keras" else "TFSMLayer")
    change = _with_call(function, given=str(folder))
    path = rewritten(files("small")["keras"], tmp_path / "evil.keras", change)
    error, message, hint = refused(child(models.convert, path))
    assert error == "UnsafeModelError"
    assert "TFSMLayer" in message
    assert "trust=True" in hint
    assert not witness.exists()
    child(models.load_saved_model, folder)
    assert witness.exists(), "the folder is harmless: this test cannot fail"


PARTS_THAT_RUN = [
    _function("keras.layers", "Lambda"),
    _function("keras.layers", "TorchModuleWrapper"),
    _function("keras.layers", "deserialize"),
    _function("keras.activations", "deserialize"),
    _function("builtins", "get"),
    _function("keras.ops", "numpy.np.load"),
    _function("keras.ops.numpy", "__builtins__"),
    _function("keras.src.ops.numpy.np", "load"),
    _function("keras.losses", "get"),
    _function("keras.saving", "load_model"),
    _function("keras.initializers", "get"),
    {"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "x"}},
    {"module": "keras.src.export.tfsm_layer", "class_name": "TFSMLayer", "config": {}},
    {"module": "keras.layers", "class_name": "FutureLayer", "config": {}},
    {"module": "keras.src.ops.numpy", "class_name": "np.load", "config": {}},
    {"module": "keras.callbacks", "class_name": "BackupAndRestore", "config": {}},
    {"module": "keras.utils", "class_name": "FeatureSpace", "config": {}},
    {"module": "tensorflow", "class_name": "Module", "config": {}},
    {"module": ["keras"], "class_name": "Dense", "config": {}},
    {"module": "keras.layers", "class_name": ["Dense"], "config": {}},
    {"module": "keras.layers", "class_name": "Dense", "registered_name": ["x"], "config": {}},
    {"class_name": "custom>TFSMLayer", "config": {}},
    {"class_name": "__typespec__", "config": [], "module": "tensorflow", "spec_name": "x"},
    {"class_name": "__tensor__", "config": {"value": 1, "dtype": "string"}},
    {"class_name": "__numpy__", "config": {"value": 1, "dtype": {"a": "O"}}},
]


def test_only_what_is_known_to_compute_is_built(files, child, tmp_path):
    for number, part in enumerate(PARTS_THAT_RUN):
        for change in (_with_call(part, given=1.0), _with_call("relu", given=part)):
            path = tmp_path / f"{number}.keras"
            path = rewritten(files("small")["keras"], path, change)
            error, message, hint = refused(child(models.convert, path))
            assert error == "UnsafeModelError", (part, error, message)
            assert "trust=True" in hint
            assert "model.export(folder)" in hint


def test_a_registered_name_is_no_way_around(files, child, tmp_path):
    part = _function("builtins", "relu", registered="keras>TFSMLayer")
    path = rewritten(files("small")["keras"], tmp_path / "a.keras", _with_call(part, given=1.0))
    error, message, hint = refused(child(models.convert, path))
    assert error == "ConversionError"
    assert "keras>TFSMLayer" in message
    assert "model.export" in hint


def test_a_layer_is_called_with_tensors_and_settings_alone(files, child, tmp_path):
    texts = ["gs://bucket/model", "/etc/passwd", "https://example.org", "relu", "a" * 200_000]
    for text in texts:
        change = _with_call("relu", given=[{"x": text}])
        path = rewritten(files("small")["keras"], tmp_path / "text.keras", change)
        error, message, _ = refused(child(models.convert, path))
        assert error == "UnsafeModelError", message
        assert text[:60] in message
        assert len(message) < 1000


@pytest.mark.nightly(part="hostile")
def test_hdf5_files_name_layers_alone(child, tmp_path):
    """Without modules, Keras looks names up among all that the module of its layers holds."""
    witness = tmp_path / "ran"
    folder = child(models.save_that_runs_when_loaded, tmp_path / "evil", witness)
    source = child(models.hdf5_configuration, "small", tmp_path)
    names = ["TFSMLayer", "deserialize", "get", "serialize", "keras_export", "Lambda", "core"]
    for name in names:
        for part in (
            {"class_name": name, "config": {"filepath": str(folder), "name": "x"}},
            {"class_name": "Activation", "config": {"name": "x", "activation": name}},
            {
                "class_name": "Activation",
                "config": {"name": "x", "activation": _function("keras.layers", name)},
            },
        ):
            config = json.loads(source)
            layer = config["config"]["layers"][1]
            part["config"]["name"] = layer["config"]["name"]
            layer.update(part)
            path = tmp_path / f"{name}.h5"
            child(models.save_hdf5_configuration, path, json.dumps(config).encode())
            error, message, hint = refused(child(models.convert, path))
            assert error in ("UnsafeModelError", "ConversionError"), message
            assert hint
    assert not witness.exists()


def test_a_key_or_a_member_that_stands_twice_is_refused(files, child, tmp_path):
    source = files("small")["keras"]
    twice = tmp_path / "twice.keras"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(twice, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                assert b'"units":' in data
                data = data.replace(b'"units":', b'"units": 7, "units":', 1)
            new.writestr(name, data)
    error, message, _ = refused(child(models.convert, twice))
    assert error == "ModelFileError"
    assert "twice" in message
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(twice, "w") as new:
        for name in (*old.namelist(), "config.json"):
            with warnings.catch_warnings(action="ignore"):
                new.writestr(name, old.read(name))
    error, message, _ = refused(child(models.convert, twice))
    assert error == "ModelFileError"
    assert "two configurations" in message


def test_losses_and_optimizers_are_not_built(files, child, tmp_path):
    """A compiled model is read, whatever its own loss was; nothing here trains."""

    def change(config):
        loss = {"module": "os", "class_name": "function", "config": "system"}
        config["compile_config"] = {"optimizer": "adam", "loss": loss}

    path = rewritten(files("small")["keras"], tmp_path / "compiled.keras", change)
    assert child(models.convert, path) == child(models.convert, files("small")["keras"])


def test_every_layer_and_operation_of_keras_is_on_a_list_or_known_to_run_code(child):
    """A Keras that has more needs a decision: read what is new, then list it or leave it out."""
    assert child(models.unlisted_parts) == []


def test_pickled_bytecode_in_a_plain_layer_does_not_run(files, child, tmp_path):
    witness = tmp_path / "ran"
    code = child(models.bytecode_that_writes, witness)

    def change(config):
        layer = config["config"]["layers"][1]
        layer["config"]["activation"] = {"class_name": "__lambda__", "config": {"value": code}}

    path = rewritten(files("small")["keras"], tmp_path / "evil.keras", change)
    error, message, hint = refused(child(models.convert, path))
    assert error == "UnsafeModelError"
    assert "__lambda__" in message
    assert "trust=True" in hint
    assert not witness.exists()
    child(models.convert, path, None, True)
    assert witness.exists()


def test_own_classes_do_not_run(child, tmp_path):
    witness = tmp_path / "ran"
    for path in child(models.save_own_class, tmp_path, witness):
        error, message, hint = refused(child(models.convert, path))
        assert error in ("ConversionError", "UnsafeModelError")
        assert "Own" in message
        assert "SavedModel" in hint or "model.export" in hint
    assert not witness.exists()


def test_files_are_not_read_for_a_configuration(child, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("1\n2\n3\n")
    path = child(models.save_lookup, tmp_path / "lookup.keras")

    def change(config):
        layer = config["config"]["layers"][1]
        layer["config"]["vocabulary"] = str(secret)

    path = rewritten(path, tmp_path / "evil.keras", change)
    error, message, _ = refused(child(models.convert, path))
    assert error in ("ConversionError", "UnsafeModelError"), message
    assert "vocabulary" in message


@pytest.mark.parametrize(
    "configuration",
    sampled(
        [b"not JSON", b"[]", b"{}", b"[" * 100_000, b'"text"'], pytest.mark.nightly(part="hostile")
    ),
    ids=len,
)
def test_damaged_configurations_have_a_next_step(configuration, files, child, tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(files("small")["keras"]) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, configuration if name == "config.json" else old.read(name))
    error, _, hint = refused(child(models.convert, path))
    assert error == "ModelFileError"
    assert hint
    stored = child(models.save_hdf5_configuration, tmp_path / "model.h5", configuration)
    error, _, hint = refused(child(models.convert, stored))
    assert error == "ModelFileError"
    assert hint


def test_unknown_classes_are_named(files, child, tmp_path):
    def change(config):
        layer = config["config"]["layers"][1]
        layer.update(class_name="Mystery", module=None, registered_name="custom>Mystery")

    path = rewritten(files("small")["keras"], tmp_path / "own.keras", change)
    error, message, hint = refused(child(models.convert, path))
    assert error == "ConversionError"
    assert "Mystery" in message
    assert "model.export" in hint


def test_files_without_a_signature_are_named_and_their_way_out_works(child, tmp_path):
    written = child(models.save_unread, tmp_path)
    words = {
        "folder": "TensorFlow 1",
        "meta": "TensorFlow 1",
        "index": "a checkpoint of TensorFlow",
        "state": "a checkpoint of TensorFlow",
        "lite": "a TensorFlow Lite model",
    }
    for kind, what in words.items():
        with pytest.raises(UnknownFormatError, match=what) as caught:
            registry.find(written[kind])
        assert "save" in caught.value.hint or "tf2onnx" in caught.value.hint
    assert build(read(child(models.convert, written["made"]))).at_batch(3).macs == 3 * 16 * 4


def test_a_compiled_program_is_not_one_cheap_operator(child, tmp_path):
    folder = child(models.save_xla, tmp_path / "xla")
    error, message, hint = refused(child(models.convert, folder))
    assert error == "ConversionError"
    assert "XlaCallModule" in message
    assert "ONNX" in hint


@pytest.mark.parametrize("trust", [False, True])
def test_own_parts_say_the_step_that_needs_none_of_them(child, tmp_path, trust):
    paths = child(models.save_own_parts, tmp_path)
    names = {"layer": "Own", "h5": "Own", "model": "OwnModel"} | (
        {"function": "doubled"} if trust else {}
    )
    for kind, name in names.items():
        _, message, hint = refused(child(models.convert, paths[kind], None, trust))
        assert name in message
        assert len(message) < 200 + len(str(paths[kind]))
        assert "Full object config" not in message
        assert hint.startswith(("Call model.export(", "Export it "))  # the step comes first
    assert build(read(child(models.convert, paths["folder"]))).at_batch(2).macs == 2 * 8 * 2
