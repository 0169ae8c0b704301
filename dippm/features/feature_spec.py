"""The layout of every feature vector, and its version.

A node row is 32 wide, as in D3.5 §4.2: one-hot(operator class) ⊕ attributes ⊕ output shape.

    columns   content
     0 – 15   one-hot of `OPERATOR_CLASSES`; column 0 is an operator that nobody knows
    16 – 25   `ATTRIBUTE_COLUMNS`, log(1 + value), 0 where an operator has no such attribute
    26 – 31   `SHAPE_COLUMNS`: sizes of the first result and its element count, log(1 + size)

Any change of a column, of its meaning or of the class of an operator raises `FEATURE_VERSION`;
checkpoints refuse another version.
"""

from __future__ import annotations

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

_OPERATORS_BY_CLASS = {
    "conv": "conv1d conv2d conv3d deform_conv2d",
    "conv_transpose": "conv_transpose",
    "dense": "dense",
    "batch_matmul": "batch_matmul einsum",
    "attention": "attention",
    "recurrent": "lstm gru rnn",
    "pool": "max_pool avg_pool lp_pool global_avg_pool global_max_pool",
    "normalisation": "batch_norm layer_norm rms_norm instance_norm group_norm l2_normalize",
    "softmax": "softmax log_softmax",
    "activation": "relu leaky_relu prelu threshold relu6 clip hard_sigmoid hard_swish sigmoid tanh "
    "elu selu celu silu gelu mish softplus softsign log_sigmoid glu",
    "elementwise": "add multiply maximum minimum equal not_equal logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor subtract divide floor_divide mod remainder "
    "fill_like abs neg sign floor ceil round trunc square reciprocal greater greater_equal less "
    "less_equal logical_not bitwise_not where cast is_nan is_inf is_finite masked_fill one_hot "
    "multiply_add lerp power exp log log2 log1p expm1 sqrt rsqrt erf erfc sin cos tan asin acos "
    "atan atan2 sinh cosh moe_dispatch",
    "reduction": "reduce_mean reduce_sum reduce_max reduce_min reduce_prod reduce_variance "
    "reduce_std reduce_norm reduce_logsumexp reduce_any reduce_all argmax argmin cumsum cumprod "
    "fft",
    "movement": "concat transpose pad roll tile repeat flip space_to_depth depth_to_space unfold "
    "im2col col2im triangle dynamic_slice create random reshape broadcast split slice",
    "indexing": "embedding gather scatter nonzero top_k sort argsort",
    "resampling": "resize grid_sample",
}

CLASS_OF_OPERATOR: dict[str, int] = {
    operator: OPERATOR_CLASSES.index(name)
    for name, operators in _OPERATORS_BY_CLASS.items()
    for operator in operators.split()
}
CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
MAC_OPERATORS = CONVOLUTIONS | {"conv_transpose", "dense", "batch_matmul", "attention"}
"""What equation 1 counts as multiply-accumulates. A fused attention is the two batched products
that D3.5's IR would have shown."""
