"""Which GPU or slice a device is, and which driver serves it."""

from __future__ import annotations

from dippm.measure.sources.calls import NotHere
from dippm.measure.sources.nvml_session import Session, locate


def identity(device: str | int = 0) -> dict[str, str | None]:
    """Return UUID, MIG profile and driver version of a device.

    Args:
        device: see `nvml_session.locate`.

    Returns:
        "device_uuid", "mig_profile" (None for a whole GPU) and "driver"; all None without NVML.
    """
    unknown: dict[str, str | None] = dict.fromkeys(("device_uuid", "mig_profile", "driver"))
    try:
        nvml = Session.open()
    except NotHere:
        return unknown
    try:
        place = locate(nvml, device)
        name = nvml.nvmlDeviceGetName(place.handle)
        return {
            "device_uuid": nvml.nvmlDeviceGetUUID(place.handle),
            # A slice is named "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
            "mig_profile": name.rpartition("MIG ")[2] if place.is_slice else None,
            "driver": nvml.nvmlSystemGetDriverVersion(),
        }
    except (NotHere, nvml.NVMLError):
        return unknown
    finally:
        Session.close()
