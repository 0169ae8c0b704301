"""Data structures and interface of a trace of an ONNX graph.

A `Trace` consists of `Tensor`s and `TracedStep`s. Handlers of operators see the tracer as
`Tracing`. A `Block` is a graph or inner graph of the file, parsed once; `path_of` finds the module
that an operator belongs to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dippm.errors import ConversionError, ModelFileError
from dippm.model.relax.onnx.fold import NUMPY_TYPES, Array

MAX_KNOWN_ELEMENTS = 1024
"""Maximum number of elements of a tensor with known contents; larger ones are weights or tables."""

MAX_SIZES = 16
"""Maximum length of a list of sizes or axes."""

DEFAULT_DOMAINS = ("", "ai.onnx")
SIZE_TYPES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
"""Types of sizes, axes and indices; small tensors of other types are weights."""


class ShapeMismatchError(Exception):
    """Sizes do not fit at an operator."""


class BatchFixedError(ShapeMismatchError):
    """The graph cannot have another batch: an inner size fixes it."""


class BatchIsTimeError(ShapeMismatchError):
    """The assumed batch is the time axis of a recurrent layer."""


class UnsupportedError(Exception):
    """An operator has no static result."""

    def __init__(self, node: onnx.NodeProto, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.node, self.why, self.hint = node, why, hint

    def to_conversion_error(self, model: onnx.ModelProto) -> ConversionError:
        """Return the error for the user, with the number of such operators."""
        node = self.node
        count = sum((n.op_type, n.domain) == (node.op_type, node.domain) for n in model.graph.node)
        domain = f"{node.domain}." if node.domain not in DEFAULT_DOMAINS else ""
        times = f", {count} of them in the model" if count > 1 else ""
        result = next(iter(node.output), "")
        return ConversionError(
            f"ONNX operator {domain}{node.op_type} (node {node.name!r}, result {result!r}{times}): "
            + self.why,
            self.hint
            or "Simplify the model with onnxsim, or export it with static sizes; a shape rule for "
            "the operator can be added in dippm/model/relax/onnx/infer.py.",
        )


@dataclass(slots=True)
class Tensor:
    """A value of a trace with its static shape.

    Attributes:
        name: unique name in the graph.
        shape: static sizes.
        element_type: ONNX tensor type.
        data: contents if they are small and known, else None.
        is_learned: whether it is a weight, or computed from weights only.
        is_parameter: whether it is stored in the file as a weight.
        producer: step that computes it; None for inputs and stored tensors.
    """

    name: str
    shape: tuple[int, ...]
    element_type: int
    data: Array | None = None
    is_learned: bool = False
    is_parameter: bool = False
    producer: TracedStep | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant rather than a weight or an unknown result."""
        return self.data is not None and not self.is_learned


