"""Kernels of a model, in execution order, and the rules that launch them.

`launched` walks the calls of a model and applies a rule to each. Before it stand the rules that no
module of their own has: forward passes of training, and recurrent layers. After it, the calls of a
graph that was not read from a file are built from its operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dippm.base.progress import counted
from dippm.estimate.conditions import Attention, Mode, Precision
from dippm.estimate.features.fusion import fuse
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.attention import attention as attended
from dippm.estimate.features.kernels.attention import in_steps
from dippm.estimate.features.kernels.casts import cast, lower
from dippm.estimate.features.kernels.convolution import bias, convolution
from dippm.estimate.features.kernels.copies import (
    created,
    identity,
    masked,
    padded,
    scattered,
    viewed,
)
from dippm.estimate.features.kernels.norms import group_norm, instance_norm, serial_loads
from dippm.estimate.features.kernels.products import copied, macs, matmul, product
from dippm.estimate.features.kernels.run import KeptHalf, Run
from dippm.estimate.features.kernels.streaming import pass_over_memory
from dippm.model.graph.calls import CallSequence, OperatorCall, Tensor
from dippm.model.graph.draft import item_bytes
from dippm.model.graph.model_graph import STATIC, ModelGraph, OpNode
from dippm.model.graph.operators import operator
from dippm.model.graph.rules.products import BYTES

# Forward passes of training: calls that launch other kernels because gradients are needed later.


COUNTER_BYTES = 8
OVERWRITTEN = frozenset(
    "silu hard_swish hard_sigmoid mish gelu relu6 clip softplus multiply divide".split()
)
"""Calls whose gradient needs the argument: in place, it is copied before it is overwritten."""
SERIAL_PER_LOAD = 1.3
"""Memory latencies per load of a thread that works out statistics: 0.25 to 0.42 µs on H100 and
H200, the longer ones where the time is."""
OWN_INNER_LAUNCHES = 2
"""Further launches in a call of PyTorch's own batch norm: running means, and the elements."""


def batch_norm(run: Run, call: OperatorCall) -> None:
    """Launch the batch counter's update, and cuDNN's kernel, which reads its argument twice.

    PyTorch's own has three in one call: for statistics, their running means, and the elements.
    """
    counter = Kernel.stream(call.node, "broadcast", 1, COUNTER_BYTES)
    run.emit(counter._replace(in_place=True))
    loads = serial_loads(run, call.inputs[0])
    pass_over_memory(run, call)
    norm = run.kernels[-1]
    run.kernels[-1] = norm._replace(
        read_bytes=2.0 * norm.read_bytes,
        flops=2.0 * norm.flops,
        serial=SERIAL_PER_LOAD * loads,
        inner_launches=OWN_INNER_LAUNCHES if loads else 0,
    )


def needs_copy(run: Run, call: OperatorCall) -> bool:
    """Return whether autograd copies the argument of a call that works in place."""
    if not call.in_place or call.op not in OVERWRITTEN:
        return False
    return not any(run.tensor(p).is_number for p in call.inputs[1:])


def copied_first(run: Run, call: OperatorCall) -> None:
    """Launch a copy of the argument that a call overwrites, then the call."""
    source = call.inputs[0]
    held = run.state(source)
    at = run.emit(Kernel.stream(call.node, "copy", run.stored(source), held.width), [source])
    run.states[source] = replace(held, makers=(at,))
    pass_over_memory(run, call)


# Recurrent layers: one library call for all layers and steps.


