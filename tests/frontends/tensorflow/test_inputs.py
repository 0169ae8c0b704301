"""What Keras models take: names, dictionaries, nests, numbers, and batches in other places."""

from __future__ import annotations

import json
import zipfile

import pytest

from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import histogram, macs, read

BOTH = pytest.mark.parametrize("kind", ["keras", "savedmodel"])


def inputs_of(graph):
    values = [graph.values[i] for i in graph.inputs]
    return {value.name: (value.shape[1:], value.dtype) for value in values}


@BOTH
@pytest.mark.parametrize("name", ["dict_inputs", "nested_inputs"])
def test_structures_of_inputs(name, kind, converted):
    graph = converted(name, kind)
    assert inputs_of(graph) == {
        "ids": ((12,), "int32"),
        "image": ((6, 16), "float32"),
        "flag": ((), "bool"),
    }
    assert macs(graph) == 12 * 16 * 3 + 6 * 16 * 5


@pytest.mark.parametrize("kind", models.KINDS)
def test_operators_of_the_same_name_as_layers(kind, converted):
    """Keras itself does not load the HDF5 file of such a model."""
    graph = converted("operators", kind)
    assert macs(graph) == 3 * 64
    counts = histogram(graph)
    assert (counts["multiply"], counts["subtract"]) == (2, 1)
    assert counts["add"] == 3 + 3  # three are biases


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_layers_of_keras_own_applications(kind, converted):
    """Keras itself does not load the HDF5 file of such a model."""
    graph = converted("own_layers", kind)
    assert macs(graph) == 2 * 64
    assert histogram(graph)["multiply"] == 2


@BOTH
def test_sizes_of_structures_by_name(kind, files, child):
    path = files("dict_inputs")[kind]
    graph = read(child(models.convert, path, "image=6,16;ids=12"))
    assert macs(graph) == 12 * 16 * 3 + 6 * 16 * 5
    error, message, _ = child(models.convert, path, "image=7,16")
    assert error == "InputShapeError"
    assert "image" in message


@pytest.mark.parametrize("given", ["16,N,3", "16,16,N,3", "fixed:4,16,16,3", "value:3"])
def test_keras_models_have_their_batch_first(given, files, child):
    for kind in ("keras", "h5"):
        answer = child(models.convert, files("small")[kind], given)
        if given.startswith("fixed"):
            graph = read(answer)
            assert (graph.batch, graph.batch_is_symbolic) == (1, False)
            assert graph.values[graph.inputs[0]].shape == (4, 16, 16, 3)
            continue
        error, message, hint = answer
        assert error == "InputShapeError", message
        assert hint


@pytest.mark.parametrize("given", [None, "8", "N,8"])
def test_models_that_do_not_say_what_they_take(given, child, tmp_path):
    path = child(models.save_unbuilt, tmp_path / "unbuilt.keras")
    answer = child(models.convert, path, given)
    if given is None:
        error, _, hint = answer
        assert error == "InputShapeError"
        assert "input=" in hint
        return
    graph = read(answer)
    assert graph.values[graph.outputs[0]].shape == (graph.batch, 3)
    assert macs(graph) == 24


def test_names_that_tensorflow_does_not_allow(files, child, tmp_path):
    """Other backends of Keras allow any name, and write the same files."""
    path = tmp_path / "odd.keras"
    with zipfile.ZipFile(files("small")["keras"]) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == "config.json":
                layer = json.loads(text)["config"]["layers"][1]["config"]["name"]
                text = text.replace(f'"{layer}"'.encode(), b'"my layer (1)"')
            new.writestr(name, text)
    graph = read(child(models.convert, path))
    assert "my layer (1)" in {operator.path for operator in graph.operators}
