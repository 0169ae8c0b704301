"""Which depthwise convolutions PyTorch hands to cuDNN, and which its own kernel takes.

Its own kernel has a thread for each result that walks the window, so its time grows with the
window; cuDNN's depend on the layout. The choice is that of `use_cudnn_depthwise` in PyTorch
(aten/src/ATen/native/Convolution.cpp), for a batch above one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.estimate.features.kernels.layouts import images_last
from dippm.estimate.features.kernels.run import HALF_WIDTH, Run
from dippm.model.graph.calls import Call

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
    run: Run, call: Call, source: int, window: Sequence[int], strides: Sequence[int]
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