SMALL_STATE: Mapping[str, float] = {"rnn": 384, "lstm": 192, "gru": 192}
"""Largest hidden state that PyTorch lets cuDNN keep on the chip for all steps, by operator
(`use_rnn_persist_small_h` in `aten/src/ATen/native/cudnn/RNN.cpp`)."""
SERIAL_OF_STATE = 1 / 36
"""Memory latencies that a step waits for per hidden unit, with the state on the chip: on an H100 a
step takes 0.47 µs with 64 units and 1.08 µs with 128."""
SERIAL_PER_STEP = 12.5
"""Memory latencies that a step waits for with a larger state, where each step is two kernels:
3.75 µs on an H200."""
CALL_LAUNCHES, SMALL_CALL_LAUNCHES = 24, 70
"""Number of launches that take as long as the preparation of a call, with the state in memory and
with it on the chip: 0.24 and 0.7 ms on the hosts of our H100 and H200."""


def keeps_state(op: str, hidden: float) -> bool:
    """Return whether one cuDNN kernel runs all steps of a layer, with its state on the chip."""
    return hidden <= SMALL_STATE.get(op, 0.0)


def recurrent(run: Run, call: OperatorCall) -> None:
    """Launch one kernel record for all layers, whose steps wait for each other.

    `torch.compile` breaks its graph here (`torch._dynamo.config.allow_rnn` is off by default), so
    casts, copies and steps are those of eager mode.
    """
    first = len(run.kernels)
    a = call.attributes
    hidden, steps = float(a.get("hidden_size", 1)), float(a.get("steps", 1))
    out = run.tensor(call.outputs[0])
    work = macs(run, call)
    for position in call.inputs:
        lower(run, call, position)
        tensor = run.tensor(position)
        if run.autocast and tensor.is_parameter and len(tensor.shape) > 1:
            run.emit(Kernel.stream(call.node, "cast", max(tensor.shape), 4, 2))  # its bias
    copied(run, call, call.inputs[0], run.tensor(call.inputs[0]).size)
    layers = max(1, int(a.get("layers", 1)) * int(a.get("directions", 1)))
    product(
        run,
        call,
        "recurrent",
        (out.size / max(hidden * steps, 1.0), hidden, hidden),
        copies=steps * layers,
        flops=2.0 * work,
        operands=call.inputs,
    )
    if keeps_state(call.op, hidden):
        serial, inner = SERIAL_OF_STATE * hidden, SMALL_CALL_LAUNCHES
    else:
        serial, inner = SERIAL_PER_STEP, CALL_LAUNCHES + 2 * int(steps) * layers
    run.kernels[-1] = run.kernels[-1]._replace(
        launches=layers, serial=serial * steps * layers, inner_launches=inner
    )
    run.graph_breaks.append(range(first, len(run.kernels)))
    for other in call.outputs[1:]:
        run.make(other, run.product_width)


# The kernels of a model: a rule per call.


KERNEL_VERSION = "12"
"""Version of the kernels that these rules launch, to be raised with any change of them."""

Rule = Callable[[Run, OperatorCall], None]
BY_NAME: Mapping[str, Rule] = {
    "cast": cast,
    "identity": identity,
    "matmul": matmul,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "pad": padded,
    "masked_fill": masked,
    "scatter": scattered,
    "create": created,
    "random": created,
}
"""Rules by canonical name."""
BY_KERNEL: Mapping[str, Rule] = {
    "convolution": convolution,
    "gemm": matmul,
    "batched_gemm": matmul,
    "attention": attended,
    "recurrent": recurrent,
}
"""Rules by the column `kernel` of the operator table."""
TRAINED: Mapping[str, Rule] = {"batch_norm": batch_norm}
"""Rules by canonical name that replace those above in forward passes of training."""
_WITH_BIAS = ("conv1d", "conv2d", "conv3d", "conv_transpose", "matmul", "dense", "batch_matmul")


