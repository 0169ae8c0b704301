"""R6: activation functions become one node, however they are spelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.rules.prune import prune

Match = Callable[[Draft, Node], "tuple[Value, list[str], str] | None"]
_OFTEN_IN_PLACE = ("relu", "relu6", "leaky_relu", "silu", "hard_swish")


def name_activations(draft: Draft) -> None:
    """Replace the operators that spell an activation function by one node."""
    _replace(draft, _MATCHES)


def join_exported_activations(draft: Draft) -> None:
    """Replace the operators that PyTorch's exporters write for one call of an activation function.

    What a model spells out itself remains: a GELU by a sigmoid, or with its cube as a power, and
    the bounds of a hard sigmoid.
    """
    _replace(draft, {"multiply": (_exported_gelu, _exported_gate)})


def _exported_gelu(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    found = _gelu(draft, node)
    return None if found is None or "power" in _operators_after(found[0], node) else found


def _exported_gate(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    found = _silu(draft, node)
    return None if found is None or found[2] == "gelu" else found


def _operators_after(source: Value, last: Node) -> set[str]:
    """Return the operators between a value and a node that is computed from it and numbers."""
    found: set[str] = set()
    pending = [last]
    while pending:
        node = pending.pop()
        found.add(node.op)
        pending += [v.producer for v in node.inputs if v is not source and v.producer is not None]
    return found


def _replace(draft: Draft, matches: Mapping[str, tuple[Match, ...]]) -> None:
    for node in list(draft.nodes):
        if not node.alive:
            continue
        for match in matches.get(node.op, ()):
            found = match(draft, node)
            if found is not None:
                source, absorbed, name = found
                node.op, node.attributes = name, {}
                node.absorbed = absorbed
                draft.set_inputs(node, [source])
                break
    prune(draft)


def _split_scalar(node: Node) -> tuple[Value, float] | None:
    """Return (activation, number) of `x op number`; None for any other node."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if right.scalar is not None and not left.is_static:
        return left, right.scalar
    commutes = node.op in ("add", "multiply", "minimum", "maximum")
    if left.scalar is not None and not right.is_static and commutes:
        return right, left.scalar
    return None


def _is_close(number: float | None, target: float) -> bool:
    return number is not None and abs(number - target) < 2e-3


def _peel(value: Value, op: str, number: float) -> Value | None:
    """Return `x` if `value` is `x op number`, else None."""
    node = producer_of(value, op)
    pair = _split_scalar(node) if node else None
    return pair[0] if pair and _is_close(pair[1], number) else None


def _two(node: Node) -> tuple[tuple[Value, Value], ...]:
    if len(node.inputs) != 2 or any(v.is_static for v in node.inputs):
        return ()
    left, right = node.inputs
    return ((left, right), (right, left))


