"""Which shipped checkpoint answers for a device and a phase when none was named.

The rule: of the checkpoints that know both, the default one; if it is not among them, the newest
version of the one whose name comes first. Other conditions do not count: a checkpoint that
was not trained for them refuses them and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dippm.devices import Device
from dippm.errors import ConditionsError, UnknownNameError
from dippm.estimate.conditions import Phase
from dippm.estimate.models.predictor import phases_of
from dippm.estimate.pretrained import store
from dippm.estimate.pretrained.store import CheckpointInfo


def for_device(device: Device, phase: Phase = "inference") -> CheckpointInfo:
    """Return the shipped checkpoint that answers for a device and a phase.

    Raises:
        UnknownNameError: if no shipped checkpoint knows the device.
        ConditionsError: if none that knows it predicts the phase.
        CheckpointError: if it is the default that would answer, and that is damaged.
    """
    default = store.find()
    if knows(default.config, device, phase):
        return default
    shipped = store.available()
    fitting = (info for info in shipped if knows(info.config, device, phase))
    found = next(fitting, None)
    if found is None:
        if any(_reaches(info.config, device) for info in shipped):
            what = "training steps" if phase == "train" else "inference"
            raise ConditionsError(
                f"no shipped checkpoint predicts {what} on {device.name}",
                "Name one of your own with checkpoint=..., or ask for another device or phase.",
            )
        listed = sorted({name for info in shipped for name in devices_of(info.config) or ()})
        raise UnknownNameError(
            f"no shipped checkpoint was trained on {device.name}",
            "Name one of your own with checkpoint=...; shipped ones answer for every GPU of "
            f"`dippm devices`{' and for ' + ', '.join(listed) if listed else ''}.",
        )
    return found


def knows(config: Mapping[str, Any], device: Device, phase: Phase = "inference") -> bool:
    """Return whether a checkpoint answers for a device and a phase."""
    return phase in phases_of(config) and _reaches(config, device)


def _reaches(config: Mapping[str, Any], device: Device) -> bool:
    listed = devices_of(config)
    return device.kind == "gpu" if listed is None else device.name in listed


def devices_of(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the devices that a checkpoint is limited to; None is every GPU, and no CPU."""
    return _listed(config, "devices")


def precisions_of(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the precisions that a checkpoint is limited to; None is no limit."""
    return _listed(config, "precision")


def frameworks_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return whose runs a checkpoint learned from, "torch" where it does not say."""
    return _listed(config, "framework") or ("torch",)


def _listed(config: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    conditions = config.get("conditions")
    listed = conditions.get(name) if isinstance(conditions, dict) else None
    return tuple(map(str, listed)) if isinstance(listed, list) else None
