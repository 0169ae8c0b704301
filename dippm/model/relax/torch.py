"""Exported PyTorch program → Relax, without reading parameters and without decomposition.

Operators that TVM's importer lacks, decomposes or fails on are carried as opaque calls (see
`carried`), with the shapes that `torch.export` propagated. So no decomposition is needed, which
would take most of the time and could give two graphs of one model. The overridden hooks are private
to TVM, hence its pinned version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import tvm
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from dippm.errors import ConversionError
from dippm.model.relax.carried import (
    COMPLEX,
    PathBuilder,
    opaque_call,
    with_execution,
    with_lifetimes,
    with_paths,
)
from dippm.model.relax.raw_graph import STEP, UNTIL, Attribute, Lifetime
from dippm.model.relax.torch_programs import decompose_composites, is_foreign, with_data_flow

Converter = Callable[[Node], Any]

BROKEN_APART_BY_TVM = frozenset(
    """
    hardswish hardsigmoid hardtanh relu6 elu celu selu softplus mish prelu glu log_sigmoid
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu rms_norm instance_norm group_norm
    upsample_bilinear2d upsample_nearest2d upsample_bicubic2d upsample_nearest1d
    upsample_nearest3d upsample_trilinear3d roll pixel_shuffle pixel_unshuffle
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
    index cumsum einsum linalg_vector_norm clamp clamp_min clamp_max std var
    """.split()
)

COPIES = frozenset("clone contiguous copy copy_".split())
"""Operators that TVM drops because they compute nothing, but that copy memory in eager mode."""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


class TorchBuilder(PathBuilder):
    """A block builder that gives products the type of their arguments, as PyTorch does.

    TVM's converters always request float32.
    """

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a variable."""
        return super().emit(_with_own_dtype(expr), name_hint)

    def emit_all_or_none(self, convert: Converter, node: Node) -> Any:
        """Return a converter's result for a node; emit nothing if the converter raises.

        A converter that fails halfway has already emitted its first operators, such as a product
        without its bias. They would be counted in addition to the opaque call.
        """
        self._begin_dataflow_block()
        result, failed = None, True
        try:
            result, failed = convert(node), False
        finally:
            block = self._end_block()
            for binding in () if failed else block.bindings:
                self.emit_normalized(binding)
        return result


def _with_own_dtype(expr: relax.Expr) -> relax.Expr:
    """Return a call with its products, nested ones included, in the type of their arguments."""
    if not isinstance(expr, tvm.ir.Call):
        return expr
    arguments = [_with_own_dtype(argument) for argument in expr.args]
    attributes, asked = expr.attrs, getattr(expr.attrs, "out_dtype", None)
    own = _dtype_of(expr) if asked else ""
    if own and own != str(asked):
        info = type(attributes).__tvm_ffi_type_info__
        kept = {field.name: getattr(attributes, field.name) for field in info.fields}
        attributes = tvm.ir.make_node(info.type_key, **{**kept, "out_dtype": own})
    elif all(new is old for new, old in zip(arguments, expr.args, strict=True)):
        return expr
    return tvm.ir.Call(expr.op, arguments, attributes, expr.ty_args)


def _dtype_of(expr: relax.Expr) -> str:
    """Return the type of an expression; for an unbound call that of its arguments."""
    if isinstance(expr.ty, relax.TensorType):
        return str(expr.ty.dtype)
    arguments = expr.args if isinstance(expr, tvm.ir.Call) else ()
    return next((dtype for dtype in map(_dtype_of, arguments) if dtype), "")


