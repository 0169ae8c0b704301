"""The kernels of an inference engine, made of those of eager mode.

TensorRT folds the batch norm after a convolution or a product into its weights, adds bias and
residual and applies the activation while the result is still in registers, writes the parts of a
concatenation where the whole will lie, and fuses what is left as a compiler does. ONNX Runtime
folds, joins a residual to the norm that reads it, and runs everything else operator by operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dippm.estimate.features.fusion import fuse, joined_groups
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES

IN_EIGHT_BITS = ("activation", "elementwise", "broadcast", "pool", "concat", "copy", "resize")
"""Classes whose results stay in 8 bits between convolutions."""

EPILOGUES = ("batch_norm", "broadcast", "activation", "costly_activation", "elementwise", "cast")
"""Classes that fuse into the end of a product: element-wise on its result."""


def session_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels that ONNX Runtime's CUDA provider runs.

    A batch norm after a convolution is folded into its weights; what it leaves is the pass that
    adds the bias, since cuDNN adds none there (`fuse_conv_bias` is off as it comes). What exporters
    spell in steps of one operator (GELU, SiLU) is a node. A sum that a layer norm alone reads is
    part of it (SkipLayerNormalization), a factor part of its product (FusedMatMul).

    Args:
        kernels: kernels of eager mode in execution order, with their sources.
    """
    readers = Counter(source for kernel in kernels for source in kernel.sources)
    groups: list[list[int]] = []
    group_of: list[int] = []
    for position, kernel in enumerate(kernels):
        members = [position]
        for source in kernel.sources:
            group = groups[group_of[source]]
            if group[-1] == source and _is_one_node(kernels[source], kernel, readers[source]):
                members = sorted({*group, *members})
                groups[group_of[source]] = []
        groups.append(members)
        group_of.append(0)
        for member in members:
            group_of[member] = len(groups) - 1
    joined = joined_groups(kernels, groups, group_of)
    return [_with_bias(kernel, joined) for kernel in joined]


def _is_one_node(source: Kernel, kernel: Kernel, readers: int) -> bool:
    """Tell whether ONNX Runtime makes one node of two kernels that follow each other."""
    if readers != 1:
        return False
    pair, steps = (source.kind, kernel.kind), ("elementwise", "broadcast", "costly_activation")
    if pair == ("costly_activation", "elementwise"):  # x · sigmoid(x)
        return set(source.sources) < set(kernel.sources)
    if pair == ("elementwise", "layer_norm"):
        return True
    if source.node != kernel.node:
        return False
    factor = kernel if source.kind == "batched_gemm" else source
    if "batched_gemm" in pair:
        return factor.kind in steps and len(factor.sources) <= 1
    return source.kind in steps and kernel.kind in steps


def _with_bias(kernel: Kernel, kernels: Sequence[Kernel]) -> Kernel:
    """Return the batch norm of a convolution as the pass over its result that adds the bias."""
    after = [kernels[source].kind.startswith("conv_") for source in kernel.sources]
    return (
        kernel._replace(kind="broadcast") if kernel.kind == "batch_norm" and all(after) else kernel
    )


def in_eight_bits(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return kernels of half precision with the layers that an engine has for 8 bits in these.

    Convolutions and dense layers read and multiply 8 bits; convolutions write them, too, and what
    only moves or adds their results keeps them. Attention, norms and softmax stay in half.

    Args:
        kernels: kernels of an engine in fp16 in execution order, with their sources.
    """
    found: list[Kernel] = []
    for kernel in kernels:
        row, is_layer = KERNEL_CLASSES[kernel.kind], kernel.kind.startswith("conv_")
        if is_layer or kernel.kind == "gemm":
            kernel = kernel._replace(
                unit="int8" if row.tensor_cores else kernel.unit,
                read_bytes=kernel.read_bytes / 2,
                weight_bytes=kernel.weight_bytes / 2,
                write_bytes=kernel.write_bytes / (2 if is_layer else 1),
                in_bytes=1,
                out_bytes=1 if is_layer else 2,
            )
        elif kernel.kind in IN_EIGHT_BITS and {found[s].out_bytes for s in kernel.sources} == {1}:
            kernel = kernel._replace(
                read_bytes=kernel.read_bytes / 2,
                write_bytes=kernel.write_bytes / 2,
                in_bytes=1,
                out_bytes=1,
            )
        found.append(kernel)
    return found


def engine_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels that TensorRT runs.

    Args:
        kernels: kernels of eager mode in execution order, with their sources.
    """
    return fuse(_without_concatenations(_with_epilogues(kernels)))


def _with_epilogues(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Fuse into each product the element-wise kernels on its result."""
    readers = Counter(source for kernel in kernels for source in kernel.sources)
    groups: list[list[int]] = [[] for _ in kernels]
    group_of: list[int] = []
    for position, kernel in enumerate(kernels):
        joined = position
        for source in sorted(kernel.sources, reverse=True):
            if _ends(kernel, kernels, source, readers, groups[group_of[source]]):
                others = (group_of[s] for s in kernel.sources if s != source)
                if all(groups[other][-1] < groups[group_of[source]][0] for other in others):
                    joined = group_of[source]
                break
        groups[joined].append(position)
        group_of.append(joined)
    return joined_groups(kernels, groups, group_of)


def _ends(
    kernel: Kernel,
    kernels: Sequence[Kernel],
    source: int,
    readers: Counter[int],
    members: Sequence[int],
) -> bool:
    """Tell whether a kernel can become the end of the product that its source belongs to."""
    product, last = kernels[members[0]], kernels[source]
    if kernel.kind not in EPILOGUES or not KERNEL_CLASSES[product.kind].matrix:
        return False
    if members[-1] != source or readers[source] != 1 or product.kind == "recurrent":
        return False
    return last.write_bytes * kernel.out_bytes == kernel.write_bytes * last.out_bytes


def _without_concatenations(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Drop concatenations whose parts other kernels write where the whole will lie."""
    readers = Counter(source for kernel in kernels for source in kernel.sources)
    sources_of: list[tuple[int, ...]] = []
    kept: dict[int, int] = {}
    found: list[Kernel] = []
    for position, kernel in enumerate(kernels):
        sources = tuple(sorted({at for s in kernel.sources for at in sources_of[s]}))
        written = sum(kernels[s].write_bytes for s in kernel.sources)
        if (
            kernel.kind == "concat"
            and kernel.sources
            and all(readers[s] == 1 for s in kernel.sources)
            and written >= kernel.write_bytes
        ):
            sources_of.append(sources)
            continue
        kept[position] = len(found)
        found.append(kernel._replace(sources=sources))
        sources_of.append((kept[position],))
    return found
