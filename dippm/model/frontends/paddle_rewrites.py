"""Paddle programs as Paddle2ONNX takes them: rewritten operators, and the layers of all of them.

Operators on which Paddle2ONNX would fail or end its process are replaced by an equivalent that it
exports; others are refused by name. To add one: a function on an operator of the program, called in
`rewrite`, or a row in `_REFUSED`.

Paddle records the classes of the layers around an operator: "/Sequential_1/Conv2D/". Paddle2ONNX
numbers the operators of a kind: the result of the second convolution is "p2o.pd_op.conv2d.1.0".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dippm.errors import ConversionError
from dippm.model.frontends.containers import objects_in

if TYPE_CHECKING:
    import onnx

Operator = dict[str, Any]
_INSTANCE = "instance_norm"
_BUILT_IN = ("data", "fetch", "feed", "if", "while", "shadow_output", "yield")
_OTHER_NAMES = {
    "add": "elementwise_add", "subtract": "elementwise_sub", "multiply": "elementwise_mul",
    "divide": "elementwise_div", "remainder": "elementwise_mod", "minimum": "elementwise_min",
    "maximum": "elementwise_max", "floor_divide": "elementwise_floordiv", "min": "reduce_min",
    "max": "reduce_max", "mean": "reduce_mean", "sum": "reduce_sum", "prod": "reduce_prod",
    "any": "reduce_any", "all": "reduce_all", "matmul": "matmul_v2", "topk": "top_k_v2",
    "expand": "expand_v2", "flatten": "flatten_contiguous_range", "unsqueeze": "unsqueeze2",
    "arange": "range", "argmax": "arg_max", "argmin": "arg_min", "numel": "size",
    "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "grid_sample": "grid_sampler",
    "nonzero": "where_index", "repeat_interleave_with_tensor_index": "repeat_interleave",
}  # fmt: skip
"""Names of Paddle 3 operators in Paddle2ONNX's own list, where they differ."""
_NO_WAY = (
    "Leave it out of what is saved, or write it with other operators; a model in PyTorch with the "
    "same layers can be read as well."
)
_REFUSED = {
    "nms": (
        "paddle.vision.ops.nms",
        "Save the model without the selection of boxes: its layers are what costs.",
    ),
    "deformable_conv": (
        "DeformConv2D",
        "A paddle.nn.Conv2D of the same sizes in its place has the same multiplications, but moves "
        "less memory.",
    ),
}
_PLAIN_RNN = (
    "Use paddle.nn.LSTM or GRU, or write the steps out with paddle.nn.SimpleRNNCell in a loop over "
    "range(steps), and save the model again."
)


def rewrite(document: Mapping[str, Any], name: str, known: Collection[str] = ()) -> None:
    """Rewrite a program in place with operators that Paddle2ONNX exports.

    Args:
        document: a program of Paddle 3.
        name: name of the program in errors.
        known: the operators that Paddle2ONNX exports; empty if it does not say.

    Raises:
        ConversionError: if an operator cannot be exported, naming it and its layer.
    """
    operators = list(_operators(document["program"]))
    results = [(value, rank, one) for one in operators for value, rank in _results(one)]
    ranks = {value: rank for value, rank, _ in results}
    makers = {value: one for value, _, one in results}
    for operator in operators:
        dialect, _, kind = str(operator.get("#")).partition(".")
        _check(kind, operator, name)
        if known and dialect == "1" and not _is_known(kind, known):
            raise _refusal(kind, operator, name, _NO_WAY)
        if kind.endswith("_interp"):
            _scale_in_single_precision(operator)
        elif kind in ("conv2d", "conv3d", "depthwise_conv2d"):
            _drop_dilation(operator)
        elif kind == "mean":
            _over_axes(makers.get(_input(operator, 1)), ranks.get(_input(operator, 0), 0))
        elif kind == "slice":
            _keep_axes(operator, ranks)
        elif kind == "group_norm" and ranks.get(_input(operator, 0), 4) != 4:
            _as_instances(operator)


def name_groups(model: onnx.ModelProto) -> None:
    """Restore group norms from the instance norms that replaced them, in place."""
    from onnx import helper

    stack = list(model.graph.node)
    while stack:
        node = stack.pop()
        for attribute in node.attribute:
            stack.extend(attribute.g.node)
            is_marked = attribute.name == "epsilon" and attribute.f < 0
            if is_marked and node.op_type == "InstanceNormalization":
                node.op_type = "GroupNormalization"
                count = round(-attribute.f)
                attribute.f = 1e-5
                node.attribute.append(helper.make_attribute("num_groups", count))
                break


def _operators(program: Any) -> Iterator[Operator]:
    """Yield the operators of all blocks of a program."""
    for item in objects_in(program):
        operators = item.get("ops")
        if isinstance(operators, list):
            yield from (one for one in operators if isinstance(one, dict))


def _results(operator: Operator) -> Iterator[tuple[int, int]]:
    """Yield the results of an operator as (value, rank)."""
    results: Any = operator.get("O")
    for result in results if isinstance(results, list) else [results]:
        try:
            yield int(result["%"]), len(result["TT"]["D"][1])
        except (LookupError, TypeError, ValueError):
            continue


def _input(operator: Operator, position: int) -> int:
    try:
        return int(operator["I"][position]["%"])
    except (LookupError, TypeError, ValueError):
        return -1


