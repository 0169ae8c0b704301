"""What is wrong with a file or a request is said, with the next step."""

from __future__ import annotations

import json
import zipfile

import pytest

from dippm.frontends import keras, savedmodel
from tests.frontends.tensorflow import models

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


@pytest.mark.parametrize("kind", models.KINDS)
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
    from dippm.relax.raw_graph import RawGraph

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


@pytest.mark.parametrize(("module", "function"), FOREIGN)
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
    "configuration", [b"not JSON", b"[]", b"{}", b"[" * 100_000, b'"text"'], ids=len
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
