"""Convolutions, by what they become: pointwise ones are products, depthwise ones stream."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.casts import lower, weight_cast
from dippm.estimate.features.kernels.products import copied, dense_image, macs, product
from dippm.estimate.features.kernels.run import HALF_WIDTH, Run, image_strides, images_last
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.strides import dense_strides_like

IMAGE_RANK = 4


def convolution(run: Run, call: OperatorCall) -> None:
    """Launch a convolution: pixels × output channels, summed over the window."""
    a = call.attributes
    window, strides = tuple(a.get("kernel", (1,))), tuple(a.get("strides", (1,)))
    groups, channels_in = int(a.get("groups", 1)), int(a.get("in_channels", 1))
    channels_out = int(a.get("out_channels", 1))
    source, out = call.inputs[0], run.tensor(call.outputs[0])
    pixels = out.shape[0] * prod(out.shape[2:])
    shape = (float(pixels), channels_out / groups, channels_in / groups * prod(window))
    lower(run, call, source)
    dense_image(run, call, source)
    if prod(window) > 1 and channels_in > groups:
        _turn_as_weights(run, call, source)
    work = macs(run, call)
    kind = convolution_class(call.op, window, strides, groups, channels_in)
    if is_depthwise(call.op, groups, channels_in, channels_out):
        direct = walks_windows(run, call, source, window, strides)
        kind = "conv_depthwise_direct" if direct else "conv_depthwise"
    product(
        run,
        call,
        kind,
        shape,
        copies=float(groups),
        flops=2.0 * work,
        operands=call.inputs,
        strides=image_strides(run, source, out.shape),
    )
    run.kernels[-1] = run.kernels[-1]._replace(
        window=prod(window),
        stride=max(strides),
        strided=False,
        images_last=images_last(run, source),
    )


def _turn_as_weights(run: Run, call: OperatorCall, source: int) -> None:
    """Copy images that are held channels first, where weights are held channels last.

    Weights of one pixel or of one channel are both, and stay. Generated code needs no copy.
    """
    tensor = run.tensor(source)
    if not run.channels_last or run.compiled or tensor.is_parameter or images_last(run, source):
        return
    if len(tensor.shape) == IMAGE_RANK:
        last = dense_strides_like(tensor.shape, (tensor.size, 1, 3, 2))
        copied(run, call, source, tensor.size, last)


def convolution_class(
    op: str, kernel: Sequence[int], strides: Sequence[int], groups: int, channels_in: int
) -> str:
    """Return the kernel class of a convolution."""
    if op != "conv2d":
        return "conv_other"
    if groups > 1:
        return "conv_depthwise" if groups == channels_in else "conv_grouped"
    if prod(kernel) == 1:
        return "conv_pointwise"
    if tuple(kernel) == tuple(strides):
        return "conv_patch"
    return "conv_spatial"


def bias(run: Run, call: OperatorCall, maker: OperatorCall) -> None:
    """Launch what adds the bias that a layer was given.

    A dense layer adds it in its product if its argument is dense, and so do depthwise convolutions
    that PyTorch runs itself. cuDNN's convolutions do not: a pass over the result follows them.
    """
    result, out = maker.outputs[0], call.outputs[0]
    held = run.state(result)
    parameter = next(p for p in call.inputs if p != result)
    made = run.kernels[held.makers[0]] if held.makers else None
    if run.autocast and run.state(parameter).width == 4:
        weight_cast(run, call, parameter)
    run.states[out] = held
    if made is None or made.kind == "conv_depthwise_direct":
        return
    if not maker.op.startswith("conv") and run.is_dense(maker.inputs[0]):
        return
    kernel = Kernel.stream(maker.node, "broadcast", run.tensor(out).size, held.width)
    shape = run.tensor(out).shape
    kernel = kernel._replace(
        m=float(run.tensor(out).size / max(shape[-1], 1)),
        n=float(shape[-1]),
        in_place=True,
        images_last=images_last(run, result),
    )
    run.emit(kernel, [result])
    run.make(out, held.width, held.strides)


# Which depthwise convolutions PyTorch hands to cuDNN, and which its own kernel takes.
#
# Its own kernel has a thread for each result that walks the window, so its time grows with the
# window; cuDNN's depend on the layout. The choice is that of `use_cudnn_depthwise` in PyTorch
# (aten/src/ATen/native/Convolution.cpp), for a batch above one.


INDEXABLE = 2**31
"""Elements that its own kernel can count."""
WINDOWS = (1, 3, 5)
SIGNAL_RANK = 3
FEWEST_CHANNELS, SMALLEST_WIDTH = 32, 7
MANY_CHANNELS, WIDE = (512, 256), 28
"""With two pixels a step cuDNN takes so many channels, or half as many of wide images."""


def is_depthwise(op: str, groups: int, channels_in: int, channels_out: int) -> bool:
    """Tell whether each channel is convolved for itself."""
    return op in ("conv1d", "conv2d") and 1 < groups == channels_in and channels_out % groups == 0


def walks_windows(
    run: Run, call: OperatorCall, source: int, window: Sequence[int], strides: Sequence[int]
) -> bool:
    """Tell whether PyTorch's own kernel runs a depthwise convolution of `is_depthwise`.

    Args:
        run: eager or compiled; a compiler lays images channels last.
        call: the convolution.
        source: its images.
        window: along each axis of an image.
        strides: as well.
    """
    dilation = call.attributes.get("dilation")
    return not run.compiled and not cudnn_takes(
        run.tensor(source).shape,
        window,
        strides,
        dilation if isinstance(dilation, tuple | list) and dilation else (1,),
        half=run.product_width == HALF_WIDTH,
        channels_last=images_last(run, source),
    )


def cudnn_takes(
    shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    *,
    half: bool,
    channels_last: bool,
) -> bool:
    """Tell whether eager PyTorch hands a depthwise convolution to cuDNN.

    Args:
        shape: of the images, or of signals of one axis.
        window: along each axis.
        strides: as well.
        dilation: as well.
        half: whether it computes in half precision.
        channels_last: whether images or weights are held so.
    """
    if channels_last or prod(shape) >= INDEXABLE:
        return True
    channels, width = shape[1], shape[-1]
    if not half or max(dilation) > 1 or channels < FEWEST_CHANNELS or len(set(strides)) > 1:
        return False
    if len(shape) == SIGNAL_RANK:
        return strides[0] == 1
    if len(set(window)) > 1 or window[0] not in WINDOWS or width < SMALLEST_WIDTH:
        return False
    if strides[0] == 1:
        return True
    many, fewer = MANY_CHANNELS
    enough = channels >= many or (channels >= fewer and width >= WIDE)
    return strides[0] == 2 and window[0] > 1 and enough