class ShapeOnlyImporter(ExportedProgramImporter):
    """Imports an exported program without reading parameter data."""

    def import_program(
        self,
        program: torch.export.ExportedProgram,
        is_read: Callable[[str], bool] = lambda name: True,
    ) -> tvm.IRModule:
        """Return the Relax module; parameters stay inputs of its function "main".

        Args:
            program: exported program; changed in place.
            is_read: whether opaque calls of a name, such as "aten.hardswish", have a meaning;
                composite operators unknown to it and to TVM are decomposed.
        """
        program = with_data_flow(program)
        decompose_composites(
            program,
            lambda node: (
                _operator(node) in self.convert_map
                or is_read(f"aten.{_operator(node).partition('.')[0].removesuffix('_')}")
            ),
        )
        _drop_unnamed_constants(program)
        _keep_weights_as_inputs(program)
        self._carry_what_tvm_cannot(program)
        module = self.from_exported_program(program, True, False, False, None)
        builder = self.block_builder
        module = with_lifetimes(with_paths(module, builder.paths), builder.held)
        return with_execution(module, builder.in_place, _called_paths(program))

    @property
    def block_builder(self) -> TorchBuilder:
        """Block builder of TVM's importer, which creates a new one for each program."""
        return self._builder

    @block_builder.setter
    def block_builder(self, _: relax.BlockBuilder | None) -> None:
        self._builder = TorchBuilder()

    @staticmethod
    def _convert_data_type(given: Any, env: Any = None) -> str:
        name = COMPLEX.get(str(given).removeprefix("torch."))
        return name or str(ExportedProgramImporter._convert_data_type(given, env))

    @staticmethod
    def _convert_pytorch_tensor_to_tvm(tensor: torch.Tensor) -> Any:
        dtype = ShapeOnlyImporter._convert_data_type(tensor.dtype)
        if tensor.is_complex():
            return tvm.runtime.empty(tuple(tensor.shape), dtype)
        if isinstance(tensor, torch.nn.Parameter):
            return tvm.runtime.empty((1,), dtype)
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
            return tvm.runtime.empty(tuple(tensor.shape), dtype)
        return ExportedProgramImporter._convert_pytorch_tensor_to_tvm(tensor)

    def _linspace(self, node: Node) -> Any:
        node.args = (*node.args[:3], node.meta["val"].dtype)  # TVM looks for the type only here
        return super()._linspace(node)

    def _carry_what_tvm_cannot(self, program: torch.export.ExportedProgram) -> None:
        known = dict(self.convert_map)
        for module in program.graph_module.modules():
            for node in getattr(module, "graph", torch.fx.Graph()).nodes:
                if node.op == "call_function":
                    name = _operator(node)
                    self.convert_map[name] = self._safe(known.get(name))

    def _safe(self, stock: Converter | None) -> Converter:
        """Return a converter that falls back to an opaque call, and updates in-place results."""

        def convert(node: Node) -> Any:
            operator = _operator(node).partition(".")[0]
            self.block_builder.path = _path(node)
            result = None
            ours = (
                operator.removesuffix("_") in BROKEN_APART_BY_TVM
                or operator in COPIES
                or is_foreign(node.target)
                or _is_on_complex(node)
                or _starts_before(node)
            )
            if stock is not None and not ours:
                try:
                    result = self.block_builder.emit_all_or_none(stock, node)
                except Exception:
                    result = self._carry(node)
            else:
                result = self._carry(node)
            if operator.endswith("_") and not operator.endswith("__"):
                before, self.env[node.args[0]] = self.env.get(node.args[0]), result
                if isinstance(result, relax.Var) and result is not before:
                    self.block_builder.in_place.add(result.name)
            held = _held(node)
            for part in result if isinstance(result, list | tuple) else (result,):
                if held and isinstance(part, relax.Var):
                    self.block_builder.hold(part.name, held)
            return result

        return convert

    def _carry(self, node: Node) -> Any:
        value = node.meta.get("val")
        outputs = [t for t in _flat(value) if isinstance(t, torch.Tensor)]
        if not outputs:
            return value
        name = _operator(node).partition(".")[0].removesuffix("_")
        owner = getattr(node.target, "namespace", "")
        name = f"{owner}::{name}" if is_foreign(node.target) else f"aten.{name}"
        call = opaque_call(
            name,
            [self.env[n] for n in _flat_nodes(node) if isinstance(self.env.get(n), relax.Expr)],
            [(_static(t, name), self._convert_data_type(t.dtype)) for t in outputs],
            {**_attributes(node), **_recurrent_sizes(node)},
        )
        emitted = self.block_builder.emit(call)
        if isinstance(value, torch.Tensor):
            return emitted
        return (
            [self.block_builder.emit(relax.TupleGetItem(emitted, i)) for i in range(len(outputs))]
            if len(outputs) > 1
            else [emitted]
        )


def _is_on_complex(node: Node) -> bool:
    """Return whether an operator has complex arguments or results, whose types TVM gets wrong."""
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in _flat(values))


