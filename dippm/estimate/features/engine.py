"""The kernels of an inference engine, made of those of eager mode.

TensorRT folds the batch norm after a convolution or a product into its weights, adds bias and
residual and applies the activation while the result is still in registers, writes the parts of a
concatenation where the whole will lie, and fuses what is left as a compiler does. What exporters
spell in steps it takes as what it is: a padded convolution, an activation, attention. ONNX Runtime
folds, joins a residual to the norm that reads it, and runs everything else operator by operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dippm.estimate.features.fusion import fuse, joined_groups
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.model.graph.calls import CallSequence, OperatorCall

IN_EIGHT_BITS = ("activation", "elementwise", "broadcast", "pool", "concat", "copy", "resize")
"""Classes whose results stay in 8 bits between convolutions."""

EPILOGUES = ("batch_norm", "broadcast", "activation", "costly_activation", "elementwise", "cast")
"""Classes that fuse into the end of a product: element-wise on its result."""


def fold_constants(sequence: CallSequence) -> CallSequence:
    """Return the calls that are left for each pass.

    An engine computes while it is built what depends on no input, such as the scale of a frozen
    batch norm or a table of positions.
    """
    tensors, calls = list(sequence.tensors), list[OperatorCall]()
    for call in sequence.calls:
        if call.op == "random" or not all(tensors[p].is_parameter for p in call.inputs):
            calls.append(call)
            continue
        for out in call.outputs:
            tensors[out] = replace(tensors[out], is_parameter=True)
    return replace(sequence, tensors=tuple(tensors), calls=tuple(calls))


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
    whole = _with_activations(_with_padding(kernels))
    return fuse(_without_concatenations(_with_attention(_with_epilogues(whole))))


def _with_padding(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Let convolutions pad their input themselves: TensorFlow's SAME, written as a copy before."""
    readers, found, dropped = _readers(kernels), list(kernels), dict[int, Sequence[int]]()
    for at, kernel in enumerate(kernels):
        if not kernel.kind.startswith("conv_"):
            continue
        for copy in kernel.sources:
            fill = copy - 1
            is_padding = (
                (kernels[copy].kind, kernels[copy].node, readers[copy])
                == ("copy", kernel.node, [at])
            ) and (fill >= 0 and kernels[fill].node == kernel.node)
            if is_padding and not (kernels[fill].read_bytes or readers[fill]):
                more = kernels[fill].write_bytes - kernels[copy].write_bytes
                found[at] = found[at]._replace(read_bytes=found[at].read_bytes - more)
                dropped |= {fill: (), copy: kernels[copy].sources}
    return _without(found, dropped)


def _with_activations(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Make one kernel of an activation in steps, such as x · (1 + erf(x / √2)) / 2."""
    readers, found, dropped = _readers(kernels), list(kernels), dict[int, Sequence[int]]()
    start = 0
    for end, kernel in enumerate(kernels):
        if kernel.node != kernels[start].node or kernel.kind not in EPILOGUES:
            start = end + (kernel.kind not in EPILOGUES)
            continue
        steps = range(start, end + 1)
        goes_on = end + 1 < len(kernels) and kernels[end + 1].node == kernel.node
        read = {s for at in steps for s in kernels[at].sources if s < start}
        if len(steps) < 2 or goes_on or len(read) != 1:
            continue
        (source,) = read
        inside = all(reader in steps for at in (source, *steps[:-1]) for reader in readers[at])
        if inside and kernels[source].write_bytes * kernel.out_bytes == (
            kernel.write_bytes * kernels[source].out_bytes
        ):
            found[end] = kernel._replace(
                kind="costly_activation",
                flops=sum(kernels[at].flops for at in steps),
                read_bytes=kernels[source].write_bytes,
                sources=(source,),
            )
            dropped |= dict.fromkeys(steps[:-1], ())
    return _without(found, dropped)


def _with_attention(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Make one kernel of attention in steps: scores, softmax, sum of values, copies of heads.

    Scores to which something is added, such as a bias by position, stay in steps.
    """
    readers, found, dropped = _readers(kernels), list(kernels), dict[int, Sequence[int]]()
    for at, softmax in enumerate(kernels):
        if softmax.kind != "softmax" or len(softmax.sources) != 1 or len(readers[at]) != 1:
            continue
        (first,), (last,) = softmax.sources, readers[at]
        scores, values = kernels[first], kernels[last]
        if not _is_attention(scores, softmax, values) or readers[first] != [at]:
            continue
        size = scores.in_bytes * scores.copies * values.n * values.k
        operands = {*scores.sources, *values.sources} - {at}
        found[last] = values._replace(
            kind="attention",
            flops=scores.flops + values.flops,
            read_bytes=scores.read_bytes + size,
            m=scores.m,
            n=scores.n,
            k=scores.k,
            sources=tuple(sorted(operands)),
        )
        dropped |= {first: (), at: ()}
        for operand in operands:
            for one in _preparation(operand, kernels, readers, scores.node):
                dropped[one] = kernels[one].sources
        if len(readers[last]) == 1 and kernels[readers[last][0]].kind == "copy":
            dropped[readers[last][0]] = (last,)
    return _without(found, dropped)


def _is_attention(scores: Kernel, softmax: Kernel, values: Kernel) -> bool:
    """Tell whether scores, softmax and weighted values are attention and nothing more."""
    if {scores.kind, values.kind} != {"batched_gemm"} or scores.copies != values.copies:
        return False
    operands = scores.in_bytes * scores.copies * scores.k * (scores.m + scores.n)
    size = values.in_bytes * values.copies * values.n * values.k
    return (scores.m, scores.n) == (values.m, values.k) and (
        scores.read_bytes <= operands and values.read_bytes <= softmax.write_bytes + size
    )


def _preparation(
    operand: int, kernels: Sequence[Kernel], readers: Sequence[Sequence[int]], node: int
) -> Iterator[int]:
    """Yield the copies of heads and the scaling of its own that attention does as it reads."""
    while len(readers[operand]) == 1 and len(kernels[operand].sources) <= 1:
        kernel = kernels[operand]
        scales = (kernel.kind, kernel.node) == ("elementwise", node)
        if not (kernel.kind == "copy" or scales) or kernel.read_bytes > kernel.write_bytes:
            return
        yield operand
        if not kernel.sources:
            return
        (operand,) = kernel.sources


def _readers(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Return the positions of the kernels that read each kernel's result."""
    found: list[list[int]] = [[] for _ in kernels]
    for at, kernel in enumerate(kernels):
        for source in kernel.sources:
            found[source].append(at)
    return found


def _without(kernels: Sequence[Kernel], dropped: Mapping[int, Sequence[int]]) -> list[Kernel]:
    """Return the kernels without some; what reads one of these reads what is given for it."""
    found: list[Kernel] = []
    stands_for: list[tuple[int, ...]] = []
    for at, kernel in enumerate(kernels):
        sources = dropped.get(at, kernel.sources)
        places = tuple(sorted({place for source in sources for place in stands_for[source]}))
        if at not in dropped:
            places, kernel = (len(found),), kernel._replace(sources=places)
            found.append(kernel)
        stands_for.append(places)
    return found


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
    dropped: dict[int, Sequence[int]] = {}
    for at, kernel in enumerate(kernels):
        written = sum(kernels[s].write_bytes for s in kernel.sources)
        own = kernel.sources and all(readers[s] == 1 for s in kernel.sources)
        if kernel.kind == "concat" and own and written >= kernel.write_bytes:
            dropped[at] = kernel.sources
    return _without(kernels, dropped)
