"""Which kernels an engine makes one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.estimate.conditions import Runtime
from dippm.estimate.features.engine import engine_kernels, in_eight_bits, session_kernels
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_table import KernelTable
from dippm.model.graph import build
from tests.unit.graph.sketch import BATCH, Sketch

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


@pytest.mark.parametrize(("runtime", "kernels"), [("tensorrt", 1), ("onnxruntime", 4)])
def test_what_depends_on_no_input_is_computed_while_the_engine_is_built(
    runtime: Runtime, kernels: int
) -> None:
    s, shape = Sketch(), (BATCH, 64, 28, 28)
    x = s.input(*shape)
    y = s.conv(x, s.weight(64, 64, 3, 3), *shape)
    variance, one_each = s.weight(1, 64, 1, 1), (1, 64, 1, 1)
    scale = s.call("rsqrt", [s.call("add", [variance, s.number(1e-5)], *one_each)], *one_each)
    y = s.call("multiply", [y, scale], *shape)
    raw = s.raw(s.call("nn.relu", [s.call("add", [y, x], *shape)], *shape))
    graph = build(replace(raw, called=("",)))
    assert len(KernelTable.of(graph).kind) == 6
    assert len(KernelTable.of_engine(graph, runtime=runtime).kind) == kernels


@pytest.mark.parametrize("runtime", ["tensorrt", "onnxruntime"])
def test_a_model_of_weights_alone_is_run(runtime: Runtime) -> None:
    s = Sketch()
    view = s.call("reshape", [s.input(BATCH, 64)], BATCH, 8, 8)
    product = s.call("matmul", [s.weight(64, 64), s.weight(64, 64)], 64, 64)
    graph = build(replace(s.raw(product, view), called=("",)))
    assert len(KernelTable.of_engine(graph, runtime=runtime).kind) == 1


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


def attention_in_steps(*, bias: bool = False) -> list[Kernel]:
    """Return what exporters write: three products, copies of their heads, scores, softmax, sum."""
    dense = [stream("gemm", size=64.0)._replace(node=node, unit="half") for node in range(3)]
    heads = [stream("copy", at, size=64.0)._replace(node=3, strided=True) for at in range(2)]
    sizes = {"m": 8.0, "n": 8.0, "k": 4.0, "copies": 2.0, "in_bytes": 2, "out_bytes": 2}
    scores = stream("batched_gemm", 3, 4)._replace(
        node=3, unit="half", flops=1024.0, read_bytes=256.0, write_bytes=256.0, **sizes
    )
    added = [stream("broadcast", 5, size=128.0)._replace(node=3, read_bytes=512.0)] * bias
    softmax = stream("softmax", 5 + bias, size=128.0)._replace(node=3)
    last = scores._replace(n=4.0, k=8.0, read_bytes=384.0, write_bytes=128.0)
    values = stream("copy", 2, size=64.0)._replace(node=3, strided=True)
    at = 7 + bias
    last = last._replace(sources=(at - 1, at))
    back = stream("copy", at + 1, size=64.0)._replace(node=4)
    return [*dense, *heads, scores, *added, softmax, values, last, back, conv(at + 2)]


def test_attention_in_steps_is_one_kernel_that_reads_its_operands() -> None:
    fused = engine_kernels(attention_in_steps())
    assert [k.kind for k in fused] == ["gemm"] * 3 + ["attention", "conv_spatial"]
    one = fused[3]
    assert one.sources == (0, 1, 2)
    assert (one.read_bytes, one.write_bytes, one.flops) == (384.0, 128.0, 2048.0)
    assert (one.m, one.n, one.k, one.copies) == (8.0, 8.0, 4.0, 2.0)
    assert fused[4].sources == (3,)


def test_attention_scales_what_it_reads_itself() -> None:
    """As the newer exporter of PyTorch writes it: copied, scaled, copied again."""
    kernels = attention_in_steps()
    scaled = [stream("elementwise", 3, size=64.0), stream("copy", 5, size=64.0)]
    moved = [k._replace(sources=tuple(s + 2 * (s > 4) for s in k.sources)) for k in kernels[5:]]
    moved[0] = moved[0]._replace(sources=(4, 6))
    steps = [*kernels[:5], *(k._replace(node=3) for k in scaled), *moved]
    assert [k.kind for k in engine_kernels(steps)] == ["gemm"] * 3 + ["attention", "conv_spatial"]


def test_attention_with_a_bias_on_its_scores_stays_in_steps() -> None:
    found = kinds(attention_in_steps(bias=True))
    assert "attention" not in found
    assert found.count("batched_gemm") == 2


def test_a_softmax_that_two_read_stays_in_steps() -> None:
    kernels = attention_in_steps()
    assert "attention" not in kinds([*kernels, stream("reduction", 6)])


def test_an_activation_in_steps_is_the_end_of_its_product() -> None:
    """As exporters write GELU: the result of the product is read twice."""
    gelu = [stream("elementwise", 0), stream("costly_activation", 1), stream("elementwise", 0, 2)]
    steps = [kernel._replace(node=1) for kernel in gelu]
    (one,) = engine_kernels([conv(), *steps])
    assert (one.kind, one.read_bytes, one.write_bytes) == ("conv_spatial", 2 * SIZE, 2 * SIZE)


def test_steps_that_others_read_are_no_activation() -> None:
    gelu = [stream("elementwise", 0), stream("costly_activation", 1), stream("elementwise", 0, 2)]
    steps = [kernel._replace(node=1) for kernel in gelu]
    assert len(engine_kernels([conv(), *steps, stream("pool", 1)._replace(node=2)])) > 2


def test_a_convolution_pads_its_input_itself() -> None:
    fill = stream("elementwise", size=1200.0)._replace(read_bytes=0.0, node=1)
    padded = conv(2)._replace(node=1, read_bytes=2400.0)
    fused = engine_kernels([conv(), fill, stream("copy", 0)._replace(node=1), padded])
    assert [(k.kind, k.read_bytes) for k in fused] == [("conv_spatial", 2 * SIZE)] * 2
    assert fused[1].sources == (0,)
    copied = [conv(), stream("copy", 0)._replace(node=1), conv(1)._replace(node=1)]
    assert kinds(copied) == ["conv_spatial", "copy", "conv_spatial"], "no padding"