@dataclass(slots=True, eq=False)
class TracedStep:
    """One operator in a trace.

    Attributes:
        operator: ONNX name of the operator.
        name: name of the node in the file.
        opset: opset version of its domain.
        inputs: values in argument order; None for an absent optional one.
        input_names: formal names of the arguments.
        outputs: results; None for an omitted one.
        attributes: attributes as Python values.
        path: path of its module, "" if unknown.
    """

    operator: str
    name: str
    opset: int
    inputs: list[Tensor | None]
    input_names: list[str]
    outputs: list[Tensor | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    path: str = ""


@dataclass(slots=True)
class Trace:
    """A graph with static shapes.

    Attributes:
        inputs: user inputs in the order of the file.
        steps: the operators that the outputs depend on, producers first.
        outputs: results of the graph.
        shapes: shape of every named value, for comparison with another trace.
        notes: assumptions, for the user.
    """

    inputs: list[Tensor]
    steps: list[TracedStep]
    outputs: list[Tensor]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def stored_tensor(tensor: onnx.TensorProto) -> Tensor:
    """Return a stored tensor, with its contents if they are small and available."""
    shape = tuple(int(size) for size in tensor.dims)
    if any(size < 0 for size in shape):
        raise malformed_error(f"ONNX tensor {tensor.name!r} has a negative size")
    size = prod(shape)
    data = None
    if _has_contents(tensor, size):
        try:
            data = _as_numpy(numpy_helper.to_array(tensor), tensor.data_type)
        except Exception as error:
            raise ModelFileError(
                f"ONNX tensor {tensor.name!r} cannot be read: {error}",
                "The file is damaged; export it again.",
            ) from error
    is_weight = data is None or (size > 1 and tensor.data_type not in SIZE_TYPES)
    return Tensor(
        tensor.name, shape, tensor.data_type, data, is_learned=is_weight, is_parameter=is_weight
    )


def _as_numpy(data: Array, element_type: int) -> Array | None:
    """Return data in a NumPy type, bfloat16 as float32; None for floats of less than 16 bits."""
    if element_type == TensorProto.BFLOAT16:
        bits = data.astype(np.uint16) if data.dtype.fields else data.view(np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return data if element_type in NUMPY_TYPES else None


def _has_contents(tensor: onnx.TensorProto, size: int) -> bool:
    return size <= MAX_KNOWN_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL


def constant(node: onnx.NodeProto) -> Tensor:
    """Return the tensor of a `Constant` node.

    Raises:
        UnsupportedError: if the constant is sparse or text.
    """
    name, attribute = node.output[0], node.attribute[0]
    if attribute.name == "sparse_value":
        raise UnsupportedError(node, "sparse constants are not supported")
    if attribute.name.startswith("value_string"):
        raise UnsupportedError(node, "it is text", TEXT_HINT)
    value = plain_attribute(attribute)
    if isinstance(value, onnx.TensorProto):
        tensor = stored_tensor(value)
        tensor.name = name
        return tensor
    is_float = attribute.name in ("value_float", "value_floats")
    data = np.asarray(value, np.float32 if is_float else np.int64)
    return Tensor(name, data.shape, TensorProto.FLOAT if is_float else TensorProto.INT64, data)


TEXT_HINT = "Cut preprocessing of text out of the model before the export."


def plain_attribute(attribute: onnx.AttributeProto) -> Any:
    """Return an attribute as Python values."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.GraphProto | onnx.TensorProto | int | float):
        return value
    try:
        items = list(value)
    except TypeError:
        return None
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in items]


def malformed_error(what: str) -> ModelFileError:
    """Return the error for a graph that violates the ONNX standard."""
    return ModelFileError(
        what, "Check the file with onnx.checker.check_model, or export it again: it is damaged."
    )


def message_start(node: onnx.NodeProto) -> str:
    """Return the start of a message about a node."""
    return f"operator {node.op_type} {node.name!r}: "


def may_be_sizes(tensor: Tensor, marker: int) -> bool:
    """Return whether an input may contain sizes, axes or a switch rather than data."""
    if prod(tensor.shape) == 1 or tensor.shape == (marker,):
        return True
    is_list = len(tensor.shape) == 1 and tensor.shape[0] <= MAX_SIZES
    return is_list and tensor.element_type in (TensorProto.INT64, TensorProto.INT32)


def how_to_give_values(inputs: Sequence[Tensor]) -> str:
    """Return a hint with an example of how to specify the values of these inputs."""
    ordered = sorted(inputs, key=lambda t: t.name)
    text = ";".join(f"{t.name}=value:{_example(t)}" for t in ordered)
    return f'Say what it holds, for instance input="{text}" beside the sizes of other inputs.'


def _example(tensor: Tensor) -> str:
    count = prod(tensor.shape)
    return "16000" if not 1 < count <= MAX_SIZES else ",".join(map(str, range(1, count + 1)))


class Tracing(Protocol):
    """The methods of `trace.Tracer` that handlers of operators use."""

    marker: int
    values: dict[str, Tensor]
    lists: dict[str, list[Tensor]]
    steps: list[TracedStep]
    notes: dict[str, None]

    def walk(self, block: Block) -> None:
        """Trace the nodes of a block; names that they write stay visible."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Hide names of the block afterwards; `name` distinguishes runs of the same block."""

    def write(self, name: str, value: Tensor | list[Tensor]) -> None:
        """Bind a name to a tensor or a sequence."""

    def read(self, name: str, reader: str) -> Tensor | None:
        """Return the tensor bound to a name; None for an absent optional argument."""

    def need(self, node: onnx.NodeProto, position: int) -> Tensor:
        """Return a required argument."""

    def apply(
        self, operator: str, inputs: Sequence[Tensor | None], name: str, **attributes: Any
    ) -> Tensor:
        """Trace an operator that is not in the file; return its only result."""

    def apply_all(
        self,
        operator: str,
        inputs: Sequence[Tensor | None],
        name: str,
        count: int,
        **attributes: Any,
    ) -> list[Tensor]:
        """Trace an operator that is not in the file; return its results."""

    def opset(self) -> int:
        """Return the opset version of the operators that `apply` adds."""

    def is_read(self, name: str) -> bool:
        """Return whether an operator or the model's results read a name."""

    def note(self, text: str) -> None:
        """Add a note on an assumption."""

    def open_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs that tensors depend on and that may contain sizes or axes."""


# Blocks: a loop traces its body once per iteration, so a graph is parsed once for all of them.


class Block:
    """The nodes of one graph with their attributes, and its stored tensors.

    Attributes:
        graph: graph as it is in the file.
        nodes: nodes with their attributes as Python values; inner graphs as blocks.
        stored: initializers and constants by name.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.stored: dict[str, Tensor] = {t.name: stored_tensor(t) for t in graph.initializer}
        for sparse in graph.sparse_initializer:
            self.stored[sparse.values.name] = Tensor(
                sparse.values.name,
                tuple(sparse.dims),
                sparse.values.data_type,
                is_learned=True,
                is_parameter=True,
            )
        self.nodes: list[tuple[onnx.NodeProto, dict[str, Any]]] = []
        for node in graph.node:
            if node.op_type == "Constant" and node.output and node.attribute:
                self.stored[node.output[0]] = constant(node)
            else:
                attributes = {a.name: plain_attribute(a) for a in node.attribute}
                self.nodes.append((node, {k: _parse_inner_graph(v) for k, v in attributes.items()}))

    def count(self) -> int:
        """Return the number of operators, including inner graphs."""
        inner = (v for _, a in self.nodes for v in a.values() if isinstance(v, Block))
        return len(self.nodes) + sum(block.count() for block in inner)

    def names_read(self) -> set[str]:
        """Return the names that operators or results read, including inner graphs."""
        names = {value.name for value in self.graph.output}
        for node, attributes in self.nodes:
            names.update(node.input)
            for value in attributes.values():
                if isinstance(value, Block):
                    names |= value.names_read()
        return names


def _parse_inner_graph(value: Any) -> Any:
    return Block(value) if isinstance(value, onnx.GraphProto) else value


# The module path of an operator, from the hints that exporters leave.
#
# PyTorch's exporter writes scopes into the node's metadata; its predecessor put them in the node's
# name ("/layer1/layer1.0/conv1/Conv"); before that only weights had them ("layer1.0.conv1.weight").
# Other exporters name nodes by their own rules, and that name is the path.


SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata key of the scopes of a node."""
REWRITTEN = "pkg.onnxscript.rewriter.rule_name"
"""Metadata key of merged operators, which have the scope of the last one: a convolution that is
merged with a normalisation has the scope of the normalisation."""
LONGEST_NAME = 4096
"""Maximum length of a name that is parsed."""
_WEIGHT = re.compile(r"(.+)\.(weight|bias|running_mean|running_var|[wb]_\d+)")
"""Names of a layer's weights in PyTorch and Paddle ("conv2d_0.w_0")."""


def path_of(node: onnx.NodeProto, weights: Sequence[str]) -> str:
    """Return the path of a node's module; "" if it is unknown.

    Of an operator that TensorFlow Lite's converter fused, which it names by all its parts
    ("conv/Relu;conv/BiasAdd"), it is the first.

    Args:
        node: the operator's node.
        weights: names of the stored tensors among its inputs.
    """
    noted = {entry.key: entry.value for entry in node.metadata_props}
    owners = [owner[1] for weight in weights if (owner := _WEIGHT.fullmatch(weight))]
    if SCOPES in noted and not (REWRITTEN in noted and owners):
        return _from_metadata(noted[SCOPES])
    name = str(node.name)
    if len(name) > LONGEST_NAME:
        return name
    own = rf"{re.escape(node.op_type)}(_\d+)?"
    if name.startswith("/") and re.fullmatch(own, name.rpartition("/")[2]):
        return _join_scopes(name.strip("/").split("/")[:-1])
    return owners[0] if owners else name.partition(";")[0]


def _from_metadata(text: str) -> str:
    """Read "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']": the last is the operator."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2:
        return ""
    return str(scopes[-2])


def _join_scopes(scopes: Sequence[str]) -> str:
    """Join scopes, dropping the repeated parent in "layer1", "layer1.0"."""
    path: list[str] = []
    for scope in scopes:
        parts = scope.split(".")
        repeated = next((n for n in range(len(parts) - 1, 0, -1) if path[-n:] == parts[:n]), 0)
        if not all(part.isdigit() for part in parts[repeated:]):
            repeated = 0
        path += parts[repeated:]
    return ".".join(path)
