"""`Expansion`: what a rule may ask of the run and of the operators before."""

from __future__ import annotations

from dippm.conditions import Precision
from dippm.features.kernel import Unit
from dippm.features.kernel_classes import KERNEL_CLASSES
from dippm.graph.model_graph import ModelGraph, OpNode
from dippm.graph.operators import operator

HALF: tuple[Precision, ...] = ("fp16", "bf16")
AUTOCAST: tuple[Precision, ...] = ("amp", "amp-bf16")


class Expansion:
    """A run of a graph that is being expanded, operator after operator.

    Attributes:
        graph: the graph.
        precision: of the run.
        channels_last: images are held so.
        autocast: whether the framework chooses the precision for each operator.
        product_width: bytes per element of what a matrix product reads and writes.
        default_width: of parameters and inputs.
        producers: of each node, by position.
        width: bytes per element of each node's result; a rule sets that of its node.
        strided: whether each node's result is a permuted view; a rule sets that of its node.
    """

    def __init__(self, graph: ModelGraph, precision: Precision, channels_last: bool) -> None:
        self.graph, self.precision, self.channels_last = graph, precision, channels_last
        self.autocast = precision in AUTOCAST
        self.product_width = 2 if precision in (*HALF, *AUTOCAST) else 4
        self.default_width = 2 if precision in HALF else 4
        self.producers: list[list[int]] = [[] for _ in graph.nodes]
        for producer, consumer in graph.edges:
            self.producers[consumer].append(producer)
        self.width = [self.default_width] * len(graph.nodes)
        self.strided = [False] * len(graph.nodes)

    def reads_strided(self, i: int) -> bool:
        """Return whether an operand of a node is a permuted view."""
        return any(self.strided[p] for p in self.producers[i])

    def promoted(self, i: int, node: OpNode) -> int:
        """Return the bytes per element of the result of an operator without a matrix product."""
        if node.dtype.startswith(("int64", "uint64")):
            return 8
        if node.dtype.startswith(("int32", "uint32")):
            return 4
        if node.dtype.startswith(("bool", "int8", "uint8")):
            return 1
        if self.widens(node) or (self.autocast and reads_parameter(node)):
            return 4
        widths = [self.width[p] for p in self.producers[i] if self.width[p] in (2, 4)]
        return max(widths, default=self.default_width)

    def widens(self, node: OpNode) -> bool:
        """Return whether autocast runs an operator in float32 (the float32 list of torch.amp)."""
        return self.autocast and operator(node.op).autocast == "float32"

    def unit(self, kind: str) -> Unit:
        """Return the arithmetic of a matrix product of this kernel class."""
        row = KERNEL_CLASSES[kind]
        if not row.tensor_cores:
            return "fp32"
        if self.precision in (*HALF, *AUTOCAST):
            return "half"
        if self.precision == "tf32" or (self.precision == "fp32" and row.tf32_by_default):
            return "tf32"
        return "fp32"


def reads_parameter(node: OpNode) -> bool:
    """Return whether one operand is a parameter tensor."""
    return bool(node.attributes.get("parameter"))
