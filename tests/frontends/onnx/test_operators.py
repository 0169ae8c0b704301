"""Every operator of a model is in the raw graph, with the shapes that ONNX says."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import ConversionError, ModelFileError
from dippm.model.frontends.frontend import MARKER_BATCHES

MARKER = MARKER_BATCHES[0]
IMAGE = [("x", ["N", 3, 8, 8])]


def test_parameters_follow_the_user_inputs(convert, make, count):
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])
    raw = convert(make([node], IMAGE, [("y", None)], weights={"w": (4, 3, 3, 3), "b": (4,)}))
    kinds = {value.name: value.kind for value in raw.values if value.name}
    assert kinds == {"x": "input", "w": "parameter", "b": "parameter"}
    assert [raw.values[i].name for i in raw.inputs] == ["x"]
    assert raw.values[raw.outputs[0]].shape == (MARKER, 4, 8, 8)
    assert count(raw)["nn.conv2d"] == 1


@pytest.mark.parametrize("automatic", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_padding_is_written_out(convert, make, automatic):
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=automatic, strides=[2, 2])
    raw = convert(make([node], IMAGE, [("y", None)], weights={"w": (4, 3, 3, 3)}))
    (conv,) = raw.operators
    assert conv.attributes["padding"] == (
        (0, 0, 1, 1) if automatic == "SAME_UPPER" else (1, 1, 0, 0)
    )
    assert raw.values[raw.outputs[0]].shape == (MARKER, 4, 4, 4)


CARRIED = [
    ("HardSwish", ["x"], {}, {}),
    ("HardSigmoid", ["x"], {"alpha": 0.25}, {"alpha": 0.25}),
    ("Elu", ["x"], {"alpha": 0.5}, {"alpha": 0.5}),
    ("Selu", ["x"], {}, {}),
    ("Mish", ["x"], {}, {}),
    ("PRelu", ["x", "slope"], {}, {}),
    ("Clip", ["x", "low", "high"], {}, {"min": 0.0, "max": 6.0}),
    ("InstanceNormalization", ["x", "scale", "scale"], {"epsilon": 0.5}, {"epsilon": 0.5}),
    ("LayerNormalization", ["x", "row"], {"axis": -1}, {"axis": -1}),
    ("Resize", ["x", "", "factors"], {"mode": "nearest"}, {"scales": (1.0, 1.0, 2.0, 2.0)}),
    ("CumSum", ["x", "axis"], {}, {"axis": 1}),
    ("Trilu", ["x"], {"upper": 0}, {"upper": 0}),
    ("Einsum", ["x"], {"equation": "nchw->nhwc"}, {"equation": "nchw->nhwc"}),
    ("Mod", ["x", "x"], {"fmod": 1}, {"fmod": 1}),
    ("DepthToSpace", ["pairs"], {"blocksize": 2}, {"blocksize": 2}),
    ("GroupNormalization", ["x", "scale", "scale"], {"num_groups": 3}, {"num_groups": 3}),
    ("TopK", ["x", "three"], {}, {"K": 3}),
    ("Gelu", ["x"], {"approximate": "tanh"}, {"approximate": "tanh"}),
]


@pytest.mark.parametrize(
    ("operator", "inputs", "given", "kept"), CARRIED, ids=lambda c: str(c)[:20]
)
def test_what_tvm_would_break_apart_is_carried_whole(convert, make, operator, inputs, given, kept):
    n_outputs = 2 if operator == "TopK" else 1
    outputs = ["y", "z"][:n_outputs]
    model = make(
        [helper.make_node(operator, inputs, outputs, **given)],
        [*IMAGE, ("pairs", ["N", 4, 8, 8])] if "pairs" in inputs else IMAGE,
        [(name, None) for name in outputs[:1]],
        weights={"slope": (3, 1, 1), "scale": (3,), "row": (8,)},
        constants={
            "low": np.float32(0), "high": np.float32(6), "axis": np.int64(1),
            "three": np.array([3]), "factors": np.array([1, 1, 2, 2], np.float32),
        },
        opset=20,
    )  # fmt: skip
    raw = convert(model)
    (only,) = raw.operators
    assert only.name == f"onnx.{operator}"
    assert {name: only.attributes[name] for name in kept} == kept


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_layer_stays_one_operator(convert, make, operator, gates):
    weights = {"w": (2, gates * 6, 5), "r": (2, gates * 6, 6), "b": (2, 2 * gates * 6)}
    node = helper.make_node(
        operator, ["x", *weights], ["y"], hidden_size=6, direction="bidirectional"
    )
    raw = convert(make([node], [("x", [7, "batch", 5])], [("y", None)], weights=weights))
    (only,) = raw.operators
    assert only.name == f"onnx.{operator}"
    assert only.attributes["hidden_size"] == 6
    assert only.attributes["direction"] == "bidirectional"
    assert only.attributes["input_names"] == "X,W,R,B"
    assert raw.values[only.outputs[0]].shape == (7, 2, MARKER, 6)


def test_sizes_computed_at_run_time_become_numbers(convert, make, count):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "axes": np.array([0]), "minus": np.array([-1])}
    raw = convert(make(nodes, IMAGE, [("y", None)], weights={"w": (192, 10)}, constants=constants))
    assert count(raw) == {"reshape": 1, "matmul": 1}
    assert raw.values[raw.outputs[0]].shape == (MARKER, 10)


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_selects_its_branch(convert, make, count, condition):
    branches = {
        f"{kind}_branch": helper.make_graph(
            [helper.make_node(operator, ["x"], ["r"])],
            kind,
            [],
            [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
        )
        for kind, operator in (("then", "Relu"), ("else", "Tanh"))
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    raw = convert(make([node], IMAGE, [("y", None)], constants={"c": np.array(condition)}))
    assert count(raw) == {"nn.relu" if condition else "tanh": 1}


@pytest.mark.parametrize(
    ("opset", "shape", "expected"),
    [(11, ("N", 3, 8), ["reshape", "nn.softmax", "reshape"]), (13, ("N", 3, 8), ["nn.softmax"])],
)
def test_softmax_before_opset_13_flattens(convert, make, opset, shape, expected):
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    raw = convert(make([node], [("x", shape)], [("y", None)], opset=opset))
    assert [operator.name for operator in raw.operators] == expected


@pytest.mark.parametrize("operator", ["GreaterOrEqual", "LessOrEqual"])
def test_comparisons_that_onnx_infers_no_shape_for(convert, make, operator):
    raw = convert(
        make([helper.make_node(operator, ["x", "row"], ["y"])], IMAGE, [("y", None)],
             weights={"row": (8,)})
    )  # fmt: skip
    result = raw.values[raw.outputs[0]]
    assert (result.shape, result.dtype) == ((MARKER, 3, 8, 8), "bool")


def test_every_use_of_an_unsupported_operator_is_counted(convert, make):
    nodes = [helper.make_node("NonZero", ["x"], [f"y{i}"]) for i in range(3)]
    with pytest.raises(ConversionError, match="3 of them"):
        convert(make(nodes, IMAGE, [("y0", None)]))


def test_data_dependent_operators_are_named(convert, make):
    node = helper.make_node("NonZero", ["x"], ["y"], name="where_it_is")
    with pytest.raises(ConversionError, match=r"NonZero.*where_it_is"):
        convert(make([node], IMAGE, [("y", None)]))


def test_an_operator_of_a_foreign_domain_is_named(convert, make):
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="f1", domain="com.example")
    with pytest.raises(ConversionError, match=r"com\.example\.Frobnicate.*f1"):
        convert(make([node], IMAGE, [("y", None)], domains=["com.example"]))


def test_a_foreign_operator_whose_shape_the_file_declares_is_carried(convert, make):
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["m"], domain="com.example"),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    model = make(nodes, [("x", [2, 3])], [("y", None)], domains=["com.example"])
    model.graph.value_info.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [2, 5]))
    raw = convert(model)
    assert [operator.name for operator in raw.operators] == ["onnx.Frobnicate", "nn.relu"]
    assert (raw.batch, raw.batch_is_symbolic) == (2, False)


def test_local_functions_are_inlined(convert, make, count):
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"],
        [helper.make_node("Relu", ["a"], ["m"]), helper.make_node("Tanh", ["m"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    model = make(
        [helper.make_node("Twice", ["x"], ["y"], domain="local")], IMAGE, [("y", None)],
        domains=["local"],
    )  # fmt: skip
    model.functions.append(function)
    assert count(convert(model)) == {"nn.relu": 1, "tanh": 1}


def test_values_of_weights_do_not_change_the_graph(convert, make):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["c", "scale"], ["y"]),
    ]
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "scale": (4, 1, 1)}

    def graph(value):
        filled = {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}
        return convert(make(nodes, IMAGE, [("y", None)], constants=filled))

    assert graph(0.0) == graph(1.0) == graph(-3.5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT16, "float16"),
     (TensorProto.DOUBLE, "float64")],
)  # fmt: skip
def test_numbers_keep_their_value_in_every_type(convert, make, kind, name):
    half = helper.make_tensor("half", kind, [], [0.5])
    model = make([helper.make_node("Mul", ["x", "half"], ["y"])], [("x", ["N", 4], kind)], [])
    model.graph.initializer.append(half)
    model.graph.output.append(helper.make_tensor_value_info("y", kind, None))
    raw = convert(model)
    assert [(v.dtype, v.scalar) for v in raw.values if v.kind == "constant"] == [(name, 0.5)]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.INT8, TensorProto.INT4])
def test_quantized_weights_are_parameters_whatever_their_values(convert, make, kind):
    def graph(values):
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "scale"], ["d"]),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ]
        constants = {"scale": np.float32(0.1)}
        model = make(nodes, [("x", ["N", 4])], [("y", None)], constants=constants, opset=21)
        model.graph.initializer.append(helper.make_tensor("w", kind, [4, 2], values))
        return convert(model)

    ones, mixed = graph([1] * 8), graph([0, 1] * 4)
    assert ones == mixed
    assert [v.shape for v in ones.values if v.kind == "parameter"] == [(4, 2)]


def test_the_bounds_of_a_range_may_be_rows_of_one_number(convert, make):
    """Runtimes take them, and ONNX's own function of AffineGrid has them."""
    bounds = {"start": [0], "limit": [6], "step": [2]}
    nodes = [
        helper.make_node("Range", ["start", "limit", "step"], ["places"]),
        helper.make_node("Gather", ["x", "places"], ["y"], axis=2),
    ]
    raw = convert(make(nodes, IMAGE, [("y", None)], constants=bounds))
    assert raw.values[raw.outputs[0]].shape == (MARKER, 3, 3, 8)


