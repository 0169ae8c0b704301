"""TensorFlow `GraphDef` with nested functions → one flat `tf.Graph` with static shapes.

Nothing runs and nothing is restored: variables become placeholders of their shape and dtype, so
weights are neither read nor allocated. Only operations that the outputs depend on are copied, which
excludes savers, initialisers and assertions. Loops and branches are unrolled if possible; see
`control_flow`.
TensorFlow itself infers the shapes during the import of the flat graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import op_def_registry

from dippm.model.relax.raw_graph import InputValue
from dippm.model.relax.tensorflow.control_flow import LOOPS, Unfolder, Unfolding, shape_or_none
from dippm.model.relax.tensorflow.static import list_replacements

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
"""Operators that return their arguments."""
READS = frozenset({"ReadVariableOp"})
CONDITIONS = frozenset({"If", "StatelessIf"})
STALE = frozenset(("output_shapes", kind) for kind in LOOPS)
"""Attributes with shapes from before the batch was bound, which would override loop states."""
TYPES = frozenset({"T", "Index", "dtype", "SrcT", "DstT", "index_type"})
"""Attributes that name a type."""
VARIABLES = frozenset({"Variable", "VariableV2", "TemporaryVariable"})


@dataclass(slots=True)
class FlatGraph:
    """A graph without function calls, and the roles of its tensors.

    Attributes:
        graph: the imported graph, operators in topological order.
        inputs: placeholders of the user inputs.
        parameters: names of the placeholders of variables.
        outputs: results of the model.
        functions: bodies of the remaining loops, by name.
        variables: placeholder of each variable that a loop reads, by handle name.
        notes: remarks on loops and branches, for the user.
    """

    graph: tf.Graph
    inputs: list[tf.Tensor]
    parameters: frozenset[str]
    outputs: list[tf.Tensor]
    functions: Mapping[str, FunctionDef] = field(default_factory=dict)
    variables: Mapping[str, tf.Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Feed:
    """A tensor given from outside, in place of the one that the graph computes.

    Attributes:
        tensor: its name in the main graph, or the name of a function's argument.
        shape: static shape, batch included; None if unknown.
        dtype: TensorFlow's number of the dtype.
        name: the input's name for users; the tensor's own name if empty.
        value: its contents, if it is a known value rather than an input.
    """

    tensor: str
    shape: tuple[int | None, ...] | None
    dtype: int
    name: str = ""
    value: InputValue | None = None


def flatten(
    definition: GraphDef,
    feeds: Sequence[Feed],
    outputs: Sequence[str],
    unfolding: Unfolding | None = None,
) -> FlatGraph:
    """Inline all calls that the outputs depend on, and infer shapes.

    Args:
        definition: main graph and function library.
        feeds: user inputs with their static shapes.
        outputs: names of result tensors in the main graph.
        unfolding: which loops and branches are unrolled; None for none.

    Raises:
        BatchLoopError: if a loop runs once per sample.
        ValueError: if the graph is inconsistent, has an operator unknown to TensorFlow, or does
            not accept the given shapes.
    """
    functions = {f.signature.name: f for f in definition.library.function}
    flattener = _Flattener(functions)
    given = {_full_name(feed.tensor): flattener.feed(feed) for feed in feeds}
    scope = _Scope(definition.node, given, functions, is_function=False)
    results = flattener.inline(scope, "", [_full_name(name) for name in outputs])
    inputs = [given[_full_name(feed.tensor)] for feed in feeds if feed.value is None]
    return flattener.import_nodes(inputs, results, unfolding)


def flatten_function(
    function: FunctionDef,
    functions: Mapping[str, FunctionDef],
    shapes: Sequence[tuple[int | None, ...] | None],
    variables: Mapping[int, NodeDef],
    unfolding: Unfolding | None = None,
) -> FlatGraph:
    """Inline the body of one function, with its arguments as inputs.

    Args:
        function: signature and body.
        functions: functions that the body may call.
        shapes: shape of each argument.
        variables: variable of each argument that is a resource handle.
        unfolding: which loops and branches are unrolled; None for none.
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
    flat = flattener.inline(scope, "", results)
    return flattener.import_nodes(list(given.values()), flat, unfolding)