def _silu(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    for x, gate in _two(node):
        for op, name in (("sigmoid", "silu"), ("hard_sigmoid", "hard_swish")):
            inner = producer_of(gate, op)
            if inner and inner.inputs[0] is x and draft.sole_user(gate):
                return x, [*(inner.absorbed or [op]), "multiply"], name
        soft = producer_of(gate, "tanh")
        if soft and (plus := producer_of(soft.inputs[0], "softplus")) and plus.inputs[0] is x:
            return x, ["softplus", "tanh", "multiply"], "mish"
        if (sigmoid := producer_of(gate, "sigmoid")) and _peel_any(sigmoid.inputs[0], x, 1.702):
            return x, ["multiply", "sigmoid", "multiply"], "gelu"
    return None


def _peel_any(value: Value, x: Value, number: float) -> bool:
    return _peel(value, "multiply", number) is x


def _hard_sigmoid(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    """`clip(x + 3, 0, 6) / 6`."""
    pair = _split_scalar(node)
    if pair is None:
        return None
    value, number = pair
    if not (_is_close(number, 6.0) if node.op == "divide" else _is_close(number, 1 / 6)):
        return None
    clip = producer_of(value, "relu6")
    if clip and (x := _peel(clip.inputs[0], "add", 3.0)) is not None:
        return x, ["add", "relu6", node.op], "hard_sigmoid"
    if clip is None and (product := producer_of(value, "multiply")):
        for x, gate in _two(product):
            clip = producer_of(gate, "relu6")
            if clip and _peel(clip.inputs[0], "add", 3.0) is x:
                return x, ["add", "relu6", "multiply", node.op], "hard_swish"
    return None


def _gelu(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    """`x · ½ · (1 + erf(x / √2))` in any order of the factors, also with erfc or tanh."""
    factors, operators = _factors(draft, node)
    halves = [f for f in factors if isinstance(f, float)]
    values = [f for f in factors if isinstance(f, Value)]
    if len(values) != 2 or len(halves) != 1 or not _is_close(halves[0], 0.5):
        return None
    for x, gate in ((values[0], values[1]), (values[1], values[0])):
        spelling = _gate(gate, x)
        if spelling is not None:
            return x, [*spelling, *operators], "gelu"
    return None


def _factors(draft: Draft, node: Node) -> tuple[list[Value | float], list[str]]:
    """Return the factors of nested products, and the operators that form them."""
    factors: list[Value | float] = []
    operators = ["multiply"]
    for value in node.inputs:
        inner = producer_of(value, "multiply", "divide")
        if value.scalar is not None:
            factors.append(value.scalar)
        elif inner and draft.sole_user(value) and len(inner.inputs) == 2:
            operators.append(inner.op)
            for factor in inner.inputs:
                number = factor.scalar
                if number is not None and inner.op == "divide":
                    number = 1.0 / number if number else 0.0
                factors.append(factor if number is None else number)
        else:
            factors.append(value)
    return factors, operators


def _gate(gate: Value, x: Value) -> list[str] | None:
    erfc = producer_of(gate, "erfc")
    if erfc is not None:
        return ["multiply", "erfc"] if _is_scaled(erfc.inputs[0], x, 0.70711) else None
    inner = _peel(gate, "add", 1.0)
    if inner is None:
        return None
    if (erf := producer_of(inner, "erf")) and _is_scaled(erf.inputs[0], x, 0.70711):
        return ["divide", "erf", "add"]
    if (tanh := producer_of(inner, "tanh")) and _is_cubic(tanh.inputs[0], x):
        return ["power", "multiply", "add", "multiply", "tanh", "add"]
    return None


def _is_scaled(value: Value, x: Value, number: float) -> bool:
    node = producer_of(value, "multiply", "divide")
    if node is None:
        negated = producer_of(value, "neg")
        return negated is not None and _is_scaled(negated.inputs[0], x, number)
    pair = _split_scalar(node)
    if pair is None:
        return False
    scale = pair[1] if node.op == "multiply" else (1.0 / pair[1] if pair[1] else 0.0)
    if pair[0] is x:
        return _is_close(abs(scale), number)
    negated = producer_of(pair[0], "neg")
    return negated is not None and negated.inputs[0] is x and _is_close(abs(scale), number)


def _is_cubic(value: Value, x: Value) -> bool:
    """Return whether a value is computed from `x` and numbers only, within a few steps."""
    pending, seen = [value], 0
    while pending and seen < 12:
        item = pending.pop()
        seen += 1
        if item is x or item.scalar is not None:
            continue
        node = producer_of(item, "multiply", "add", "power", "square")
        if node is None:
            return False
        pending.extend(node.inputs)
    return not pending and seen >= 5


def _softplus(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    """`log(1 + exp(x))`."""
    if node.op == "log1p":
        exp = producer_of(node.inputs[0], "exp")
        return (exp.inputs[0], ["exp", "log1p"], "softplus") if exp else None
    inner = _peel(node.inputs[0], "add", 1.0)
    exp = producer_of(inner, "exp") if inner is not None else None
    return (exp.inputs[0], ["exp", "add", "log"], "softplus") if exp else None


def _from_bounds(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    """`minimum(relu(x), 6)`, `minimum(maximum(x, 0), 6)` and `maximum(x, 0)`."""
    pair = _split_scalar(node)
    if pair is None:
        return None
    if node.op == "maximum":
        return (pair[0], [], "relu") if pair[1] == 0.0 else None
    inner = producer_of(pair[0], "relu")
    if inner and pair[1] == 6.0 and draft.sole_user(pair[0]):
        return inner.inputs[0], ["relu", "minimum"], "relu6"
    return None


def _sigmoid(draft: Draft, node: Node) -> tuple[Value, list[str], str] | None:
    """`1 / (1 + exp(-x))`."""
    if node.op == "divide" and node.inputs[0].scalar != 1.0:
        return None
    inner = _peel(node.inputs[-1], "add", 1.0)
    exp = producer_of(inner, "exp") if inner is not None else None
    neg = producer_of(exp.inputs[0], "neg") if exp else None
    return (neg.inputs[0], ["neg", "exp", "add", node.op], "sigmoid") if neg else None


_MATCHES: dict[str, tuple[Match, ...]] = {
    "multiply": (_hard_sigmoid, _gelu, _silu),
    "divide": (_hard_sigmoid, _sigmoid),
    "reciprocal": (_sigmoid,),
    "maximum": (_from_bounds,),
    "minimum": (_from_bounds,),
    "log": (_softplus,),
    "log1p": (_softplus,),
}


def write_in_place(draft: Draft) -> None:
    """Let activations overwrite an argument that nothing else reads, as vision models do."""
    for node in draft.nodes:
        if node.alive and node.op in _OFTEN_IN_PLACE:
            (source,) = node.inputs[:1]
            node.in_place = len(source.uses) == 1 and source.producer is not None
