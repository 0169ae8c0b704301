"""The largest batch that a memory holds, found by few evaluations of the memory of a batch.

`sweep`, `choose`, `mig` and `llm` all ask here. What decides is the 99 % bound of the memory, which
on a slice is that of the whole GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from dippm.errors import DippmError
from dippm.estimate.conditions import MAX_BATCH, Conditions
from dippm.estimate.models.predictor import Predictor
from dippm.model.graph import ModelGraph


def largest_batch(
    bound_mb: Callable[[int], float | None], room_mb: float, most: int = MAX_BATCH
) -> int | None:
    """Return the largest batch from 1 to `most` that needs at most `room_mb`; None if 1 does not.

    Memory grows with the batch, nearly in a line: doubling finds a batch that does not fit, a line
    from the one before says where the answer is, and growing steps from there find it.

    Args:
        bound_mb: function of the memory at a batch in MiB; None counts as not fitting.
        room_mb: available memory in MiB.
        most: largest batch to consider.
    """

    def over_mb(batch: int) -> float:
        bound = bound_mb(batch)
        return float("inf") if bound is None else bound - room_mb

    low, under = 1, over_mb(1)
    if under > 0:
        return None
    high, over = 2, float("inf")
    while high <= most and (over := over_mb(high)) <= 0:
        low, under, high, over = high, over, 2 * high, float("inf")
    if high > most:
        high = most + 1
        if low < most:
            if (over := over_mb(most)) <= 0:
                return most
            high = most
    middle = low + int((high - low) * -under / (over - under))  # low itself if `over` is not known
    middle = min(max(middle, low + 1), high - 1)
    upwards = high - low > 1 and over_mb(middle) <= 0
    low, high = (middle, high) if upwards else (low, max(middle, low + 1))
    step = 1
    while high - low > 1:
        near = low + step if upwards else high - step
        middle = near if step and low < near < high else (low + high) // 2
        if fits := over_mb(middle) <= 0:
            low = middle
        else:
            high = middle
        step = 2 * step if fits == upwards else 0
    return low


def largest_batch_at(
    predictor: Predictor, graph: ModelGraph, c: Conditions, room_mb: float | None = None
) -> int | None:
    """Return the largest batch of a model that a GPU or slice holds; None if not even 1 fits.

    Args:
        predictor: predictor of the memory.
        graph: the model; if it fixes its batch, only that one is considered.
        c: conditions, whose batch does not matter.
        room_mb: available memory in MiB; None for all memory of the place.
    """
    room = c.capacity_mb if room_mb is None else room_mb
    if not graph.batch_is_symbolic:
        needs_mb = memory_bound_mb(predictor, graph, c.replace(batch=graph.batch))
        return graph.batch if needs_mb is not None and needs_mb <= room else None
    return largest_batch(
        lambda batch: memory_bound_mb(predictor, graph, c.replace(batch=batch)), room
    )


def memory_bound_mb(predictor: Predictor, graph: ModelGraph, c: Conditions) -> float | None:
    """Return the 99 % bound of the memory, in MiB; None where it cannot be predicted."""
    alone = getattr(predictor, "memory_bound_mb", None)
    try:
        if alone is not None:
            return float(alone(graph, c))
        return predictor.predict_many(graph, [c])[0].memory_bound_mb
    except DippmError:  # the size is out of reach
        return None
