"""R7, first half: normalisations spelled as several operators become one node.

Every spelling ends in a product with, or a division by, the root of a mean of squares. The search
walks back from that node to the normalised tensor. A scale and a shift by parameters that follow
belong to the norm.
"""

from __future__ import annotations

from collections.abc import Collection

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.rules.prune import prune

KINDS = ("layer_norm", "rms_norm")
_SQUARES = ("square", "multiply", "power")


def recognise_norms(draft: Draft, kinds: Collection[str] = KINDS) -> None:
    """Replace the operators of each layer, RMS and group norm by one node.

    Args:
        draft: operators of a model.
        kinds: those of layer and RMS norms that are replaced; group norms are in any case.
    """
    for node in list(draft.nodes):
        if not node.alive:
            continue
        if node.op in ("layer_norm", "rms_norm"):
            _settle(node)
        elif node.op in ("multiply", "divide"):
            _from_pieces(draft, node, kinds)
        elif node.op in ("group_norm", "instance_norm"):
            _settle_groups(node)
            _from_reshaped_instances(draft, node)
    prune(draft)


def join_exported_norms(draft: Draft) -> None:
    """Replace the operators that PyTorch's exporters write for one call of a norm.

    RMS norms remain as they are written: most models spell them out themselves.
    """
    recognise_norms(draft, ("layer_norm",))


def _settle(node: Node) -> None:
    axes = node.attributes.get("axes")
    if axes is not None:
        node.attributes["normalized_size"] = _span(node.inputs[0], axes)


def _settle_groups(node: Node) -> None:
    shape = node.inputs[0].shape
    groups = node.attributes.get("groups", shape[1])
    per_image = node.inputs[0].size // max(shape[0], 1)
    node.attributes["normalized_size"] = per_image // max(groups, 1)


def _from_reshaped_instances(draft: Draft, node: Node) -> None:
    """Replace an instance norm over (images, groups, rest) and its reshapes by a group norm."""
    before = producer_of(node.inputs[0], "reshape")
    after = draft.sole_user(node.out)
    if node.op != "instance_norm" or before is None or after is None or after.op != "reshape":
        return
    source = before.inputs[0]
    if after.out.shape != source.shape or source.shape[1] == node.out.shape[1]:
        return
    groups, size = node.out.shape[1], node.attributes["normalized_size"]
    last, affine = _affine_tail(draft, after, axis=1)
    last.absorbed = ["instance_norm", *affine]
    last.op, last.attributes = "group_norm", {"groups": groups, "normalized_size": size}
    draft.set_inputs(last, [source])


def _span(value: Value, axes: tuple[int, ...]) -> int:
    size = 1
    for axis in axes:
        size *= value.shape[axis]
    return size


def _from_pieces(draft: Draft, node: Node, kinds: Collection[str]) -> None:
    found = _scaled_by_root(node)
    if found is None:
        return
    numerator, mean_of_squares, spelled = found
    axes = mean_of_squares.attributes["axes"]
    squared = _find_squared(mean_of_squares)
    if squared is None and mean_of_squares.op != "reduce_variance":
        return
    source, op = _find_centred(numerator, squared, mean_of_squares)
    if source is None or op not in kinds or max(axes) != len(source.shape) - 1:
        return
    pieces = ["reduce_mean", "subtract"] if op == "layer_norm" else []
    pieces += ["reduce_variance"] if squared is None else ["square", "reduce_mean"]
    last, affine = _affine_tail(draft, node)
    last.absorbed = [*pieces, *spelled, node.op, *affine]
    last.op = op
    last.attributes = {"axes": axes, "normalized_size": _span(source, axes)}
    draft.set_inputs(last, [source])


def _scaled_by_root(node: Node) -> tuple[Value, Node, list[str]] | None:
    """Return (numerator, mean of squares, operators) of `x * rsqrt(m + e)` and its variants."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    pairs = ((left, right),) if node.op == "divide" else ((left, right), (right, left))
    for numerator, scale in pairs:
        root = producer_of(scale, "sqrt" if node.op == "divide" else "rsqrt", "reciprocal", "power")
        if root is None:
            continue
        spelled = [root.op]
        value = root.inputs[0]
        if root.op == "reciprocal":
            inner = producer_of(value, "sqrt")
            if inner is None:
                continue
            spelled, value = ["sqrt", "reciprocal"], inner.inputs[0]
        plus = producer_of(value, "add")
        if plus is not None and any(v.is_static for v in plus.inputs):
            spelled.insert(0, "add")
            value = next(v for v in plus.inputs if not v.is_static)
        mean = producer_of(value, "reduce_mean", "reduce_variance")
        if mean is not None:
            return numerator, mean, spelled
    return None


def _find_squared(mean: Node) -> Value | None:
    """Return the value that was squared before the mean, None if none was."""
    square = producer_of(mean.inputs[0], *_SQUARES)
    if mean.op != "reduce_mean" or square is None:
        return None
    if square.op == "multiply" and square.inputs[0] is not square.inputs[1]:
        return None
    if square.op == "power" and square.inputs[1].scalar != 2.0:
        return None
    return square.inputs[0]


def _find_centred(numerator: Value, squared: Value | None, mean: Node) -> tuple[Value | None, str]:
    """Return the normalised tensor and the kind of norm: layer norm if the mean is subtracted."""
    difference = producer_of(numerator, "subtract")
    if difference is not None:
        source = difference.inputs[0]
        centre = producer_of(difference.inputs[1], "reduce_mean")
        matches = squared is None or squared is numerator or _same_difference(squared, source)
        if centre is not None and centre.inputs[0] is source and matches:
            return source, "layer_norm"
    if squared is numerator and squared is not None:
        return squared, "rms_norm"
    return None, ""


def _same_difference(squared: Value, source: Value) -> bool:
    difference = producer_of(squared, "subtract")
    return difference is not None and difference.inputs[0] is source


def _affine_tail(draft: Draft, node: Node, *, axis: int = -1) -> tuple[Node, list[str]]:
    """Follow `* scale` and `+ shift` by parameters of one axis at most."""
    last = node
    operators: list[str] = []
    for op in ("multiply", "add"):
        user = draft.sole_user(last.out)
        if user is None or user.op != op or user.out.shape != node.out.shape:
            continue
        vectors = [v for v in user.inputs if v.is_static]
        if vectors and vectors[0].size == node.out.shape[axis]:
            last = user
            operators.append(op)
    return last, operators
