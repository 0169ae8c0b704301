"""R4: identities go, views of views merge, and layout changes cancel.

Images become N, C, spatial: layout changes sink below indifferent operators, where inverse ones
meet.
"""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.operators import is_elementwise
from dippm.model.graph.rules.prune import prune

# Identities, and views of views.


def drop_identities(draft: Draft) -> None:
    """Remove nodes that change nothing, and merge chains of reshapes and of transposes."""
    for node in draft.nodes:
        if not node.alive:
            continue
        if node.op in ("reshape", "transpose"):
            _merge_with_producer(draft, node)
        if _is_identity(node):
            draft.bypass(node, node.inputs[0])
        elif node.op == "broadcast":
            _skip_in_elementwise(draft, node)
    prune(draft)


def drop_neutral(draft: Draft) -> None:
    """Remove sums with 0 and products with 1, as Paddle's operator for both writes one of them."""
    for node in draft.live():
        if _is_neutral(node):
            draft.bypass(node, node.inputs[0])
    prune(draft)


def _is_identity(node: Node) -> bool:
    if len(node.outputs) != 1 or not node.inputs:
        return False
    source, out = node.inputs[0], node.out
    if node.op == "identity":
        return True
    if source.is_static:
        return False
    if node.op in ("reshape", "broadcast", "slice", "repeat", "tile", "pad"):
        return source.shape == out.shape
    if node.op == "transpose":
        return bool(node.attributes["permutation"] == tuple(range(len(out.shape))))
    if node.op == "cast":
        return _is_float(source) == _is_float(out) or source.dtype == out.dtype
    if node.op == "concat":
        return len(node.inputs) == 1
    if node.op in ("max_pool", "avg_pool"):
        kernel, strides = node.attributes["kernel"], node.attributes["strides"]
        return {*kernel, *strides} == {1} and source.shape == out.shape
    return _is_neutral(node)


def _is_float(value: Value) -> bool:
    return "float" in value.dtype


def _is_neutral(node: Node) -> bool:
    """Return whether a node is `x + 0`, `x - 0`, `x * 1`, `x / 1` or `x ** 1`."""
    neutral = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0, "power": 1.0}
    if node.op not in neutral or len(node.inputs) != 2:
        return False
    return node.inputs[1].scalar == neutral[node.op] and node.inputs[0].shape == node.out.shape


def _merge_with_producer(draft: Draft, node: Node) -> None:
    before = producer_of(node.inputs[0], node.op)
    if before is None:
        return
    if node.op == "transpose":
        inner, outer = before.attributes["permutation"], node.attributes["permutation"]
        node.attributes["permutation"] = tuple(inner[axis] for axis in outer)
        if not (before.attributes.get("layout") and node.attributes.get("layout")):
            node.attributes.pop("layout", None)
    draft.set_inputs(node, before.inputs)


def _skip_in_elementwise(draft: Draft, node: Node) -> None:
    """Drop a broadcast before an element-wise operator with another argument of full size."""
    for user in list(node.out.uses):
        if not is_elementwise(user.op) or user.inputs.count(node.out) > 1:
            continue
        rank = len(user.out.shape)
        others = [v for v in user.inputs if v is not node.out and v.shape == user.out.shape]
        if others and len(node.inputs[0].shape) == rank:
            inputs = [node.inputs[0] if v is node.out else v for v in user.inputs]
            draft.set_inputs(user, inputs)


# Layout changes.

Permutation = tuple[int, ...]
_ONE_AXIS = ("concat", "split", "softmax", "log_softmax", "batch_norm")


def settle_layout(draft: Draft) -> None:
    """Sink layout changes, cancel inverse ones, and make the rest ordinary views."""
    _enter_channels_first(draft)
    if not any(_is_to_last(node) for node in draft.nodes):
        return
    for node in list(draft.nodes):
        if node.alive:
            _sink(draft, node)
    restore_order(draft)
    drop_identities(draft)
    for node in draft.nodes:
        if node.op == "transpose" and node.attributes.get("layout"):
            node.op, node.attributes = "reshape", {}
    prune(draft)


def _is_to_last(node: Node) -> bool:
    """Return whether a node changes N, C, spatial to N, spatial, C."""
    if node.op != "transpose":
        return False
    rank = len(node.out.shape)
    return rank in (3, 4, 5) and node.attributes["permutation"] == (0, *range(2, rank), 1)


def _enter_channels_first(draft: Draft) -> None:
    """Insert a layout change and its inverse after image inputs that are N, spatial, C.

    The inverse then sinks to the first operator that needs channels first, and cancels there.
    """
    for image in draft.inputs:
        rank = len(image.shape)
        if rank not in (3, 4, 5) or not _reaches_layout_change(image):
            continue
        first = (0, rank - 1, *range(1, rank - 1))
        last = (0, *range(2, rank), 1)
        readers = list(image.uses)
        shape = tuple(image.shape[axis] for axis in first)
        there = draft.make("transpose", [image], shape=shape, permutation=first, layout=1)
        back = draft.make("transpose", [there.out], shape=image.shape, permutation=last, layout=1)
        for reader in readers:
            inputs = [back.out if v is image else v for v in reader.inputs]
            draft.set_inputs(reader, inputs)
        draft.nodes[:0] = [there, back]


