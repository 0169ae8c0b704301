"""Pipeline parallelism: operators in stages, one GPU each, and batches in parts that follow.

With m parts and p stages, stages of equal time are idle for a share (p - 1) / (m + p - 1) of a step
(Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019, section 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def cuts_of(times: Sequence[float], stages: int) -> list[int]:
    """Return where each stage ends, so that the longest is as short as it can be.

    Args:
        times: of operators in execution order, in ms.
        stages: at most as many as operators.

    Returns:
        Positions behind the last operator of each stage, the last one being len(times).
    """
    until = [0.0, *accumulate(times)]
    low, high = max(times), until[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _ends(until, middle, stages) else (middle, high)
    ends = _ends(until, high * (1 + 1e-9), stages)
    assert ends is not None
    # Fewer stages may do: the longest are cut until there are as many as GPUs.
    while len(ends) < stages:
        starts = [0, *ends[:-1]]
        widths = [(until[e] - until[s], s, e) for s, e in zip(starts, ends, strict=True)]
        _, start, end = max((w for w in widths if w[2] - w[1] > 1), key=lambda w: w[0])
        middle = (until[start] + until[end]) / 2
        cut = min(range(start + 1, end), key=lambda i: abs(until[i] - middle))
        ends = sorted({*ends, cut})
    return ends


def pipeline_ms(stage_ms: Sequence[float], send_ms: Sequence[float], parts: int) -> float:
    """Return the time in which all parts of a batch pass all stages, in ms.

    Args:
        stage_ms: time of one part in each stage.
        send_ms: between each stage and the next.
        parts: of the batch.
    """
    first = sum(stage_ms) + sum(send_ms)
    slowest = max(t + s for t, s in zip(stage_ms, [*send_ms, 0.0], strict=True))
    return first + (parts - 1) * slowest


def _ends(until: Sequence[float], most: float, stages: int) -> list[int] | None:
    """Return the stages' ends if none takes longer than `most`; None if they need more stages."""
    ends, start, count = [], 0, len(until) - 1
    while start < count:
        end = start + 1
        while end < count and until[end + 1] - until[start] <= most:
            end += 1
        ends.append(end)
        if len(ends) > stages:
            return None
        start = end
    return ends
