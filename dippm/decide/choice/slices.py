"""`smallest_slice`: the smallest MIG slice that holds a model and meets a limit."""

from __future__ import annotations

from typing import Any

from dippm.decide.choice.choice import Choice
from dippm.decide.choice.ranking import choose
from dippm.errors import ConditionsError
from dippm.estimate.grid import DEFAULT_DEVICE, DeviceLike, device_of


def smallest_slice(
    source: Any, framework: str | None = None, *, device: DeviceLike = DEFAULT_DEVICE, **rest: Any
) -> Choice:
    """Find the smallest slice of a GPU whose memory holds a model and that meets `slo_ms`.

    Args:
        source: see `dippm.predict`.
        framework: see `dippm.predict`.
        device: a GPU with MIG.
        rest: as `dippm.choose` takes it, for instance slo_ms, slo_at, batch, precision.

    Returns:
        Every slice, smallest first and the whole GPU last, each with its reason if it will not do;
        `best` is the whole GPU where no slice will.

    Raises:
        ConditionsError: if the GPU has no slices.
        NothingFeasibleError: if not even the whole GPU will do.
        DippmError: as `dippm.choose` does.
    """
    gpu = device_of(device)
    if not (gpu.mig_profiles or gpu.unlisted_mig_profiles):
        raise ConditionsError(
            f"{gpu.name} cannot be sliced",
            "`dippm devices` lists which GPUs have slices, for instance device=A100.",
        )
    return choose(source, framework, devices=gpu, slices=True, by="size", **rest)
