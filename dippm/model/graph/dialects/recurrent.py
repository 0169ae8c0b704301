"""Readers of recurrent layers: one node per operator in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from dippm.errors import ConversionError
from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.operators import split_name

MOST_PACKED_LAYERS = 64
"""Maximum depth of a recurrent operator with packed weights; known models have at most 8."""

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Gates of recurrent layers, by operator."""


def _recurrent(op: str) -> Callable[[RawCall], bool]:
    def read(call: RawCall) -> bool:
        source = call.inputs[0]
        weights = [v for v in call.inputs[1:] if v.roots and sum(n > 1 for n in v.shape) >= 2]
        states = [v for v in call.inputs[1:] if not v.is_static]  # initial states
        input_size = source.shape[-1]
        hidden = call.integer("hidden_size", "units", default=0) or _hidden(op, call)
        layers = call.integer("num_layers", "layers", default=1)
        directions = call.integer("directions", "num_directions", default=0)
        if not directions:
            both = call.attributes.get("bidirectional") or (
                call.text("direction").lower().startswith("bi")
            )
            directions = 2 if both else 1
        _check_layers(call, layers, directions)
        node = call.draft.emit(
            op,
            [source, *weights, *states],
            outputs=call.outputs,
            input_size=input_size,
            hidden_size=hidden,
            layers=layers,
            directions=directions,
            steps=_steps(call),
        )
        projection = call.integer("proj_size", "projection_size", "output_size", default=0)
        if projection and projection != hidden:
            node.attributes["projection_size"] = projection
        return True

    return read


def _check_layers(call: RawCall, layers: int, directions: int) -> None:
    """Refuse more layers than the call has weights for, because each becomes a node.

    In PyTorch every layer and direction has two matrices, and two biases if any; other
    frameworks may pack the weights of several layers into one tensor.

    Raises:
        ConversionError: if there are more, or fewer than one.
    """
    tensors = len(call.inputs) - 1
    most = max(tensors, MOST_PACKED_LAYERS)
    if call.name.startswith("aten."):
        most = tensors // (4 if call.integer("has_biases", default=0) else 2)
    if not (layers >= 1 and 1 <= directions <= 2 and layers * directions <= max(most, directions)):
        raise ConversionError(
            f"{call.name} says that it has {layers:,} layers in {directions:,} directions, and"
            f" reads {tensors:,} tensors beside its input",
            "The file is damaged or was made by hand: save or export the model again.",
        )


def _hidden(op: str, call: RawCall) -> int:
    """Return the hidden size, from the first weight: (gates · hidden, input) in some order."""
    gates, width = GATES[op], call.inputs[0].shape[-1]
    for weight in call.inputs[1:]:
        sizes = [size for size in weight.shape if size != 1]
        if weight.is_static and len(sizes) >= 2 and width in sizes:
            other = prod(sizes) // width
            if other % gates == 0:
                return other // gates
    return call.out_shape[-1]


def _steps(call: RawCall) -> int:
    """Return the sequence length: the size of the axis before the features, but not the batch."""
    given = call.integer("steps", "sequence_length", default=0)
    if given or split_name(call.name)[1].endswith("cell"):
        return given or 1
    shape, batch = call.inputs[0].shape, call.draft.batch
    leading = shape[:-1]
    if "batch_first" in call.attributes and len(leading) == 2:
        return leading[1] if call.attributes["batch_first"] else leading[0]
    if "time_major" in call.attributes and len(leading) == 2:
        return leading[0] if call.attributes["time_major"] else leading[1]
    if call.name.startswith("onnx.") and len(leading) == 2:
        return leading[1] if call.integer("layout", default=0) else leading[0]
    rest = [size for size in leading if size % batch]
    return prod(rest)


READERS: dict[str, Callable[[RawCall], bool]] = {op: _recurrent(op) for op in GATES}
