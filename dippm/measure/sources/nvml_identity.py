"""Which GPU or slice a device is, which driver serves it, and what that keeps for itself."""

from __future__ import annotations

from dippm.measure.readings import Absent, Quantity
from dippm.measure.sources.calls import CounterCall, NotHere
from dippm.measure.sources.nvml_session import Session, explain, locate

MB = 2**20
KEPT = (Quantity("memory_driver_mb", "MiB", "device", "what the driver keeps for itself"),)


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


def driver_memory_mb(device: str | int = 0) -> float | Absent:
    """Return the memory in MiB that the driver keeps for itself, or why that is not known.

    NVML's first answer about memory counts it as used, its second (driver 510 and newer) apart.

    Args:
        device: see `nvml_session.locate`.
    """
    try:
        nvml = Session.open()
    except NotHere as missing:
        return Absent(str(missing))
    try:
        handle = locate(nvml, device).handle
        return float(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).reserved / MB)
    except NotHere as missing:
        return Absent(str(missing))
    except (AttributeError, TypeError, nvml.NVMLError) as error:
        return Absent(explain(error, CounterCall(KEPT, tuple)).reason)
    finally:
        Session.close()
