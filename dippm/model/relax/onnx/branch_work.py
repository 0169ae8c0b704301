"""An estimate of the arithmetic of a branch, to compare it with another; not for the graph."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dippm.model.relax.onnx.values import Step, Tensor


def work(results: Sequence[Tensor | list[Tensor]], steps: Sequence[Step]) -> int:
    """Return the operations of those steps that the results depend on."""
    inside = {id(step) for step in steps}
    flat = [t for r in results for t in (r if isinstance(r, list) else [r])]
    stack = [t.producer for t in flat]
    total = 0
    while stack:
        step = stack.pop()
        if step is None or id(step) not in inside:
            continue
        inside.discard(id(step))
        total += _of_step(step)
        stack += [t.producer for t in step.inputs if t is not None and t.data is None]
    return total


def _of_step(step: Step) -> int:
    read = [t.shape for t in step.inputs if t is not None]
    written = sum(prod(t.shape) for t in step.outputs if t is not None)
    if len(read) < 2:
        return written
    if "ConvTranspose" in step.operator:
        return prod(read[0]) * prod(read[1][1:])
    if "Conv" in step.operator:
        return written * prod(read[1][1:])
    if ("MatMul" in step.operator or step.operator == "Gemm") and read[0]:
        return written * read[0][0 if step.attributes.get("transA") else -1]
    if step.operator in ("LSTM", "GRU", "RNN"):
        return prod(read[0][:2]) * sum(prod(shape) for shape in read[1:3])
    return written
