"""The layout of every feature vector, and its version.

A node row is 32 wide, as in D3.5 §4.2: one-hot(operator class) ⊕ attributes ⊕ output shape.

    columns   content
     0 – 15   one-hot of `OPERATOR_CLASSES`; column 0 is an unknown operator
    16 – 25   `ATTRIBUTE_COLUMNS`, log(1 + value), 0 where an operator has no such attribute
    26 – 31   `SHAPE_COLUMNS`: sizes of the first result and its element count, log(1 + size)

The class of an operator stands in its row of the operator table, as `feature`. Any change of a
column, of its meaning or of the class of an operator raises `FEATURE_VERSION`;
checkpoints refuse another version.
"""

from __future__ import annotations

from dippm.model.graph.operators import OPERATORS

FEATURE_VERSION = "1"

OPERATOR_CLASSES = (
    "unknown",
    "conv",
    "conv_transpose",
    "dense",
    "batch_matmul",
    "attention",
    "recurrent",
    "pool",
    "normalisation",
    "softmax",
    "activation",
    "elementwise",
    "reduction",
    "movement",
    "indexing",
    "resampling",
)

ATTRIBUTE_COLUMNS = (
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "padding_total",
    "dilation",
    "groups",
    "contraction",
    "parameters",
    "input_elements",
)

SHAPE_COLUMNS = ("size_0", "size_1", "size_2", "size_3", "size_4", "elements")

NODE_COLUMNS = (
    *(f"is_{name}" for name in OPERATOR_CLASSES),
    *ATTRIBUTE_COLUMNS,
    *SHAPE_COLUMNS,
)
NODE_FEATURES = len(NODE_COLUMNS)
FIRST_ATTRIBUTE = len(OPERATOR_CLASSES)
FIRST_SHAPE = FIRST_ATTRIBUTE + len(ATTRIBUTE_COLUMNS)

STATIC_COLUMNS = ("macs", "batch", "convs", "denses", "relus")
"""Equation 1 of D3.5, in its order."""

CLASS_OF_OPERATOR: dict[str, int] = {
    row.name: OPERATOR_CLASSES.index(row.feature) if row.feature in OPERATOR_CLASSES else 0
    for row in OPERATORS.values()
}
CONVOLUTIONS = frozenset(
    row.name for row in OPERATORS.values() if row.feature == "conv" and row.kernel == "convolution"
)
MAC_OPERATORS = frozenset(
    row.name for row in OPERATORS.values() if row.category == "compute" and row.kernel != "other"
)
"""Operators that equation 1 counts as multiply-accumulates. A fused attention is the two batched
products that D3.5's IR would have shown."""