def _reaches_layout_change(image: Value) -> bool:
    """Return whether a change to channels first follows, after operators that it can pass."""
    pending, steps = [image], 0
    while pending and steps < 64:
        steps += 1
        for user in pending.pop().uses:
            if user.op == "transpose" and user.attributes.get("layout"):
                return True
            if user.op == "pad" or user.op in _ONE_AXIS or is_elementwise(user.op):
                pending.extend(user.outputs)
    return False


def _source(value: Value) -> Node | None:
    node = value.producer
    return node if node is not None and node.alive and _is_to_last(node) else None


def _sink(draft: Draft, node: Node) -> None:
    """Make a node work on N, C, spatial if its activations were changed from that layout."""
    if node.op == "transpose" and len(node.inputs) == 1:
        before = _source(node.inputs[0])
        if before is not None:
            _compose(draft, node, before)
        return
    if not node.inputs or not any(_source(v) for v in node.inputs):
        return
    rank = len(node.inputs[0].shape)
    if node.op in ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min"):
        _sink_reduction(draft, node)
    elif node.op in ("pad",) and node.attributes.get("widths"):
        _sink_pad(draft, node)
    elif node.op in _ONE_AXIS or is_elementwise(node.op):
        _sink_through(draft, node, rank)


def _compose(draft: Draft, node: Node, before: Node) -> None:
    inner, outer = before.attributes["permutation"], node.attributes["permutation"]
    virtual = before.attributes.get("layout") and node.attributes.get("layout")
    node.attributes = {"permutation": tuple(inner[axis] for axis in outer)}
    if virtual:
        node.attributes["layout"] = 1
    draft.set_inputs(node, before.inputs)
    if node.attributes["permutation"] == tuple(range(len(node.out.shape))):
        draft.bypass(node, node.inputs[0])


def _sink_through(draft: Draft, node: Node, _: int) -> None:
    rank = len(node.out.shape)
    sources = [_source(v) for v in node.inputs]
    layouts = [s for s in sources if s is not None]
    if any(len(s.out.shape) != rank for s in layouts):
        return
    inputs: list[Value] = []
    for value, source in zip(node.inputs, sources, strict=True):
        moved = source.inputs[0] if source else _moved_static(value, rank)
        if moved is None:
            return
        inputs.append(moved)
    permutation: Permutation = layouts[0].attributes["permutation"]
    if "axis" in node.attributes:
        node.attributes["axis"] = permutation[node.attributes["axis"]]
    draft.set_inputs(node, inputs)
    virtual = all(s.attributes.get("layout") for s in layouts)
    _move_results(draft, node, permutation, virtual=virtual)


def _moved_static(value: Value, rank: int) -> Value | None:
    """Return a static or scalar argument in a shape that broadcasts with N, C, spatial."""
    if value.size == 1 and (value.is_static or not value.shape):
        return value
    if not value.is_static or len(value.shape) > rank:
        return None
    shape = (1,) * (rank - len(value.shape)) + value.shape
    return value.as_static((shape[0], shape[-1], *shape[1:-1]))


def _move_results(draft: Draft, node: Node, permutation: Permutation, *, virtual: bool) -> None:
    """Make the node write N, C, spatial, and insert the layout change after it."""
    for i, out in enumerate(node.outputs):
        inner = [0] * len(out.shape)
        for axis, origin in enumerate(permutation):
            inner[origin] = out.shape[axis]
        fresh = Value(tuple(inner), out.dtype)
        fresh.producer = node
        node.outputs[i] = fresh
        change = draft.make("transpose", [fresh], outputs=[out], permutation=permutation)
        change.path = node.path
        if virtual:
            change.attributes["layout"] = 1
        draft.nodes.append(change)


def _sink_reduction(draft: Draft, node: Node) -> None:
    source = _source(node.inputs[0])
    assert source is not None
    permutation = source.attributes["permutation"]
    axes = tuple(sorted(permutation[axis] for axis in node.attributes["axes"]))
    kept = [axis for axis in permutation if axis not in axes]
    if not node.attributes["keepdims"] and kept != sorted(kept):
        return
    node.attributes["axes"] = axes
    draft.set_inputs(node, source.inputs)
    if node.attributes["keepdims"]:
        virtual = bool(source.attributes.get("layout"))
        _move_results(draft, node, permutation, virtual=virtual)


def _sink_pad(draft: Draft, node: Node) -> None:
    source = _source(node.inputs[0])
    assert source is not None
    permutation, widths = source.attributes["permutation"], node.attributes["widths"]
    moved = [0] * len(widths)
    for axis, origin in enumerate(permutation):
        moved[2 * origin : 2 * origin + 2] = widths[2 * axis : 2 * axis + 2]
    node.attributes["widths"] = tuple(moved)
    draft.set_inputs(node, [source.inputs[0], *node.inputs[1:]])
    virtual = bool(source.attributes.get("layout"))
    _move_results(draft, node, permutation, virtual=virtual)


def restore_order(draft: Draft) -> None:
    """Sort nodes so that producers come first, and keep the order otherwise."""
    position = {id(node): i for i, node in enumerate(draft.nodes)}
    ordered: list[Node] = []
    seen: set[int] = set()
    for root in draft.nodes:
        if not root.alive:
            continue
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in seen:
                stack.pop()
                continue
            before = [
                v.producer
                for v in node.inputs
                if v.producer is not None and v.producer.alive and id(v.producer) not in seen
            ]
            if before:
                stack.extend(sorted(before, key=lambda n: -position[id(n)]))
            else:
                seen.add(id(node))
                ordered.append(node)
                stack.pop()
    draft.nodes = ordered
