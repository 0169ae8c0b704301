"""One architecture, one graph, whichever framework it comes from.

The twins in `twins/` are written alike in each framework. All routes must agree on the operators
that compute and on their MACs; batch norms that an exporter folded away are the one difference
allowed. Batch norms are not among the operators compared here for that reason, nor are views and
copies: they belong to the layout that a framework chose.

The twins that every route converts are small, because it is their layers that must agree. Networks
of the published sizes are read in `onnx/test_exports.py`, `tensorflow/test_models.py` and
`paddle/test_paddle.py`, and below.

Differences that are real, so that the twins or the comparison leave them out:

- Keras `LSTM` has one bias for each gate, torch and Paddle have two: no operator, other bytes.
- Keras pads with an explicit layer before a strided max pool; torch and Paddle pad in the pool.
- Keras flattens images as height, width, channels; the first dense layer sees another order.
- Keras DenseNet121 of the zoo ends in a softmax; those of torchvision and Paddle do not.
- Keras ResNet50 of the zoo strides in its first 1 × 1 convolution and gives all a bias.
- Keras EfficientNet starts with a rescaling and a normalisation of the image.

What exporters spell in steps is one call in PyTorch's modes and one operator of an engine, so that
kernels agree as well. Norms that an exporter folded away launch none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from dippm.devices import find
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions, Mode
from dippm.model.frontends import load
from dippm.model.graph import ModelGraph, build
from dippm.model.graph.operators import operator
from tests.frontends.twins.sizes import INPUTS
from tests.frontends.twins.writers import Writers

COMPARED = ("compute", "recurrent", "pool", "activation")
CNNS = ("resnet", "mobilenet", "densenet", "vgg")
TWINS = ("encoder", "lstm", *CNNS)
ROUTES = [
    "onnx-old",
    "onnx-new",
    pytest.param("keras", marks=pytest.mark.tensorflow),
    pytest.param("savedmodel", marks=pytest.mark.tensorflow),
    pytest.param("paddle", marks=pytest.mark.paddle),
]
FURTHER = pytest.mark.nightly(part="frontends")
SAMPLE = ("encoder", "mobilenet")
"""Twins that every route converts in `make test`: attention and convolutions."""
WHERE_WRITTEN = ("savedmodel", "paddle")
"""Routes that convert the sample where it was written, and the further twins in a worker."""


def twins(*names: str) -> list[Any]:
    """Return names of twins as parameters, those beside the sample for the night."""
    return [name if name in SAMPLE else pytest.param(name, marks=FURTHER) for name in names]


ENGINE = Conditions(device=find("T4"), precision="fp16", runtime="tensorrt", timer="kernel")
GMACS = {"resnet50": 4.089, "densenet121": 2.834, "vgg16": 15.470}

Convert = Callable[..., ModelGraph]


def input_shape(route: str, name: str) -> tuple[int, ...]:
    shape = INPUTS[name.removeprefix("zoo_")]
    channels_last = route in ("keras", "savedmodel") and len(shape) == 3
    return (*shape[1:], shape[0]) if channels_last else shape


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory, writers: Writers) -> Convert:
    """Return what returns the graph of a twin by a route, at batch 1; each is made once."""
    made: dict[tuple[str, str, str], ModelGraph] = {}

    def graph(route: str, name: str, values: str = "random") -> ModelGraph:
        key = (route, name, values)
        if key not in made:
            folder = tmp_path_factory.mktemp("twin")
            if route == "pytorch":
                from tests.frontends.twins.torch_twins import BUILDERS

                source = BUILDERS[name]().eval()
            else:
                source = writers.write(folder, route, name, values)
            shape = input_shape(route, name)
            if route in WHERE_WRITTEN and name in SAMPLE:
                raw = writers.read(route, source, shape)
            else:
                raw = load(source, shape, timeout_s=400, cache=False)
            made[key] = build(raw).at_batch(1)
            for file in folder.rglob("*"):
                if file.is_file():
                    file.unlink()
        return made[key]

    return graph


def skeleton(graph: ModelGraph) -> dict[str, int]:
    """Return the histogram of the operators that compute."""
    return {
        op: count
        for op, count in sorted(graph.histogram().items())
        if operator(op).category in COMPARED or op == "add"
    }


def weight_bytes(graph: ModelGraph) -> int:
    """Return the bytes of all matrices and kernels that operators read."""
    return sum(node.param_bytes for node in graph.nodes)


@pytest.mark.parametrize("name", twins(*TWINS))
@pytest.mark.parametrize("route", ROUTES)
def test_twins_agree_with_pytorch(convert: Convert, route: str, name: str):
    expected, found = convert("pytorch", name), convert(route, name)
    assert skeleton(found) == skeleton(expected)
    assert found.macs == expected.macs
    assert weight_bytes(found) == weight_bytes(expected)
    assert not found.unknown_ops


@pytest.mark.parametrize("name", twins(*CNNS))
@pytest.mark.parametrize("route", [*ROUTES[:2], ROUTES[-1]])
def test_channels_first_routes_give_equal_nodes_and_edges(convert: Convert, route: str, name: str):
    expected, found = convert("pytorch", name), convert(route, name)
    keep = [n for n in found.nodes if n.op != "batch_norm"]
    assert keep == [n for n in expected.nodes if n.op != "batch_norm"]
    if len(found.nodes) == len(expected.nodes):
        assert found.edges == expected.edges


@pytest.mark.parametrize("name", twins("encoder", *CNNS))
@pytest.mark.parametrize("route", ROUTES)
def test_an_engine_runs_the_same_kernels_whichever_framework(
    convert: Convert, route: str, name: str
):
    """What exporters spell in steps, an engine takes as what it is: see `engine_kernels`."""
    answers = [
        pretrained.load().predictor.predict(convert(one, name), ENGINE)
        for one in ("pytorch", route)
    ]
    expected, found = (sum(row.kernels for row in one.operators) for one in answers)
    # Before a pooling TensorFlow pads in passes of its own, and its VGG has one copy less.
    is_tensorflow = route in ("keras", "savedmodel")
    assert abs(found - expected) <= (2 if is_tensorflow else 0)
    expected_ms, found_ms = (one.values["latency_ms"].value for one in answers)
    # It is held to compiled PyTorch, which runs the encoder as its exporter spells it.
    steps = 0.1 if is_tensorflow else 0.02
    assert found_ms == pytest.approx(expected_ms, rel=steps)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("route", ROUTES)
def test_pytorch_takes_the_same_time_whichever_framework(convert: Convert, route: str, mode: Mode):
    predictor = pretrained.load().predictor
    names = ("encoder", "mobilenet") if not route.startswith("onnx") else ("encoder",)
    for name, batch in product(names, (1, 256)):
        asked = Conditions(device=find("A100-40GB"), batch=batch, precision="fp16", mode=mode)
        expected, found = (
            predictor.predict(convert(one, name), asked).values["latency_ms"].value
            for one in ("pytorch", route)
        )
        assert found == pytest.approx(expected, rel=0.06 if name == "mobilenet" else 0.01)


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("name", sorted(GMACS))
def test_twins_cost_what_the_papers_say(convert: Convert, name: str):
    assert convert("pytorch", name).macs / 1e9 == pytest.approx(GMACS[name], rel=0.01)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("values", ["zeros", pytest.param("ones", marks=FURTHER)])
@pytest.mark.parametrize(
    "name", ["mobilenet", *(pytest.param(n, marks=FURTHER) for n in ("lstm", "encoder"))]
)
def test_weight_values_leave_no_trace(convert: Convert, route: str, name: str, values: str):
    expected, found = convert(route, name), convert(route, name, values)
    assert found.nodes == expected.nodes
    assert found.edges == expected.edges


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("route", ROUTES[2:])
def test_densenets_of_the_zoos_agree_but_for_the_softmax(convert: Convert, route: str):
    expected, found = convert("pytorch", "densenet121"), convert(route, "zoo_densenet121")
    operators = skeleton(found)
    if route in ("keras", "savedmodel"):
        assert operators.pop("softmax") == 1
    assert operators == skeleton(expected)
    assert found.macs == expected.macs
    assert weight_bytes(found) == weight_bytes(expected)
