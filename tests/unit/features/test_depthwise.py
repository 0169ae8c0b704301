"""Depthwise convolutions run where PyTorch runs them: in its own kernel or in cuDNN's."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.devices import find
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_features import DeviceView, roofline_parts_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.features.kernels import launched
from tests.unit.graph.sketch import BATCH, Sketch

CUDNN, OWN = "conv_depthwise", "conv_depthwise_direct"


def kernels(
    channels: int = 64,
    size: int = 28,
    window: int = 3,
    stride: int = 1,
    dilation: int = 1,
    **how: Any,
) -> list[Kernel]:
    s = Sketch()
    after = -(-size // stride)
    y = s.conv(
        s.input(BATCH, channels, size, size), s.weight(channels, 1, window, window),
        BATCH, channels, after, after,
        groups=channels, strides=(stride, stride), dilation=(dilation, dilation),
        padding=(dilation * (window // 2),) * 4,
    )  # fmt: skip
    biased = s.call("add", [y, s.call("reshape", [s.weight(channels)], 1, channels, 1, 1)],
                    BATCH, channels, after, after)  # fmt: skip
    return launched(s.graph(biased).at_batch(2), **how)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, CUDNN),
        ({"window": 5}, CUDNN),
        ({"window": 7}, OWN),
        ({"channels": 16}, OWN),
        ({"size": 6}, OWN),
        ({"dilation": 2}, OWN),
        ({"stride": 2}, OWN),
        ({"stride": 2, "channels": 256}, CUDNN),
        ({"stride": 2, "channels": 256, "size": 14}, OWN),
        ({"stride": 2, "channels": 512, "size": 14}, CUDNN),
    ],
)
def test_half_precision_with_channels_first(sizes: dict[str, int], expected: str) -> None:
    assert kernels(precision="fp16", **sizes)[0].kind == expected


def test_a_multiply_add_of_pytorchs_own_kernel_takes_eight_slots() -> None:
    """Measured at windows of 49 and 81, where neither memory nor launches hide it."""
    view = DeviceView.of(find("RTX-3090"))
    times = {}
    for precision, layout in (("fp16", True), ("fp32", False)):
        (kernel,) = kernels(window=5, precision=precision, channels_last=layout)[:1]
        table = KernelTable.of_kernels([kernel])
        compute, memory = roofline_parts_ms(table, 2, view)
        times[kernel.kind] = compute[0] / kernel.flops * view.peak_flops_per_ms[table.unit[0]]
        assert memory[0] > 0
    assert times == pytest.approx({CUDNN: 1.0, OWN: 8.0})


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_float32_is_never_handed_on(precision: Any) -> None:
    assert kernels(precision=precision)[0].kind == OWN


@pytest.mark.parametrize("window", [3, 9])
@pytest.mark.parametrize("how", [{"channels_last": True}, {"mode": "compiled"}])
def test_channels_last_is_cudnns(how: dict[str, Any], window: int) -> None:
    assert kernels(precision="fp16", window=window, **how)[0].kind == CUDNN


def test_only_pytorchs_own_kernel_adds_the_bias() -> None:
    found = {k[0].kind: [x.kind for x in k[1:]] for k in (kernels(), kernels(precision="fp16"))}
    assert found == {OWN: [], CUDNN: ["broadcast"]}
