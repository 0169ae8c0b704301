"""Which kernels a compiler makes one."""

from __future__ import annotations

import pytest

from dippm.estimate.features.fusion import fuse
from dippm.estimate.features.kernel import Kernel

SIZE = 1024.0


def stream(kind: str, *sources: int, size: float = SIZE) -> Kernel:
    kernel = Kernel.stream(0, kind, size, 2)
    return kernel._replace(sources=sources, read_bytes=2 * size * max(1, len(sources)))


def conv(*sources: int) -> Kernel:
    return stream("conv_spatial", *sources)


def kinds(kernels: list[Kernel]) -> list[str]:
    return [kernel.kind for kernel in fuse(kernels)]


def test_the_sum_of_two_normalised_branches_is_one_kernel_with_both() -> None:
    kernels = [conv(), stream("batch_norm", 0), conv(), stream("batch_norm", 2)]
    kernels += [stream("elementwise", 1, 3), stream("activation", 4)]
    fused = fuse(kernels)
    assert [k.kind for k in fused] == ["conv_spatial", "conv_spatial", "activation"]
    assert fused[-1].sources == (0, 1)
    assert (fused[-1].read_bytes, fused[-1].write_bytes) == (2 * 2 * SIZE, 2 * SIZE)


def test_a_branch_that_somebody_else_reads_stays_a_kernel() -> None:
    kernels = [conv(), stream("activation", 0), conv(1), stream("batch_norm", 2)]
    kernels.append(stream("elementwise", 1, 3))
    assert kinds(kernels) == ["conv_spatial", "activation", "conv_spatial", "elementwise"]


def test_a_branch_that_waits_for_the_group_stays_a_kernel() -> None:
    kernels = [conv(), stream("activation", 0), conv(1), stream("batch_norm", 2)]
    kernels += [stream("activation", 1), stream("elementwise", 3, 4)]
    fused = fuse(kernels)
    assert [k.kind for k in fused] == ["conv_spatial", "conv_spatial", "activation", "elementwise"]
    assert [k.sources for k in fused] == [(), (2,), (0,), (1, 2)]


@pytest.mark.parametrize(("kind", "size"), [("costly_activation", 16.0), ("layer_norm", SIZE)])
def test_another_loop_or_a_second_reduction_stays_a_kernel(kind: str, size: float) -> None:
    kernels = [conv(), stream(kind, 0, size=size), conv(), stream("layer_norm", 2)]
    kernels.append(stream("elementwise", 1, 3))
    assert len(fuse(kernels)) == 4


def test_a_break_of_the_graph_parts_what_could_be_one_kernel() -> None:
    kernels = [conv(), stream("activation", 0), stream("cast", 1), stream("cast", 2)]
    kernels += [stream("recurrent", 3)._replace(serial=9.0), stream("elementwise", 1, 4)]
    kernels.append(stream("activation", 5))
    whole, parted = fuse(kernels), fuse(kernels, [range(2, 5)])
    assert [k.kind for k in whole] == ["conv_spatial", "cast", "recurrent", "activation"]
    assert [k.kind for k in parted] == [
        "conv_spatial", "activation", "cast", "cast", "recurrent", "activation",
    ]  # fmt: skip
    assert (whole[2].serial, parted[4].serial) == (9.0, 9.0)
    assert parted[5].sources == (1, 4)
