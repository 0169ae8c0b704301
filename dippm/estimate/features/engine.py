"""What an inference engine makes of the kernels of eager mode.

An engine folds the batch norm after a convolution or a product into its weights, adds bias and
residual and applies the activation while the result is still in registers, writes the parts of a
concatenation where the whole will lie, and fuses what is left as a compiler does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dippm.estimate.features.fusion import fuse, joined_groups
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES

EPILOGUES = ("batch_norm", "broadcast", "activation", "costly_activation", "elementwise", "cast")
"""Classes that end a product: each element of the result by itself."""


def engine_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels that an engine runs.

    Args:
        kernels: of eager mode, in execution order, with their sources.
    """
    return fuse(_without_concatenations(_with_epilogues(kernels)))


def _with_epilogues(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Join to each product the kernels that do one thing to each element of its result."""
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
