"""Readers of convolutions and pools: layouts, paddings, implied attributes."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.dialects.shapes import Build, channels_first
from dippm.model.graph.draft import Shape, Value

Ints = tuple[int, ...]


def _per_axis(values: Ints | None, rank: int, default: int) -> Ints:
    """Return a per-axis attribute with `rank` entries, without those of N and C in a long form."""
    if not values:
        return (default,) * rank
    if len(values) == rank + 2:
        return values[1:-1] if values[1] != 1 or values[-1] == 1 else values[2:]
    return values * rank if len(values) == 1 else values[:rank]


def _weight_first(shape: Shape, layout: str) -> Shape:
    """Return a weight's shape with spatial axes last (O, I, ... or I, O, ...), by its layout."""
    if layout and set(layout) >= {"O", "I"}:
        outer, inner = layout.index("O"), layout.index("I")
        spatial = [i for i in range(len(layout)) if i not in (outer, inner)]
        return tuple(shape[i] for i in (outer, inner, *spatial))
    return shape


def _padding(call: RawCall, source: Shape, out: Shape, *, kernel: Ints, strides: Ints) -> Ints:
    """Return the explicit padding: all begins, then all ends."""
    rank = len(kernel)
    explicit = call.integers("padding", "pads", "explicit_paddings")
    if explicit:
        if len(explicit) == 2 * rank:
            return explicit
        if len(explicit) in (1, rank):
            return _per_axis(explicit, rank, 0) * 2
    spelled = (call.text("padding") or call.text("auto_pad")).upper()
    if not spelled.startswith("SAME"):
        return (0,) * (2 * rank)
    begins, ends = [], []
    for i in range(rank):
        missing = max((out[2 + i] - 1) * strides[i] + kernel[i] - source[2 + i], 0)
        begins.append(missing // 2)
        ends.append(missing - missing // 2)
    return (*begins, *ends)


def _conv(call: RawCall) -> bool:
    return channels_first(call, _build_conv(call))


def _build_conv(call: RawCall) -> Build:
    weight = call.inputs[1]
    rank = len(weight.shape) - 2
    layout = call.text("kernel_layout", "filter_layout")
    if call.name.startswith("tf.") and not layout:
        layout = "DHW"[-rank:] + "IO"
    out_channels, _, *kernel = _weight_first(weight.shape, layout)

    def build(source: Value, shape: Shape) -> Value:
        return _emit(call, source, weight, shape, kernel=tuple(kernel), channels=out_channels)

    return build


def _deformable(call: RawCall) -> bool:
    """ONNX's DeformConv: offsets follow the weight, then perhaps a bias and a mask."""
    weight = call.inputs[1]
    named = call.text("input_names").split(",")
    given = dict(zip(named, call.inputs, strict=False))
    more = [given[name] for name in ("offset", "mask") if name in given]
    out_channels, _, *kernel = weight.shape
    if len(kernel) != 2 or not more:
        return False

    def build(source: Value, shape: Shape) -> Value:
        result = _emit(call, source, weight, shape, kernel=tuple(kernel), channels=out_channels)
        assert result.producer is not None
        result.producer.op = "deform_conv2d"
        call.draft.set_inputs(result.producer, [source, weight, *more])
        return result

    return channels_first(call, build)


def _emit(
    call: RawCall, source: Value, weight: Value, shape: Shape, *, kernel: Ints, channels: int
) -> Value:
    rank = len(kernel)
    strides = _per_axis(call.integers("strides", "stride"), rank, 1)
    dilation = _per_axis(call.integers("dilation", "dilations"), rank, 1)
    spanned = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    in_channels = source.shape[1]
    groups = call.integer("groups", "group", default=0)
    if not groups:
        groups = max(in_channels * channels * _volume(kernel) // max(weight.size, 1), 1)
    return call.step(
        f"conv{rank}d",
        [source, weight],
        shape,
        kernel=kernel,
        strides=strides,
        padding=_padding(call, source.shape, shape, kernel=spanned, strides=strides),
        dilation=dilation,
        groups=groups,
        in_channels=in_channels,
        out_channels=channels,
    )


def _volume(kernel: Ints) -> int:
    total = 1
    for size in kernel:
        total *= size
    return total


def _depthwise(call: RawCall) -> bool:
    """TensorFlow's depthwise kernel is spatial, channels, multiplier."""
    weight = call.inputs[1]
    *kernel, channels, multiplier = weight.shape

    def build(source: Value, shape: Shape) -> Value:
        call.attributes = {**call.attributes, "groups": channels}
        return _emit(
            call, source, weight, shape, kernel=tuple(kernel), channels=channels * multiplier
        )

    return channels_first(call, build)


def _convolution(call: RawCall) -> bool:
    """`aten.convolution` is a convolution or a transposed one, as an attribute says.

    Its third input, if any, is the bias, which is added after it as in other spellings.
    """
    build = _build_transposed(call) if call.attributes.get("transposed") else _build_conv(call)
    bias = call.inputs[2] if len(call.inputs) == 3 and call.inputs[2].is_static else None

    def build_with_bias(source: Value, shape: Shape) -> Value:
        result = build(source, shape)
        if bias is None:
            return result
        per_channel = call.view("reshape", bias, (bias.size, *(1 for _ in shape[2:])))
        return call.step("add", [result, per_channel], shape)

    return channels_first(call, build_with_bias)


def _conv_transpose(call: RawCall) -> bool:
    return channels_first(call, _build_transposed(call))


def _build_transposed(call: RawCall) -> Build:
    weight = call.inputs[1]
    rank = len(weight.shape) - 2
    layout = call.text("kernel_layout")
    kernel = _weight_first(weight.shape, layout)[2:]

    def build(source: Value, shape: Shape) -> Value:
        strides = _per_axis(call.integers("strides", "stride"), rank, 1)
        in_channels, out_channels = source.shape[1], shape[1]
        groups = in_channels * out_channels * _volume(kernel) // max(weight.size, 1)
        return call.step(
            "conv_transpose",
            [source, weight],
            shape,
            kernel=kernel,
            strides=strides,
            padding=_padding(call, source.shape, shape, kernel=kernel, strides=strides),
            dilation=_per_axis(call.integers("dilation", "dilations"), rank, 1),
            groups=max(groups, 1),
            in_channels=in_channels,
            out_channels=out_channels,
        )

    return build


def _pool(op: str) -> Callable[[RawCall], bool]:
    def read(call: RawCall) -> bool:
        def build(source: Value, shape: Shape) -> Value:
            rank = len(shape) - 2
            kernel = _per_axis(call.integers("pool_size", "kernel_size", "ksize"), rank, 1)
            if kernels := call.integers("kernel_shape"):
                kernel = _per_axis(kernels, rank, 1)
            stride = call.integers("strides", "stride") or kernel
            strides = _per_axis(stride, rank, 1)
            padding = _padding(call, source.shape, shape, kernel=kernel, strides=strides)
            return call.step(op, [source], shape, kernel=kernel, strides=strides, padding=padding)

        call.outputs = call.outputs[:1]
        return channels_first(call, build)

    return read


def _adaptive(op: str) -> Callable[[RawCall], bool]:
    def read(call: RawCall) -> bool:
        def build(source: Value, shape: Shape) -> Value:
            if all(size == 1 for size in shape[2:]):
                return call.step("global_" + op, [source], shape)
            pairs = list(zip(source.shape[2:], shape[2:], strict=True))
            kernel = tuple(ceil(size / out) for size, out in pairs)
            strides = tuple(max(size // out, 1) for size, out in pairs)
            padding = (0,) * (2 * len(kernel))
            return call.step(op, [source], shape, kernel=kernel, strides=strides, padding=padding)

        call.outputs = call.outputs[:1]
        return channels_first(call, build)

    return read


def _torchvision_deformable(call: RawCall) -> bool:
    """Torchvision's arguments: image, weight, offsets, masks, bias."""
    source, weight = call.inputs[:2]
    channels, _, *kernel = weight.shape

    def two(name: str, default: int) -> Ints:
        return tuple(call.integer(f"{name}_{axis}", default=default) for axis in "hw")

    return call.first(
        "deform_conv2d",
        call.inputs[:4],
        kernel=tuple(kernel),
        strides=two("stride", 1),
        padding=two("pad", 0) * 2,
        dilation=two("dilation", 1),
        groups=call.integer("groups", default=1),
        in_channels=source.shape[1],
        out_channels=channels,
    )


READERS: dict[str, Callable[[RawCall], bool]] = {
    **{f"conv{rank}d": _conv for rank in (1, 2, 3)},
    "conv": _conv,
    "convolution": _convolution,
    "onnx.deformconv": _deformable,
    "depthwiseconv2d": _depthwise,
    "depthwiseconv2dnative": _depthwise,
    "conv_transpose": _conv_transpose,
    "aten.deformconv2d": _torchvision_deformable,
    "fractionalmaxpool2d": _adaptive("max_pool"),
    "fractionalmaxpool3d": _adaptive("max_pool"),
    "global_avg_pool": _adaptive("avg_pool"),
    "global_max_pool": _adaptive("max_pool"),
}
for _op in ("max_pool", "avg_pool", "lp_pool"):
    READERS[_op] = _pool(_op)
    for _rank in (1, 2, 3):
        READERS[f"adaptive{_op.replace('_', '')}{_rank}d"] = _adaptive(_op)