def _starts_before(node: Node) -> bool:
    """Return whether a slice starts before its axis, ``x[-9:]`` of eight: TVM does not clamp it."""
    if _operator(node).partition(".")[0] != "slice" or not isinstance(node.args[0], Node):
        return False
    source = node.args[0].meta.get("val")
    axis = node.args[1] if len(node.args) > 1 else 0
    if not isinstance(source, torch.Tensor) or not isinstance(axis, int):
        return False
    bounds = [place for place in node.args[2:4] if isinstance(place, int)]
    return any(place < -source.shape[axis] for place in bounds)


def _static(tensor: torch.Tensor, name: str) -> tuple[int, ...]:
    """Return a static shape.

    Raises:
        ConversionError: if it depends on data.
    """
    if not all(isinstance(size, int) for size in tensor.shape):
        raise ConversionError(
            f"the size of what {name} returns depends on the values of its input",
            "Give the result a fixed size in forward(), or end the model before it.",
        )
    return tuple(tensor.shape)


def _drop_unnamed_constants(program: torch.export.ExportedProgram) -> None:
    """Drop constants without a named input, in place: TVM would bind them to another input.

    `torch.export` keeps tensors that a module creates, such as the strides and anchors of a
    detector, although the graph does not read them.
    """
    named = {spec.target for spec in program.graph_signature.input_specs}
    for name in [name for name in program.constants if name not in named]:
        del program.constants[name]


def _keep_weights_as_inputs(program: torch.export.ExportedProgram) -> None:
    """Turn lifted weights (from scripted modules or plain attributes) into parameters, in place."""
    kinds = torch.export.graph_signature.InputKind
    for spec in program.graph_signature.input_specs:
        value = program.constants.get(spec.target) if spec.target else None
        if (
            spec.kind is kinds.CONSTANT_TENSOR
            and isinstance(value, torch.Tensor)
            and (value.is_floating_point() or value.is_complex())
            and value.numel() > 1
        ):
            spec.kind = kinds.PARAMETER
            data = torch.empty_like(value, device="meta")
            program.state_dict[spec.target] = torch.nn.Parameter(data, requires_grad=False)
            del program.constants[spec.target]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _path(node: Node) -> str:
    """Return the path of the innermost module that ran an operator."""
    stack = node.meta.get("nn_module_stack") or {"": ("", "")}
    return str(list(stack.values())[-1][0])


def _held(node: Node) -> Lifetime | None:
    """Return the lifetime of an operator's result, None if it is not known."""
    known = node.meta.get("custom") or {}
    return (known[STEP], known[UNTIL]) if STEP in known and UNTIL in known else None


def _called_paths(program: torch.export.ExportedProgram) -> set[str]:
    """Return the paths of the modules that the program calls."""
    stacks = (node.meta.get("nn_module_stack") or {} for node in program.graph.nodes)
    return {str(path) for stack in stacks for path, _ in stack.values()}


def _operator(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _flat_nodes(node: Node) -> list[Node]:
    arguments = [*node.args, *node.kwargs.values()]
    return [a for a in _flat(arguments) if isinstance(a, Node)]


def _recurrent_sizes(node: Node) -> dict[str, Attribute]:
    """Return the sizes of a recurrent layer that its scalar arguments do not contain."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.partition("::")[2] not in RECURRENT:
        return {}
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, node.args, strict=False))
    states = [n.meta["val"] for n in _flat([given.get("hx")]) if isinstance(n, Node)]
    sequence = given.get("input", given.get("data"))
    if not states or not isinstance(sequence, Node):
        return {}
    return {
        "hidden_size": int(states[-1].shape[-1]),  # of the cell: an LSTM may project
        "output_size": int(states[0].shape[-1]),
        "input_size": int(sequence.meta["val"].shape[-1]),
    }


def _attributes(node: Node) -> dict[str, Attribute]:
    """Return the non-tensor arguments by their schema names."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    attributes: dict[str, Attribute] = {}
    for name, value in given.items():
        if isinstance(value, bool):
            attributes[name] = int(value)
        elif isinstance(value, int | float | str):
            attributes[name] = value
        elif isinstance(value, torch.memory_format):
            attributes[name] = str(value).removeprefix("torch.")
        elif (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(item, int | float) for item in value)
        ):
            attributes[name] = tuple(value)
    return attributes
