"""TensorFlow `GraphDef` with nested functions → one flat `tf.Graph` with static shapes.

Nothing is run and nothing is restored: variables become placeholders of their shape and dtype, so
a model's weights are neither read nor allocated. Only what the outputs depend on is copied, which
leaves savers, initialisers and assertions behind. Loops stay whole; see `recurrent`.
TensorFlow itself infers the shapes while the flat graph is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import op_def_registry

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
ALIASES = frozenset(
    (
        "Identity",
        "IdentityN",
        "StopGradient",
        "PreventGradient",
        "CheckNumerics",
        "CheckNumericsV2",
        "Snapshot",
        "EnsureShape",
        "PlaceholderWithDefault",
        "ReadOnce",
    )
)
"""Operators that pass their arguments on."""
READS = frozenset({"ReadVariableOp"})
BRANCHES = frozenset({"If", "StatelessIf"})
STALE = frozenset(("output_shapes", kind) for kind in ("While", "StatelessWhile"))
"""Shapes of before the batch was bound; without them a loop's states keep their own shapes."""
VARIABLES = frozenset({"Variable", "VariableV2", "TemporaryVariable"})


@dataclass(slots=True)
class FlatGraph:
    """A graph without calls, and which of its tensors are what.

    Attributes:
        graph: the imported graph, every operator in topological order.
        inputs: placeholders of the user inputs.
        parameters: names of placeholders that stand for variables.
        outputs: the results.
        functions: bodies of the loops that stayed, by name.
        variables: placeholder of each variable that a loop reads, by the name of its handle.
    """

    graph: tf.Graph
    inputs: list[tf.Tensor]
    parameters: frozenset[str]
    outputs: list[tf.Tensor]
    functions: Mapping[str, FunctionDef] = field(default_factory=dict)
    variables: Mapping[str, tf.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Feed:
    """A tensor that is given from outside, in place of what the graph computes for it.

    Attributes:
        tensor: its name in the main graph, or the name of a function's argument.
        shape: static shape, batch included; None if unknown.
        dtype: TensorFlow's number of the dtype.
        name: what users call the input; the tensor's own name if empty.
    """

    tensor: str
    shape: tuple[int | None, ...] | None
    dtype: int
    name: str = ""


def flatten(definition: GraphDef, feeds: Sequence[Feed], outputs: Sequence[str]) -> FlatGraph:
    """Inline every call that the outputs depend on, and infer shapes.

    Args:
        definition: main graph and function library.
        feeds: user inputs with their static shapes.
        outputs: names of result tensors in the main graph.

    Raises:
        ValueError: if the graph is inconsistent, has an operator that TensorFlow does not know,
            or does not accept the shapes that are fed.
    """
    functions = {f.signature.name: f for f in definition.library.function}
    flattener = _Flattener(functions)
    given = {_full_name(feed.tensor): flattener.feed(feed) for feed in feeds}
    scope = _Scope(definition.node, given, functions, is_function=False)
    results = flattener.inline(scope, "", [_full_name(name) for name in outputs])
    return flattener.imported(list(given.values()), results)


def flatten_function(
    function: FunctionDef,
    functions: Mapping[str, FunctionDef],
    shapes: Sequence[tuple[int | None, ...] | None],
    variables: Mapping[int, NodeDef],
) -> FlatGraph:
    """Inline the body of one function; its arguments become the inputs.

    Args:
        function: signature and body.
        functions: what the body may call.
        shapes: of each argument.
        variables: the variable behind each argument that is a resource handle.
    """
    flattener = _Flattener(functions)
    given = {}
    for i, (argument, shape) in enumerate(zip(function.signature.input_arg, shapes, strict=True)):
        feed = Feed(argument.name + ":0", shape, argument.type)
        given[argument.name] = flattener.feed(feed)
        if i in variables:
            flattener.bind_handle(given[argument.name], variables[i])
    scope = _Scope(function.node_def, given, functions, is_function=True)
    results = [function.ret[a.name] for a in function.signature.output_arg]
    return flattener.imported(list(given.values()), flattener.inline(scope, "", results))


class _Scope:
    """The nodes of a main graph or of a function body, by name."""

    def __init__(
        self,
        nodes: Sequence[NodeDef],
        given: dict[str, str],
        functions: Mapping[str, FunctionDef],
        *,
        is_function: bool,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.resolved = dict(given)
        self.functions = functions
        self.is_function = is_function

    def node_of(self, tensor: str) -> NodeDef:
        name = tensor.partition(":")[0]
        if name not in self.nodes:
            raise ValueError(f"the graph refers to {name!r}, which it does not have")
        return self.nodes[name]

    def key(self, tensor: str) -> str:
        """Return a tensor's name in its one spelling: the argument's own, or "node:position"."""
        if not self.is_function:
            return _full_name(tensor)
        name, *rest = tensor.split(":")
        if not rest:
            return name
        if len(rest) == 1:
            return tensor
        node = self.node_of(tensor)
        return f"{name}:{self._offset(node, rest[0]) + int(rest[1])}"

    def _offset(self, node: NodeDef, output: str) -> int:
        function = self.functions.get(node.op)
        signature = function.signature if function else op_def_registry.get(node.op)
        if signature is None:
            raise ValueError(f"TensorFlow does not know the operator {node.op!r} ({node.name})")
        position = 0
        for argument in signature.output_arg:
            if argument.name == output:
                return position
            position += _count(argument, node)
        raise ValueError(f"{node.op} has no output {output!r}")

    def order(self, tensors: Sequence[str]) -> Iterator[NodeDef]:
        """Yield the nodes that the tensors depend on, producers first."""
        done: set[str] = set()
        stack: list[tuple[NodeDef, bool]] = [
            (self.node_of(t), False) for t in reversed(tensors) if self.key(t) not in self.resolved
        ]
        open_nodes: set[str] = set()
        while stack:
            node, expanded = stack.pop()
            if node.name in done:
                continue
            if expanded:
                done.add(node.name)
                open_nodes.discard(node.name)
                yield node
                continue
            if node.name in open_nodes:
                raise ValueError(
                    f"a loop of the first TensorFlow generation goes through {node.name!r}"
                )
            open_nodes.add(node.name)
            stack.append((node, True))
            for name in reversed(data_inputs(node)):
                if self.key(name) not in self.resolved:
                    producer = self.node_of(name)
                    if producer.name not in done:
                        stack.append((producer, False))


class _Flattener:
    def __init__(self, functions: Mapping[str, FunctionDef]) -> None:
        self.functions = functions
        self.nodes: dict[str, NodeDef] = {}
        self.handles: dict[str, NodeDef] = {}
        self.parameters: set[str] = set()
        self.read_by_loops: dict[str, str] = {}
        self.sharpened: set[str] = set()

    def feed(self, feed: Feed) -> str:
        wanted = feed.name or feed.tensor.partition(":")[0]
        name = self._fresh(
            re.sub(r"^[^A-Za-z0-9.]|[^A-Za-z0-9_.\\/-]", "_", wanted).lstrip("_") or "x"
        )
        self._placeholder(name, feed.dtype, feed.shape)
        return name + ":0"

    def bind_handle(self, handle: str, variable: NodeDef) -> None:
        """Say which variable an argument is the handle of."""
        named = NodeDef()
        named.CopyFrom(variable)
        named.name = handle.partition(":")[0]
        self.handles[handle] = named

    def inline(self, scope: _Scope, prefix: str, results: Sequence[str]) -> list[str]:
        """Copy what the results depend on; return their flat names."""
        for node in scope.order(results):
            tensors = [scope.resolved[scope.key(name)] for name in data_inputs(node)]
            for position, tensor in enumerate(self._copy(node, tensors, prefix)):
                scope.resolved[f"{node.name}:{position}"] = tensor
        return [scope.resolved[scope.key(name)] for name in results]

    def _copy(self, node: NodeDef, inputs: list[str], prefix: str) -> list[str]:
        if node.op in CALLS:
            return self._call(node.attr["f"].func.name, inputs, prefix + node.name)
        if node.op in self.functions:
            return self._call(node.op, inputs, prefix + node.name)
        if node.op in ALIASES and inputs:
            return inputs
        if node.op in READS:
            return [self._variable(inputs[0])]
        if node.op in VARIABLES:
            return [self._parameter(prefix + node.name, node)]
        if node.op == "ResourceGather":
            return [self._gather(node, inputs, prefix)]
        for handle in inputs:
            if handle in self.handles:
                self.read_by_loops[handle] = self._variable(handle)
        copied = self._plain(node, inputs, prefix)
        if node.op == "VarHandleOp":
            self.handles[copied.name + ":0"] = copied
        return [f"{copied.name}:{i}" for i in range(_output_count(copied))]

    def _call(self, name: str, inputs: list[str], prefix: str) -> list[str]:
        function = self.functions.get(name)
        if function is None:
            raise ValueError(f"the graph calls the function {name!r}, which it does not have")
        arguments = [argument.name for argument in function.signature.input_arg]
        given = dict(zip(arguments, inputs, strict=True))
        scope = _Scope(function.node_def, given, self.functions, is_function=True)
        results = [function.ret[a.name] for a in function.signature.output_arg]
        return self.inline(scope, prefix + "/", results)

    def _plain(self, node: NodeDef, inputs: list[str], prefix: str) -> NodeDef:
        copied = NodeDef(name=self._fresh(prefix + node.name), op=node.op, input=inputs)
        for key, value in node.attr.items():
            if not key.startswith("_") and (key, node.op) not in STALE:
                copied.attr[key].CopyFrom(value)
        if node.op == "Placeholder":
            self.parameters.add(copied.name)
        self.nodes[copied.name] = copied
        return copied

    def _variable(self, handle: str) -> str:
        """Return the placeholder for the value behind a resource handle."""
        node = self.handles.get(handle)
        if node is None:
            source = self.nodes[handle.partition(":")[0]]
            raise ValueError(f"a variable is read through {source.op!r} ({source.name})")
        return self._parameter(node.name + "/value", node)

    def _parameter(self, name: str, variable: NodeDef) -> str:
        if name not in self.nodes:
            shape = variable.attr["shape"].shape
            sizes = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
            self._placeholder(name, variable.attr["dtype"].type, sizes)
            self.parameters.add(name)
        return name + ":0"

    def _gather(self, node: NodeDef, inputs: list[str], prefix: str) -> str:
        name = self._fresh(prefix + node.name)
        batch_dims = node.attr["batch_dims"].i
        axis = self._constant(name + "/axis", batch_dims)
        values = [self._variable(inputs[0]), inputs[1], axis + ":0"]
        gather = NodeDef(name=name, op="GatherV2", input=values)
        gather.attr["Tparams"].type = node.attr["dtype"].type
        gather.attr["Tindices"].type = node.attr["Tindices"].type
        gather.attr["Taxis"].type = tf.int32.as_datatype_enum
        gather.attr["batch_dims"].i = batch_dims
        self.nodes[name] = gather
        return name + ":0"

    def _placeholder(self, name: str, dtype: int, shape: tuple[int | None, ...] | None) -> None:
        node = NodeDef(name=name, op="Placeholder")
        node.attr["dtype"].type = dtype
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
        self.nodes[name] = node

    def _fresh(self, name: str) -> str:
        candidate, suffix = name, 0
        while candidate in self.nodes:
            suffix += 1
            candidate = f"{name}_{suffix}"
        return candidate

    def imported(self, inputs: Sequence[str], outputs: Sequence[str]) -> FlatGraph:
        """Import the copied nodes; TensorFlow infers their shapes."""
        definition = GraphDef(node=self.nodes.values())
        definition.versions.producer = tf.version.GRAPH_DEF_VERSION
        for name in _loop_functions(self.nodes.values()):
            definition.library.function.add().CopyFrom(_without_shapes(self.functions[name]))
        graph = _import(definition)
        while self._sharpen(graph):
            del definition.node[:]
            definition.node.extend(self.nodes.values())
            graph = _import(definition)
        return FlatGraph(
            graph,
            [graph.get_tensor_by_name(name) for name in inputs],
            frozenset(self.parameters),
            [graph.get_tensor_by_name(name) for name in outputs],
            self.functions,
            {
                handle.partition(":")[0]: graph.get_tensor_by_name(value)
                for handle, value in self.read_by_loops.items()
            },
        )

    def _sharpen(self, graph: tf.Graph) -> bool:
        """Complete one round of shapes that TensorFlow forgets at loops and branches."""
        sharpened = False
        for operation in graph.get_operations():
            known = all(t.shape.is_fully_defined() for t in operation.outputs)
            if known or operation.name in self.sharpened:
                continue
            if operation.type == "TensorListStack":
                done = self._sharpen_list(operation)
            else:
                done = operation.type in BRANCHES and self._sharpen_branch(operation)
            if done:
                self.sharpened.add(operation.name)
                sharpened = True
        return sharpened

    def _sharpen_list(self, stack: tf.Operation) -> bool:
        """The elements that a recurrent layer writes are as large as its state."""
        element = stack.outputs[0].shape[1:]
        for state in stack.inputs[0].op.inputs:
            fits = state.shape.is_fully_defined() and state.shape.is_compatible_with(element)
            if fits and state.dtype.is_floating and state.shape.rank:
                size = self._constant(stack.name + "/element", state.shape.as_list())
                self.nodes[stack.name].input[1] = size + ":0"
                return True
        return False

    def _sharpen_branch(self, branch: tf.Operation) -> bool:
        """The results of a condition are as large as those of its first branch."""
        given = branch.inputs[1:]
        function = self.functions.get(branch.get_attr("then_branch").name)
        if function is None or not all(t.shape.is_fully_defined() for t in given):
            return False
        shapes = [tuple(t.shape.as_list()) for t in given]
        handles = {i: self.handles[t.name] for i, t in enumerate(given) if t.name in self.handles}
        body = flatten_function(function, self.functions, shapes, handles)
        found = self.nodes[branch.name].attr["output_shapes"].list
        del found.shape[:]
        found.shape.extend(t.shape.as_proto() for t in body.outputs)
        return True

    def _constant(self, name: str, value: int | list[int]) -> str:
        """Add an int32 constant; return its name. It stands first: others may read it."""
        node = NodeDef(name=self._fresh(name), op="Const")
        node.attr["dtype"].type = tf.int32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
        self.nodes = {node.name: node, **self.nodes}
        return str(node.name)


def _import(definition: GraphDef) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    return graph


def data_inputs(node: NodeDef) -> list[str]:
    """Return the inputs of a node without control dependencies."""
    return [name for name in node.input if not name.startswith("^")]


def _full_name(tensor: str) -> str:
    return tensor if ":" in tensor else tensor + ":0"


def _count(argument: Any, node: NodeDef) -> int:
    if argument.number_attr:
        return int(node.attr[argument.number_attr].i)
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return 1


def _output_count(node: NodeDef) -> int:
    signature = op_def_registry.get(node.op)
    if signature is None:
        raise ValueError(f"TensorFlow does not know the operator {node.op!r} ({node.name})")
    return sum(_count(argument, node) for argument in signature.output_arg)


def _loop_functions(nodes: Any) -> set[str]:
    return {value.func.name for node in nodes for value in node.attr.values() if value.func.name}


def _without_shapes(function: FunctionDef) -> FunctionDef:
    """Return a function's signature alone: import only asks whether it exists."""
    stub = FunctionDef()
    stub.CopyFrom(function)
    for node in stub.node_def:
        for key in [key for key in node.attr if key.startswith("_")]:
            del node.attr[key]
    return stub
