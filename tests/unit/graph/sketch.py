"""`Sketch`: write a raw graph by hand, in a few lines."""

from __future__ import annotations

from dippm.model.graph import ModelGraph, build
from dippm.model.relax.raw_graph import Attribute, RawGraph, RawOperator, RawValue

BATCH = 1009


class Sketch:
    """Collects values and operators; positions stand for values."""

    def __init__(self, batch: int = BATCH) -> None:
        self.batch = batch
        self.values: list[RawValue] = []
        self.operators: list[RawOperator] = []
        self.inputs: list[int] = []
        self.path = ""

    def _add(self, value: RawValue) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def input(self, *shape: int, dtype: str = "float32") -> int:
        position = self._add(RawValue(shape, dtype, "input", f"x{len(self.inputs)}"))
        self.inputs.append(position)
        return position

    def weight(self, *shape: int, dtype: str = "float32") -> int:
        return self._add(RawValue(shape, dtype, "parameter", f"w{len(self.values)}"))

    def number(self, scalar: float, *shape: int) -> int:
        return self._add(RawValue(shape, "float32", "constant", "", scalar))

    def call(
        self,
        name: str,
        inputs: list[int],
        *shape: int,
        dtype: str = "float32",
        **attributes: Attribute,
    ) -> int:
        return self.calls(name, inputs, [shape], dtype=dtype, **attributes)[0]

    def calls(
        self,
        name: str,
        inputs: list[int],
        shapes: list[tuple[int, ...]],
        *,
        dtype: str = "float32",
        **attributes: Attribute,
    ) -> list[int]:
        outputs = [self._add(RawValue(shape, dtype, "operator")) for shape in shapes]
        one = RawOperator(name, tuple(inputs), tuple(outputs), attributes, self.path)
        self.operators.append(one)
        return outputs

    def conv(self, x: int, weight: int, *shape: int, **attributes: Attribute) -> int:
        given: dict[str, Attribute] = {
            "strides": (1, 1),
            "padding": (1, 1, 1, 1),
            "dilation": (1, 1),
            "groups": 1,
            "data_layout": "NCHW",
            "kernel_layout": "OIHW",
            **attributes,
        }
        return self.call("nn.conv2d", [x, weight], *shape, **given)

    def raw(self, *outputs: int, symbolic: bool = True) -> RawGraph:
        return RawGraph(
            tuple(self.values),
            tuple(self.operators),
            tuple(self.inputs),
            outputs,
            self.batch,
            symbolic,
        )

    def graph(self, *outputs: int) -> ModelGraph:
        return build(self.raw(*outputs))


def ops(graph: ModelGraph) -> list[str]:
    return [node.op for node in graph.nodes]
