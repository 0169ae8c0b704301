"""Exported PyTorch program → Relax, without reading a parameter and without decomposition.

Operators that TVM's importer lacks, that it breaks apart, or that make it fail are carried as
opaque calls (see `opaque`), with the shapes that `torch.export` itself propagated. That makes
decomposition unnecessary, which is both where most of the time went and where one model got two
graphs. The overridden hooks are private to TVM: hence its pinned version.
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

from dippm.relax.opaque import opaque_call
from dippm.relax.raw_graph import Attribute

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


class ShapeOnlyImporter(ExportedProgramImporter):
    """Import an exported program without reading parameter data."""

    def import_program(self, program: torch.export.ExportedProgram) -> tvm.IRModule:
        """Return the Relax module; parameters stay inputs of its function "main"."""
        self._carry_what_tvm_cannot(program)
        return self.from_exported_program(program, True, False, False, None)

    @staticmethod
    def _convert_pytorch_tensor_to_tvm(tensor: torch.Tensor) -> Any:
        dtype = ExportedProgramImporter._convert_data_type(tensor.dtype)
        if isinstance(tensor, torch.nn.Parameter):
            return tvm.runtime.empty((1,), dtype)
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
            return tvm.runtime.empty(tuple(tensor.shape), dtype)
        return ExportedProgramImporter._convert_pytorch_tensor_to_tvm(tensor)

    def _carry_what_tvm_cannot(self, program: torch.export.ExportedProgram) -> None:
        known = dict(self.convert_map)
        for module in program.graph_module.modules():
            for node in getattr(module, "graph", torch.fx.Graph()).nodes:
                if node.op == "call_function":
                    name = node.target.__name__
                    self.convert_map[name] = self._safe(known.get(name))

    def _safe(self, stock: Converter | None) -> Converter:
        """Wrap a converter: carry on failure, and make in-place updates visible to later uses."""

        def convert(node: Node) -> Any:
            operator = node.target.__name__.partition(".")[0]
            result = None
            if stock is not None and operator.removesuffix("_") not in BROKEN_APART_BY_TVM:
                try:
                    result = stock(node)
                except Exception:
                    result = self._carry(node)
            else:
                result = self._carry(node)
            if operator.endswith("_") and not operator.endswith("__"):
                self.env[node.args[0]] = result
            return result

        return convert

    def _carry(self, node: Node) -> Any:
        value = node.meta.get("val")
        outputs = [t for t in _flat(value) if isinstance(t, torch.Tensor)]
        if not outputs:
            return value
        name = "aten." + node.target.__name__.partition(".")[0].removesuffix("_")
        call = opaque_call(
            name,
            [self.env[n] for n in _flat_nodes(node) if isinstance(self.env.get(n), relax.Expr)],
            [(tuple(t.shape), self._convert_data_type(t.dtype)) for t in outputs],
            _attributes(node),
        )
        emitted = self.block_builder.emit(call)
        if isinstance(value, torch.Tensor):
            return emitted
        return [
            self.block_builder.emit(relax.TupleGetItem(emitted, i)) for i in range(len(outputs))
        ] if len(outputs) > 1 else [emitted]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _flat_nodes(node: Node) -> list[Node]:
    arguments = [*node.args, *node.kwargs.values()]
    return [a for a in _flat(arguments) if isinstance(a, Node)]


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
        elif isinstance(value, list | tuple) and value and all(
            isinstance(item, int | float) for item in value
        ):
            attributes[name] = tuple(value)
    return attributes
