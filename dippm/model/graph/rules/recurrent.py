"""R8: one recurrent node per layer, with both directions."""

from __future__ import annotations

from dippm.model.graph.draft import Draft, Node, Value, producer_of
from dippm.model.graph.rules.prune import prune

RECURRENT = ("lstm", "gru", "rnn")
_SELECTIONS = ("transpose", "reshape", "slice", "flip", "identity")


def settle_recurrent(draft: Draft) -> None:
    """Split stacked layers, and join a forward and a backward layer that are concatenated."""
    for node in list(draft.nodes):
        if node.op == "concat":
            _join_directions(draft, node)
    prune(draft)
    for node in list(draft.nodes):
        if node.op in RECURRENT and node.attributes["layers"] > 1:
            _split_layers(draft, node)


def _split_layers(draft: Draft, last: Node) -> None:
    """Insert the lower layers before `last`, which becomes the top layer."""
    layers = last.attributes["layers"]
    source, weights = last.inputs[0], [v for v in last.inputs[1:] if v.is_static]
    states = [v for v in last.inputs[1:] if not v.is_static]
    share = len(weights) // layers
    position = draft.nodes.index(last)
    width = last.out.shape[-1]
    below = []
    for layer in range(layers - 1):
        attributes = {**last.attributes, "layers": 1, "input_size": source.shape[-1]}
        own = weights[layer * share : (layer + 1) * share]
        shape = (*source.shape[:-1], width)
        lower = draft.make(last.op, [source, *own, *states], shape=shape, **attributes)
        lower.path = last.path
        below.append(lower)
        source = lower.out
    draft.nodes[position:position] = below
    last.attributes = {**last.attributes, "layers": 1, "input_size": width}
    draft.set_inputs(last, [source, *weights[(layers - 1) * share :], *states])


def _join_directions(draft: Draft, concat: Node) -> None:
    """`concat(layer(x), flip(layer(flip(x))))`, over all steps or the last ones."""
    if len(concat.inputs) != 2 or concat.attributes["axis"] != len(concat.out.shape) - 1:
        return
    forward, backward = (_layer_behind(v) for v in concat.inputs)
    if forward is None or backward is None or forward is backward:
        return
    flipped = producer_of(_through_views(backward.inputs[0]), "flip")
    if flipped is None or forward.op != backward.op:
        return
    if _through_views(flipped.inputs[0]) is not _through_views(forward.inputs[0]):
        return
    alone = ("input_size", "hidden_size", "steps", "layers")
    if any(forward.attributes[a] != backward.attributes[a] for a in alone):
        return
    states = [v for v in (*forward.outputs[1:], *backward.outputs[1:]) if _is_used(draft, v)]
    place = 1 + max(draft.nodes.index(node) for node in (forward, backward))
    early = {id(node) for node in draft.nodes[:place]}
    if any(_has_other_use(draft, layer.out, concat) for layer in (forward, backward)) or any(
        id(user) in early for state in states for user in state.uses
    ):
        return  # a joined node would hide a use, or depend on itself
    full = forward.out.shape
    joined = draft.make(
        forward.op,
        [*forward.inputs, *backward.inputs[1:]],
        outputs=[Value((*full[:-1], 2 * full[-1]), forward.out.dtype), *states],
        **{**forward.attributes, "directions": 2},
    )
    joined.path = forward.path
    forward.outputs, backward.outputs = [forward.out], [backward.out]
    draft.nodes.insert(place, joined)
    concat.op, concat.attributes = _select(joined.out, concat.out), {}
    draft.set_inputs(concat, [joined.out])


def _is_used(draft: Draft, value: Value) -> bool:
    return bool(value.uses) or draft.is_output(value)


def _has_other_use(draft: Draft, value: Value, reader: Node) -> bool:
    """Return whether nodes other than `reader` read a value, directly or through a selection."""
    values = [value]
    while values:
        value = values.pop()
        if draft.is_output(value):
            return True
        for user in value.uses:
            if user is not reader and user.op not in _SELECTIONS:
                return True
            values.extend(user.outputs if user is not reader else [])
    return False


def _select(source: Value, result: Value) -> str:
    return "reshape" if source.size == result.size else "slice"


def _through_views(value: Value) -> Value:
    while node := producer_of(value, "transpose", "reshape"):
        value = node.inputs[0]
    return value


def _layer_behind(value: Value) -> Node | None:
    """Return the recurrent layer before a value, past views, flips and selections, else None."""
    for _ in range(8):
        node = value.producer
        if node is None or not node.alive:
            return None
        if node.op in RECURRENT:
            return node
        if node.op not in _SELECTIONS:
            return None
        value = node.inputs[0]
    return None