def launched(
    graph: ModelGraph,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    *,
    channels_last: bool = False,
    attention: Attention = "fused",
    kept_half: Collection[KeptHalf] = (),
) -> list[Kernel]:
    """Return the kernels of one inference in execution order.

    Args:
        graph: graph at the batch of the run.
        precision: see `Conditions`.
        mode: "eager", or "compiled", which fuses chains of element-wise kernels.
        channels_last: whether images are in the channels-last layout.
        attention: "fused" for one kernel, "unfused" for separate steps, see `in_steps`.
        kept_half: see `Run`.
    """
    sequence = sequence_of(graph).at_batch(graph.batch)
    return launched_by(
        sequence,
        precision,
        mode,
        channels_last=channels_last,
        attention=attention,
        kept_half=kept_half,
    )


def sequence_of(graph: ModelGraph) -> CallSequence:
    """Return the calls of the framework, at the batch of the conversion.

    If a file expresses integer products by casts around float products, the calls are those of the
    canonical operators, because runtimes execute such a product without the casts.
    """
    if graph.calls is None or _multiplies_integers(graph):
        return _CallBuilder(graph.as_converted).sequence()
    return graph.calls


def launched_by(
    sequence: CallSequence,
    precision: Precision = "fp32",
    mode: Mode = "eager",
    *,
    channels_last: bool = False,
    attention: Attention = "fused",
    kept_half: Collection[KeptHalf] = (),
) -> list[Kernel]:
    """Return the kernels that calls launch; see `launched` and `Run`."""
    if attention == "unfused":
        sequence = in_steps(sequence, precision)
    run = Run(
        sequence,
        precision,
        channels_last=channels_last,
        compiled=mode == "compiled",
        kept_half=kept_half,
    )
    walk(run)
    return fuse(run.kernels, run.graph_breaks) if mode == "compiled" else run.kernels


def walk(run: Run, seen: Callable[[OperatorCall, OperatorCall | None], None] | None = None) -> None:
    """Launch the kernels of all calls of a run.

    Args:
        run: run without kernels.
        seen: function that is called after each call with the call and the layer whose bias it adds
            (None for none), while the run still has the states of the arguments.
    """
    sequence = run.sequence
    makers, readers = _data_flow(sequence)
    for call in counted(sequence.calls, len(sequence.calls), "kernels of operator"):
        maker = _biased_layer(call, sequence, makers, readers)
        with run.restored(call.inputs):
            if maker is not None:
                bias(run, call, maker)
            else:
                _rule_of(run, call)(run, call)
            if seen is not None:
                seen(call, maker)


def _multiplies_integers(graph: ModelGraph) -> bool:
    """Return whether a graph has integer products that its file expresses by casts."""
    return any(
        node.macs and node.in_dtypes and all(dtype in BYTES for dtype in node.in_dtypes)
        for node in graph.nodes
    )


def _rule_of(run: Run, call: OperatorCall) -> Rule:
    row = operator(call.op)
    if run.training and call.op in TRAINED:
        return TRAINED[call.op]
    if run.training and needs_copy(run, call):
        return copied_first
    if not call.inputs:
        return created
    if call.op in BY_NAME:
        return BY_NAME[call.op]
    if row.kernel in BY_KERNEL:
        return BY_KERNEL[row.kernel]
    if call.op == "transpose" or row.category == "view":
        return viewed
    return pass_over_memory


def _data_flow(sequence: CallSequence) -> tuple[dict[int, OperatorCall], Counter[int]]:
    """Return the call that produces each tensor, and how often each tensor is read."""
    makers = {p: call for call in sequence.calls for p in call.outputs}
    readers = Counter(p for call in sequence.calls for p in call.inputs)
    return makers, readers


def _biased_layer(
    call: OperatorCall,
    sequence: CallSequence,
    makers: dict[int, OperatorCall],
    readers: Counter[int],
) -> OperatorCall | None:
    """Return the layer whose bias a call adds; None if it is another addition."""
    if call.op != "add" or len(call.inputs) != 2:
        return None
    result, other = call.inputs
    if sequence.tensors[result].roots:
        result, other = other, result
    maker, parameter = makers.get(result), sequence.tensors[other]
    if maker is None or not parameter.roots or parameter.is_number:
        return None
    weighted = any(sequence.tensors[p].roots for p in maker.inputs[1:2])
    if maker.op not in _WITH_BIAS or not weighted or maker.path != call.path or readers[result] > 1:
        return None
    shape = sequence.tensors[result].shape
    channels = shape[1 if maker.op.startswith("conv") else -1] if shape else 0
    wide = [size for size in parameter.shape if size != 1]
    return maker if wide == [channels] else None


