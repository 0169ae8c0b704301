"""Which kernels an engine makes one."""

from __future__ import annotations

import pytest

from dippm.estimate.features.engine import engine_kernels, in_eight_bits, session_kernels
from dippm.estimate.features.kernel import Kernel

SIZE = 1024.0


def stream(kind: str, *sources: int, size: float = SIZE) -> Kernel:
    kernel = Kernel.stream(0, kind, size, 2)
    return kernel._replace(sources=sources, read_bytes=2 * size * max(1, len(sources)))


def conv(*sources: int) -> Kernel:
    return stream("conv_spatial", *sources)._replace(unit="half", weight_bytes=100.0)


def kinds(kernels: list[Kernel]) -> list[str]:
    return [kernel.kind for kernel in engine_kernels(kernels)]


def test_norm_and_activation_become_the_end_of_their_convolution() -> None:
    fused = engine_kernels([conv(), stream("batch_norm", 0), stream("activation", 1), conv(2)])
    assert [(k.kind, k.unit, k.sources) for k in fused] == [
        ("conv_spatial", "half", ()),
        ("conv_spatial", "half", (0,)),
    ]
    assert (fused[0].read_bytes, fused[0].write_bytes) == (2 * SIZE, 2 * SIZE)


def test_the_time_of_a_product_and_its_end_is_that_of_the_product() -> None:
    kernels = [conv(), stream("activation", 0)._replace(node=1)]
    assert [k.node for k in engine_kernels(kernels)] == [0]


def test_a_residual_is_added_by_the_convolution_that_runs_last() -> None:
    block = [conv(), conv(0), stream("batch_norm", 1), stream("elementwise", 0, 2)]
    fused = engine_kernels([*block, stream("activation", 3)])
    assert [k.kind for k in fused] == ["conv_spatial"] * 2
    assert fused[1].sources == (0,)
    assert fused[1].read_bytes == 2 * 2 * SIZE


def test_a_sum_that_waits_for_a_later_kernel_is_no_end_of_the_convolution() -> None:
    kernels = [conv(), conv(), stream("pool", 0), stream("elementwise", 1, 2)]
    assert kinds(kernels) == ["conv_spatial", "conv_spatial", "pool", "elementwise"]


@pytest.mark.parametrize("kind", ["layer_norm", "softmax", "pool", "copy"])
def test_what_sees_more_than_one_element_stays_a_kernel(kind: str) -> None:
    assert kinds([conv(), stream(kind, 0)]) == ["conv_spatial", kind]


def test_a_result_that_two_read_is_written() -> None:
    kernels = [conv(), stream("activation", 0), conv(0), conv(1)]
    assert kinds(kernels) == ["conv_spatial", "activation", "conv_spatial", "conv_spatial"]


def test_parts_are_written_where_the_whole_will_lie() -> None:
    whole = stream("concat", 0, 1, size=2 * SIZE)._replace(read_bytes=4 * SIZE)
    fused = engine_kernels([conv(), conv(), whole, conv(2)])
    assert [k.kind for k in fused] == ["conv_spatial"] * 3
    assert fused[2].sources == (0, 1)


def test_a_part_that_somebody_else_reads_is_copied_into_the_whole() -> None:
    whole = stream("concat", 0, 1, size=2 * SIZE)._replace(read_bytes=4 * SIZE)
    assert kinds([conv(), conv(), whole, conv(0, 2)]).count("concat") == 1


def test_onnx_runtime_folds_a_norm_and_adds_the_bias_in_a_pass() -> None:
    kernels = [conv(), stream("batch_norm", 0), stream("activation", 1), stream("batch_norm", 2)]
    found = session_kernels(kernels)
    assert [k.kind for k in found] == ["conv_spatial", "broadcast", "activation", "batch_norm"]


def test_onnx_runtime_adds_in_the_norm_that_alone_reads_the_sum() -> None:
    kernels = [conv(), conv(), stream("elementwise", 0, 1), stream("layer_norm", 2)]
    (*_, norm) = session_kernels(kernels)
    assert (norm.kind, norm.sources) == ("layer_norm", (0, 1))
    kept = session_kernels([*kernels, stream("activation", 2)])
    assert [k.kind for k in kept].count("elementwise") == 1


def test_eight_bits_pass_between_convolutions_and_end_at_dense_layers() -> None:
    dense = stream("gemm", 1)._replace(unit="half", weight_bytes=64.0)
    kernels = [conv(), stream("pool", 0), dense, stream("elementwise", 2), stream("softmax", 3)]
    found = in_eight_bits(kernels)
    assert [(k.unit == "int8", k.out_bytes) for k in found] == [
        (True, 1),
        (False, 1),
        (True, 2),
        (False, 2),
        (False, 2),
    ]
    assert found[2].weight_bytes == 32.0
    assert found[1].write_bytes == kernels[1].write_bytes / 2


def test_a_depthwise_convolution_has_no_8_bit_unit() -> None:
    (found,) = in_eight_bits([conv()._replace(kind="conv_depthwise", unit="fp32")])
    assert (found.unit, found.out_bytes) == ("fp32", 1)
