"""`smallest_slice`: the smallest MIG slice that holds a model and meets a limit."""

from __future__ import annotations

from typing import Any, Unpack

from dippm.decide.choice.choice import Choice
from dippm.decide.choice.limits import SloAt
from dippm.decide.choice.ranking import choose
from dippm.errors import ConditionsError
from dippm.estimate.options import SliceOptions, question
from dippm.estimate.place import DEFAULT_DEVICE, device_of


@question(SliceOptions)
def smallest_slice(
    source: Any,
    framework: str | None = None,
    *,
    slo_ms: float | None = None,
    slo_at: SloAt = "upper",
    max_memory_mb: float | None = None,
    **options: Unpack[SliceOptions],
) -> Choice:
    """Find the smallest slice of a GPU whose memory holds a model and that meets `slo_ms`.

    Args:
        source: see `dippm.predict`.
        framework: see `dippm.predict`.
        slo_ms: see `dippm.choose`, as the next two.
        slo_at: what has to hold to it.
        max_memory_mb: most memory.
        **options: see `dippm.Options`; the device is a GPU with MIG.

    Returns:
        Every slice, smallest first and the whole GPU last, each with its reason if it will not do;
        `best` is the whole GPU where no slice will.

    Raises:
        ConditionsError: if the GPU has no slices.
        NothingFeasibleError: if not even the whole GPU will do.
        DippmError: as `dippm.choose` does.
    """
    rest: dict[str, Any] = {**options}
    gpu = device_of(rest.pop("device", DEFAULT_DEVICE))
    if not (gpu.mig_profiles or gpu.unlisted_mig_profiles):
        raise ConditionsError(
            f"{gpu.name} cannot be sliced",
            "`dippm devices` lists which GPUs have slices, for instance device=A100.",
        )
    limits: Any = {"slo_ms": slo_ms, "slo_at": slo_at, "max_memory_mb": max_memory_mb}
    return choose(source, framework, devices=gpu, slices=True, by="size", **limits, **rest)