def unpooled(*sizes):
    """A pool and its unpooling, with sizes as the third input, which are complete."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node(
            "MaxUnpool", ["p", "i", *sizes], ["u"], kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Conv", ["u", "v"], ["y"]),
    ]
    if sizes == ("computed",):
        computed = [
            helper.make_node("Shape", ["x"], ["first"], start=0, end=1),
            helper.make_node("Concat", ["first", "rest"], ["computed"], axis=0),
        ]
        nodes[2:2] = computed
    return nodes


@pytest.mark.parametrize(
    ("sizes", "batch", "side"), [((), "N", 8), (("computed",), "N", 9), (("stated",), 1, 9)]
)
def test_an_unpooling_has_the_size_that_it_is_given(convert, make, sizes, batch, side):
    constants = {"rest": np.asarray([6, 9, 9]), "stated": np.asarray([1, 6, 9, 9])}
    weights = {"w": (6, 3, 3, 3), "v": (4, 6, 1, 1)}
    image = [("x", [batch, 3, 8, 8])]
    raw = convert(
        make(unpooled(*sizes), image, [("y", None)], weights=weights, constants=constants)
    )
    assert raw.values[raw.outputs[0]].shape == (MARKER, 4, side, side)


@pytest.mark.parametrize("sizes", [[6, 9, 9], [1, 5, 9, 9], [1, 6, 7, 9], [1, 6, -1, 9], [1, 6]])
def test_an_unpooling_to_less_than_its_windows_is_refused(convert, make, sizes):
    weights = {"w": (6, 3, 3, 3), "v": (4, 6, 1, 1)}
    model = make(
        unpooled("stated"), [("x", [1, 3, 8, 8])], [("y", None)],
        weights=weights, constants={"stated": np.asarray(sizes)},
    )  # fmt: skip
    with pytest.raises(ModelFileError, match="MaxUnpool"):
        convert(model)