def updates_variables(definition: GraphDef, outputs: Sequence[str]) -> bool:
    """Return whether the model has states: computing its outputs writes to variables."""
    functions = {f.signature.name: f for f in definition.library.function}
    nodes = {node.name: node for node in definition.node}
    stack, seen = [nodes[name.partition(":")[0]] for name in outputs], set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op.startswith("Assign"):
            return True
        stack.extend(nodes[n] for i in node.input if (n := i.strip("^").partition(":")[0]) in nodes)
        for value in node.attr.values():
            if value.func.name in functions:
                stack.extend(functions[value.func.name].node_def)
    return False


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
        """Return a tensor's canonical name: the argument's own, or "node:position"."""
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
        self.suffixes: Counter[str] = Counter()

    def feed(self, feed: Feed) -> str:
        wanted = feed.name or feed.tensor.partition(":")[0]
        name = self._fresh(
            re.sub(r"^[^A-Za-z0-9.]|[^A-Za-z0-9_.\\/-]", "_", wanted).lstrip("_") or "x"
        )
        if feed.value is None:
            self._placeholder(name, feed.dtype, feed.shape)
            return name + ":0"
        node = self.add(name, "Const", [], dtype=feed.dtype)
        number = tf.constant(feed.value, tf.as_dtype(feed.dtype), feed.shape)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(number))
        return name + ":0"

    def bind_handle(self, handle: str, variable: NodeDef) -> None:
        """Record the variable of an argument that is a handle."""
        named = NodeDef()
        named.CopyFrom(variable)
        named.name = handle.partition(":")[0]
        self.handles[handle] = named

    def inline(self, scope: _Scope, prefix: str, results: Sequence[str]) -> list[str]:
        """Copy the nodes that the results depend on; return the flat names of the results."""
        for node in scope.order(results):
            tensors = [scope.resolved[scope.key(name)] for name in data_inputs(node)]
            for position, tensor in enumerate(self._copy(node, tensors, prefix)):
                scope.resolved[f"{node.name}:{position}"] = tensor
        return [scope.resolved[scope.key(name)] for name in results]

    def _copy(self, node: NodeDef, inputs: list[str], prefix: str) -> list[str]:
        if node.op in CALLS:
            return self.call(node.attr["f"].func.name, inputs, prefix + node.name)
        if node.op in self.functions:
            return self.call(node.op, inputs, prefix + node.name)
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

    def call(self, name: str, inputs: list[str], prefix: str) -> list[str]:
        """Copy the body of a function; return its results."""
        function = self.functions.get(name)
        if function is None:
            raise ValueError(f"the graph calls the function {name!r}, which it does not have")
        arguments = [argument.name for argument in function.signature.input_arg]
        given = dict(zip(arguments, inputs, strict=True))
        scope = _Scope(function.node_def, given, self.functions, is_function=True)
        results = [function.ret[a.name] for a in function.signature.output_arg]
        return self.inline(scope, prefix and prefix + "/", results)

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
        axis = self.constant(name + "/axis", batch_dims)
        values = [self._variable(inputs[0]), inputs[1], axis]
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
        candidate = name
        while candidate in self.nodes:
            self.suffixes[name] += 1
            candidate = f"{name}_{self.suffixes[name]}"
        return candidate

    def import_nodes(
        self, inputs: Sequence[str], outputs: Sequence[str], unfolding: Unfolding | None = None
    ) -> FlatGraph:
        """Import the copied nodes, with shapes inferred by TensorFlow."""
        unfolder = Unfolder(self, unfolding) if unfolding else None
        results = list(outputs)
        while True:
            graph = self._import()
            if self._sharpen(graph):
                continue
            replaced = self._unroll(graph, unfolder) if unfolder else {}
            if not replaced:
                break
            results = [_final(name, replaced) for name in results]
            self._replace(replaced)
            self._prune([*inputs, *results])
        return FlatGraph(
            graph,
            [graph.get_tensor_by_name(name) for name in inputs],
            frozenset(self.parameters),
            [graph.get_tensor_by_name(name) for name in results],
            self.functions,
            {
                handle.partition(":")[0]: graph.get_tensor_by_name(value)
                for handle, value in self.read_by_loops.items()
                if value.partition(":")[0] in self.nodes
            },
            tuple(unfolder.notes.values()) if unfolder else (),
        )

    def _import(self) -> tf.Graph:
        definition = GraphDef(node=self.nodes.values())
        definition.versions.producer = tf.version.GRAPH_DEF_VERSION
        for name in _loop_functions(self.nodes.values()):
            definition.library.function.add().CopyFrom(_without_shapes(self.functions[name]))
        return _import(definition)

    def _unroll(self, graph: tf.Graph, unfolder: Unfolder) -> dict[str, str]:
        lists = list_replacements(graph, self)
        return lists or unfolder.round(graph)

    def _replace(self, replaced: Mapping[str, str]) -> None:
        for node in self.nodes.values():
            for i, name in enumerate(node.input):
                if name in replaced:
                    node.input[i] = _final(name, replaced)

    def _prune(self, tensors: Sequence[str]) -> None:
        """Drop the nodes that these tensors do not depend on."""
        needed: set[str] = set()
        stack = [name.partition(":")[0] for name in tensors]
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack.extend(i.partition(":")[0] for i in self.nodes[name].input)
                stack.extend(
                    value.partition(":")[0]
                    for i in self.nodes[name].input
                    if (value := self.read_by_loops.get(i))
                )
        self.nodes = {name: node for name, node in self.nodes.items() if name in needed}

    def _sharpen(self, graph: tf.Graph) -> bool:
        """Add shapes that TensorFlow loses at loops and branches, one round; return whether any."""
        sharpened = False
        for operation in graph.get_operations():
            known = all(t.shape.is_fully_defined() for t in operation.outputs)
            if known or operation.name in self.sharpened:
                continue
            if operation.type == "TensorListStack":
                done = self._sharpen_list(operation)
            else:
                done = operation.type in CONDITIONS and self._sharpen_branch(operation)
            if done:
                self.sharpened.add(operation.name)
                sharpened = True
        return sharpened

    def _sharpen_list(self, stack: tf.Operation) -> bool:
        """Set the element shape of a recurrent layer's list to that of its state."""
        element = stack.outputs[0].shape[1:]
        for state in stack.inputs[0].op.inputs:
            fits = state.shape.is_fully_defined() and state.shape.is_compatible_with(element)
            if fits and state.dtype.is_floating and state.shape.rank:
                size = self.constant(stack.name + "/element", state.shape.as_list())
                self.nodes[stack.name].input[1] = size
                return True
        return False

    def _sharpen_branch(self, branch: tf.Operation) -> bool:
        """Set the shapes of a condition's results to those of its first branch."""
        given = branch.inputs[1:]
        name = branch.get_attr("then_branch").name
        if name not in self.functions or not all(t.shape.is_fully_defined() for t in given):
            return False
        body = self.body(name, given, [shape_or_none(t) for t in given])
        found = self.nodes[branch.name].attr["output_shapes"].list
        del found.shape[:]
        found.shape.extend(t.shape.as_proto() for t in body.outputs)
        return True

    def body(
        self,
        name: str,
        given: Sequence[tf.Tensor],
        shapes: Sequence[tuple[int | None, ...] | None],
        unfolding: Unfolding | None = None,
    ) -> FlatGraph:
        """Flatten a function separately, for arguments of these shapes."""
        function = self.functions.get(name)
        if function is None:
            raise ValueError(f"the graph calls the function {name!r}, which it does not have")
        handles = {i: self.handles[t.name] for i, t in enumerate(given) if t.name in self.handles}
        return flatten_function(function, self.functions, shapes, handles, unfolding)

    def add(self, wanted: str, op: str, inputs: Sequence[str], **attributes: int) -> NodeDef:
        """Add a node with integer (or type) attributes; return it."""
        node = NodeDef(name=self._fresh(wanted), op=op, input=inputs)
        for key, value in attributes.items():
            if key in TYPES:
                node.attr[key].type = value
            else:
                node.attr[key].i = value
        self.nodes[node.name] = node
        return node

    def constant(self, wanted: str, value: int | list[int]) -> str:
        """Add an int32 constant; return the name of its tensor."""
        node = self.add(wanted, "Const", [], dtype=tf.int32.as_datatype_enum)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
        return str(node.name) + ":0"


def _final(name: str, replaced: Mapping[str, str]) -> str:
    while name in replaced:
        name = replaced[name]
    return name


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
    """Return a function without its body: the import only checks that it exists."""
    stub = FunctionDef()
    stub.CopyFrom(function)
    for node in stub.node_def:
        for key in [key for key in node.attr if key.startswith("_")]:
            del node.attr[key]
    return stub