def _attribute(operator: Operator, name: str) -> dict[str, Any]:
    """Return the value of an attribute, as {"#": type, "D": data}; empty if it has none."""
    for entry in operator.get("A", ()):
        if isinstance(entry, dict) and entry.get("N") == name and isinstance(entry.get("AT"), dict):
            value: dict[str, Any] = entry["AT"]
            return value
    return {}


def _items(operator: Operator, name: str) -> list[dict[str, Any]]:
    items = _attribute(operator, name).get("D")
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []


def _check(kind: str, operator: Operator, name: str) -> None:
    if kind in _REFUSED:
        what, hint = _REFUSED[kind]
        raise _refusal(what, operator, name, hint)
    mode = _attribute(operator, "mode").get("D") if kind == "rnn" else None
    if isinstance(mode, str) and mode.startswith("RNN"):
        raise _refusal("SimpleRNN", operator, name, _PLAIN_RNN)


def _is_known(kind: str, known: Collection[str]) -> bool:
    plain = kind.rstrip("_")  # the in-place variants
    return bool({kind, plain, _OTHER_NAMES.get(plain, plain)} & set(known)) or plain in _BUILT_IN


def _refusal(what: str, operator: Operator, name: str, hint: str) -> ConversionError:
    layers = _attribute(operator, "struct_name").get("D")
    at = f" (in {layers.strip('/')})" if isinstance(layers, str) and layers.strip("/") else ""
    return ConversionError(f"{name}: Paddle2ONNX cannot export {what}{at}", hint)


def _scale_in_single_precision(operator: Operator) -> None:
    """Store the factors of a resize as single-precision numbers, the only ones that are read."""
    for item in _items(operator, "scale"):
        if str(item.get("#")) in ("0.a_f64", "0.a_i32", "0.a_i64"):
            item["#"], item["D"] = "0.a_f32", float(item["D"])


def _drop_dilation(operator: Operator) -> None:
    """Drop the dilation under padding "SAME", where Paddle itself ignores it."""
    if _attribute(operator, "padding_algorithm").get("D") == "SAME":
        for item in _items(operator, "dilations"):
            item["D"] = 1


def _over_axes(axes: Operator | None, rank: int) -> None:
    """Write out the axes of a mean over all axes, which Paddle stores as an empty list."""
    if axes is None or not str(axes.get("#")).endswith(".full_int_array"):
        return
    value = _attribute(axes, "value")
    if value.get("D") == []:
        value["D"] = [{"#": "0.a_i64", "D": axis} for axis in range(rank)]
        axes["O"][0]["TT"]["D"][1] = [rank]


def _keep_axes(operator: Operator, ranks: Mapping[int, int]) -> None:
    """Keep as many axes of a slice as its result has.

    Paddle before 2.5 had no tensors without axes: a slice that drops its only axis kept it.
    """
    dropped, source = _items(operator, "decrease_axis"), ranks.get(_input(operator, 0))
    for _, rank in _results(operator):
        if dropped and source is not None:
            _attribute(operator, "decrease_axis")["D"] = dropped[: max(source - rank, 0)]


def _as_instances(operator: Operator) -> None:
    """Replace a group norm by an instance norm, which may have any rank.

    The number of groups is encoded as a negative epsilon, the only number carried over.
    """
    groups = _attribute(operator, "groups").get("D")
    if not isinstance(groups, int) or groups < 1:
        return
    operator["#"] = str(operator["#"]).partition(".")[0] + "." + _INSTANCE
    layers = [a for a in operator["A"] if isinstance(a, dict) and a.get("N") == "struct_name"]
    epsilon = {"#": "0.a_f32", "D": float(-groups)}
    operator["A"] = [{"AT": epsilon, "N": "epsilon"}, *layers]


_RESULT = "p2o.pd_op."


def outer_operators(document: Mapping[str, Any]) -> Any:
    """Return the operators outside nested blocks; in a damaged program, of any type.

    Raises:
        LookupError: if there are none.
        TypeError: if an enclosing part has another type.
    """
    return document["program"]["regions"][0]["blocks"][0]["ops"]


def layers_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the layers of each operator, by the name that Paddle2ONNX gives its results.

    Empty if the program has nested blocks, because their operators are numbered too.
    """
    counts: Counter[str] = Counter()
    found: dict[str, str] = {}
    for operator in outer_operators(document):
        if operator.get("regions"):
            return {}
        kind = str(operator["#"]).partition(".")[2]
        if layers := _layer_of(operator):
            found[f"{_RESULT}{kind}.{counts[kind]}"] = layers
        counts[kind] += 1
    return found


def _layer_of(operator: Mapping[str, Any]) -> str:
    for entry in operator.get("A", ()):
        if isinstance(entry, dict) and entry.get("N") == "struct_name":
            held = entry.get("AT")
            value = held.get("D") if isinstance(held, dict) else None
            return value.strip("/") if isinstance(value, str) else ""
    return ""


def name_nodes(model: onnx.ModelProto, layers: Mapping[str, str]) -> None:
    """Write the layers of each operator into its node's name, as PyTorch's exporter does.

    An operator of Paddle may become several nodes; the last one writes its result.
    """
    current = ""
    for node in reversed(model.graph.node):
        results = [name for name in node.output if name.startswith(_RESULT)]
        if results:
            current = layers.get(results[0].rpartition(".")[0], "")
        if current:
            node.name = f"/{current}/{node.op_type}"