# Calls of a graph that was not read from a file: one per canonical operator.

_FREE = ("view", "compute")
_PRODUCTS = ("dense", "batch_matmul")
_LOOKUPS = ("embedding", "gather")
"""Operators that read a table, which is their first operand."""


class _CallBuilder:
    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph
        self.tensors: list[Tensor] = []
        self.calls: list[OperatorCall] = []
        self.inputs: list[int] = []
        self.results: list[tuple[int, ...]] = []
        self.producers: list[list[int]] = [[] for _ in graph.nodes]
        for producer, consumer in graph.edges:
            self.producers[consumer].append(producer)

    def sequence(self) -> CallSequence:
        for i, node in enumerate(self.graph.nodes):
            self._add_node(i, node)
        return CallSequence(
            tuple(self.tensors), tuple(self.calls), tuple(self.inputs), self.graph.batch
        )

    def _new_tensor(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _add_node(self, i: int, node: OpNode) -> None:
        given = [p for producer in self.producers[i] for p in self.results[producer]]
        inputs = []
        dtypes = node.in_dtypes or (node.dtype,) * len(node.in_shapes)
        for shape, dtype in zip(node.in_shapes, dtypes, strict=True):
            found = next((p for p in given if self.tensors[p].shape == shape), None)
            if found is None:
                found = self._new_tensor(Tensor(shape, dtype))
                self.inputs.append(found)
            else:
                given.remove(found)
            inputs.append(found)
        if node.param_bytes:
            dtype = dtypes[0] if dtypes and "int8" in dtypes[0] else node.dtype
            size = max(1, node.param_bytes // item_bytes(dtype))
            shape = (size, 1) if node.op in _PRODUCTS else (size,)
            parameter = self._new_tensor(Tensor(shape, dtype, roots=(-1 - i,), is_parameter=True))
            inputs.insert(0 if node.op in _LOOKUPS else len(inputs), parameter)
        steps = _executed_operators(node)
        for op, attributes in steps[:-1]:
            between = self._new_tensor(Tensor(node.out_shapes[0], node.dtype))
            self.calls.append(_call(op, attributes, inputs, (between,), node, i))
            inputs = [between]
        outputs = tuple(self._new_tensor(Tensor(shape, node.dtype)) for shape in node.out_shapes)
        self.calls.append(_call(*steps[-1], inputs, outputs, node, i))
        self.results.append(outputs)


def _call(
    op: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[int],
    outputs: tuple[int, ...],
    node: OpNode,
    i: int,
) -> OperatorCall:
    return OperatorCall(op, attributes, tuple(inputs), outputs, path=node.path, node=i)


def _executed_operators(node: OpNode) -> list[tuple[str, Mapping[str, Any]]]:
    """Return name and attributes of each operator that runs for a node, in execution order.

    A computing operator runs itself and what was folded into it; another one with absorbed
    operators runs these instead.
    """
    if node.attributes.get("copies"):
        how = "contiguous" if node.op == "transpose" else "clone"
        return [(node.op, node.attributes), ("identity", {"copies": how})]
    folded: list[tuple[str, Mapping[str, Any]]] = [
        (op, {})
        for op in node.absorbed
        if not op.startswith(STATIC) and op != "sdpa" and operator(op).category not in _FREE
    ]
    if operator(node.op).category in ("compute", "recurrent"):
        return [(node.op, node.attributes), *(folded if node.op != "attention" else [])]
    return [*folded] or [(node.op, node.attributes)]
