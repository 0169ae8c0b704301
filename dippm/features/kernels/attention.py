"""Attention that the framework is asked for as one: a fused kernel, or what an unfused one runs."""

from __future__ import annotations

from dataclasses import replace

from dippm.features.kernel import Kernel
from dippm.features.kernels.products import product
from dippm.features.kernels.run import Run
from dippm.graph.calls import Call
from dippm.graph.operators import operator

FUSED_RANK = 4


def attention(run: Run, call: Call) -> None:
    """Launch one fused kernel, or a kernel for each step where no fused one takes the operands."""
    a, out = call.attributes, run.tensor(call.outputs[0])
    query = run.tensor(call.inputs[0]).shape
    queries, keys = float(a["query_length"]), float(a["key_length"])
    width = float(a["head_dim"])
    formula = operator("attention").macs
    macs = formula(a, tuple(run.tensor(p).shape for p in call.inputs), (out.shape,)) if formula else 0
    heads = macs / max(1.0, 2.0 * queries * keys * width)
    rank = len(query)
    strides = None
    if rank == FUSED_RANK:  # as the layers before and after it want it: batch, length, heads, width
        _, many, rows, wide = out.shape
        strides = (many * rows * wide, wide, many * wide, 1)
    kernel = product(
        run,
        call,
        "attention",
        (queries, keys, width),
        copies=heads,
        flops=2.0 * macs,
        operands=call.inputs,
        strides=strides,
    )
    run.kernels[-1] = replace(run.kernels[-1], strided=False)
    if rank > FUSED_RANK:
        _unfuse(run, call, replace(kernel, sources=run.kernels.pop().sources))


def _unfuse(run: Run, call: Call, fused: Kernel) -> None:
    """Launch scaled operands, scores = queries · keys, their softmax, scores · values."""
    queries, keys, width, heads = fused.m, fused.n, fused.k, fused.copies
    scores, item, i = queries * keys * heads, fused.in_bytes, call.node
    before = fused.sources
    wide = 4 if run.autocast else item
    read = (queries + keys) * width * heads
    steps = [
        Kernel.stream(i, "elementwise", queries * width * heads, item),
        Kernel.stream(i, "elementwise", keys * width * heads, item),
        replace(
            fused, kind="batched_gemm", flops=fused.flops / 2, read_bytes=item * read,
            write_bytes=item * scores, m=queries, n=keys, k=width,
        ),
        replace(
            Kernel.stream(i, "softmax", scores, item, wide), m=queries * heads, n=keys,
            flops=5.0 * scores,
        ),
        replace(
            fused, kind="batched_gemm", flops=fused.flops / 2,
            read_bytes=item * (scores + keys * width * heads),
            write_bytes=item * queries * width * heads, m=queries, n=width, k=keys,
        ),
    ]  # fmt: skip
    if wide != item:
        steps.insert(4, Kernel.stream(i, "cast", scores, wide, item))
    for kernel in steps:
        before = (run.emit(replace(kernel, sources=()), after=before),)
    run.make(call.outputs[0], item)
