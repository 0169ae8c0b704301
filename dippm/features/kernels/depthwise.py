"""Which depthwise convolutions PyTorch hands to cuDNN, and which its own kernel takes.

Its own kernel has a thread for each result that walks the window, so its time grows with the
window; cuDNN's depend on the layout. The choice is that of `use_cudnn_depthwise` in PyTorch
(aten/src/ATen/native/Convolution.cpp), for a batch above one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.features.kernels.layouts import images_last
from dippm.features.kernels.run import Run
from dippm.graph.calls import Call

INDEXABLE = 2**31
"""Elements that its own kernel can count."""
WINDOWS = (1, 3, 5)
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
    shape = run.tensor(source).shape
    if run.compiled or images_last(run, source) or prod(shape) >= INDEXABLE:
        return False
    if run.product_width != 2 or max(_axes(call.attributes.get("dilation"))) > 1:
        return True
    if len(shape) == 3:
        return max(strides) > 1 or shape[1] < FEWEST_CHANNELS
    channels, width = shape[1], shape[3]
    square = len(set(window)) == 1 and window[0] in WINDOWS and len(set(strides)) == 1
    if not square or channels < FEWEST_CHANNELS or width < SMALLEST_WIDTH:
        return True
    if strides[0] == 1:
        return False
    many, fewer = MANY_CHANNELS
    enough = channels >= many or (channels >= fewer and width >= WIDE)
    return not (strides[0] == 2 and window[0] > 1 and enough)


def _axes(sizes: object) -> tuple[int, ...]:
    return tuple(sizes) if isinstance(sizes, tuple | list) and sizes else (1,)
