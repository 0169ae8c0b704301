"""Damaged files give typed errors, and files that lack their weights give none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, external_data_helper, helper, numpy_helper

import dippm
from dippm.errors import ConversionError, ModelFileError, ModelNotFoundError
from dippm.model.frontends import onnx as route
from dippm.model.frontends.frontend import InputSpec
from dippm.model.relax.onnx.wire import looks_like_onnx, read_without_weights, without_weights

EMPTY = InputSpec({})


def small_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "scale": np.ones(4, np.float32),
        "sizes": np.array([0, -1]),
        "m": rng.standard_normal((144, 5)).astype(np.float32),
        "six": np.float32(6),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], name="conv"),
        helper.make_node("BatchNormalization", ["c", *["scale"] * 4], ["n"]),
        helper.make_node("Clip", ["n", "", "six"], ["r"]),
        helper.make_node("Reshape", ["r", "sizes"], ["f"]),
        helper.make_node("Gemm", ["f", "m"], ["g"], alpha=0.5),
        helper.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [value("y", TensorProto.FLOAT, ["N", 5])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


WHOLE = small_model().SerializeToString()


def convert_or_typed_error(data: bytes) -> None:
    try:
        outcome = route.load_bytes(without_weights(data), EMPTY)
    except ModelFileError as error:
        outcome = error
    except ValueError as error:  # what `load` turns into a ModelFileError
        outcome = route.damaged_error("model", error)
    if isinstance(outcome, ModelFileError):
        assert outcome.message
        assert outcome.hint
    else:
        assert outcome.operators


@given(
    flips=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6
    )
)
@settings(
    max_examples=int(os.environ.get("DIPPM_FUZZ_EXAMPLES", "300")),
    suppress_health_check=list(HealthCheck),
)
def test_flipped_bytes_give_only_our_errors(flips):
    data = bytearray(WHOLE)
    for position, byte in flips:
        data[position] = byte
    convert_or_typed_error(bytes(data))


@given(
    st.one_of(
        st.integers(0, len(WHOLE)).map(lambda n: WHOLE[:n]),
        st.tuples(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE))).map(
            lambda cut: WHOLE[: min(cut)] + WHOLE[max(cut) :]
        ),
        st.binary(max_size=200),
        st.binary(max_size=60).map(lambda tail: WHOLE[:200] + tail),
    )
)
@example(b"")
@settings(
    max_examples=int(os.environ.get("DIPPM_FUZZ_EXAMPLES", "300")),
    suppress_health_check=list(HealthCheck),
)
def test_cut_and_random_bytes_give_only_our_errors(data):
    convert_or_typed_error(data)
    assert looks_like_onnx(data) in (True, False)


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.9, 0.999])
def test_a_cut_file_says_so(tmp_path, keep):
    path = tmp_path / "cut.onnx"
    path.write_bytes(WHOLE[: int(len(WHOLE) * keep)])
    with pytest.raises(ModelFileError, match=r"cut\.onnx: not a complete ONNX model") as caught:
        route.load(path, EMPTY)
    assert "again" in caught.value.hint


def test_a_cut_file_is_still_known_to_be_onnx(tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(WHOLE[: len(WHOLE) // 2])
    assert route.accepts(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04" + bytes(100),
        b"{}",
        b"\x89HDF\r\n\x1a\n",
        b"\x08\x01\x12\x03abc",
        bytes(64),
    ],
)
def test_other_content_is_not_accepted(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert not route.accepts(path)


def test_content_counts_rather_than_the_suffix(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(WHOLE)
    assert route.accepts(path)
    assert not route.accepts(tmp_path)
    assert not route.accepts(tmp_path / "absent.onnx")


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"absent\.onnx"):
        route.load(tmp_path / "absent.onnx", EMPTY)


def test_a_graph_without_operators():
    model = small_model()
    del model.graph.node[:]
    with pytest.raises(ModelFileError, match="no operators"):
        route.load_bytes(model.SerializeToString(), EMPTY)


def test_a_graph_that_reads_what_nothing_writes():
    model = small_model()
    model.graph.node[1].input[0] = "ghost"
    with pytest.raises(ModelFileError, match="ghost"):
        route.load_bytes(model.SerializeToString(), EMPTY)


def with_external_data(folder: Path, *, threshold: int) -> Path:
    model = small_model()
    external_data_helper.convert_model_to_external_data(
        model, location="weights.bin", size_threshold=threshold
    )
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_external_weights_may_be_absent(tmp_path):
    expected = route.load_bytes(WHOLE, EMPTY)
    path = with_external_data(tmp_path, threshold=1024)
    assert route.load(path, EMPTY) == expected
    (tmp_path / "weights.bin").unlink()
    assert route.load(path, EMPTY) == expected


def test_external_sizes_may_not(tmp_path):
    path = with_external_data(tmp_path, threshold=0)
    assert route.load(path, EMPTY) == route.load_bytes(WHOLE, EMPTY)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ConversionError, match="'sizes'"):
        route.load(path, EMPTY)


def test_external_data_outside_of_the_folder_is_not_read(tmp_path):
    (tmp_path / "secret.bin").write_bytes(np.array([0, -1]).tobytes())
    inside = tmp_path / "models"
    inside.mkdir()
    model = small_model()
    for tensor in model.graph.initializer:
        if tensor.name == "sizes":
            external_data_helper.set_external_data(tensor, "../secret.bin")
            tensor.ClearField("raw_data")
    (inside / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConversionError, match="'sizes'"):
        route.load(inside / "model.onnx", EMPTY)


def test_large_weights_are_left_on_the_disk():
    model = small_model()
    big = numpy_helper.from_array(np.ones((512, 512), np.float32), "big")
    model.graph.initializer.append(big)
    node = helper.make_node("Constant", [], ["k"], value=big)
    model.graph.node.insert(0, node)
    data = model.SerializeToString()
    kept = without_weights(data)
    assert len(data) > 2 * big.ByteSize()
    assert len(kept) < len(WHOLE) + 2000
    read = onnx.ModelProto.FromString(kept)
    assert read.graph.initializer[-1].dims == [512, 512]
    assert without_weights(WHOLE) == WHOLE


def _function(name, callees):
    names = ["a", *(f"m{i}" for i in range(len(callees) - 1)), "b"]
    domains = ["" if callee == "Relu" else "local" for callee in callees]
    nodes = [
        helper.make_node(callee, [names[i]], [names[i + 1]], domain=domains[i])
        for i, callee in enumerate(callees)
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, opsets)


def _with_functions(make, functions, called):
    node = helper.make_node(called, ["x"], ["y"], domain="local")
    model = make([node], [("x", ["N", 8])], [("y", None)], domains=["local"])
    model.functions.extend(functions)
    return model


def test_functions_that_grow_without_bound_are_refused_at_once(convert, make):
    doubling = [_function(f"F{i + 1}", [f"F{i}", f"F{i}"]) for i in range(60)]
    model = _with_functions(make, [_function("F0", ["Relu"]), *doubling], "F60")
    with pytest.raises(ConversionError, match="written out"):
        convert(model)


@pytest.mark.parametrize("callees", [["F0"], ["F1"]])
def test_functions_that_call_themselves_are_refused(convert, make, callees):
    functions = [_function("F0", callees), _function("F1", ["F0"])]
    with pytest.raises(ConversionError, match="calls itself"):
        convert(_with_functions(make, functions, "F0"))


def test_functions_in_functions_are_inlined(convert, make, count):
    depth = 90  # newer versions of onnx refuse more than a hundred
    chain = [_function(f"F{i + 1}", [f"F{i}"]) for i in range(depth)]
    model = _with_functions(make, [_function("F0", ["Relu", "Relu"]), *chain], f"F{depth}")
    assert count(convert(model)) == {"nn.relu": 2}


def test_what_is_wrong_inside_of_a_damaged_file_is_said(tmp_path):
    """The file is mapped, and an error deep in it holds parts of the map while it is raised."""
    path = tmp_path / "damaged.onnx"
    weight = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    whole = helper.make_model(graph).SerializeToString()
    refused = set()
    for place in [*range(len(whole) - 64 * 64 * 4 + 40), *range(len(whole) - 60, len(whole))]:
        for new in (b"\xff" * 10, b"\x00", b"\x07"):
            path.write_bytes(whole[:place] + new + whole[place + len(new) :])
            route.accepts(path)
            try:
                read_without_weights(path)
            except ValueError as error:  # and nothing else: a BufferError before
                refused.add(str(error))
    assert {"not a protobuf message", "the file is cut short"} <= refused
    path.write_bytes(whole.replace(b"\x08\x40\x08\x40", b"\x08\x40\x0f\x40"))
    with pytest.raises(ModelFileError) as error:
        dippm.predict(path, device="A100")
    assert "not a protobuf message" in error.value.message
    assert "copy or export it again" in error.value.hint
