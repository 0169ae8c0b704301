"""NVML in this process: its session, the handles of devices and what they are, its errors."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dippm.measure.readings import Absent, AbsentSource, Quantity, Source
from dippm.measure.sources.calls import Calls, CounterCall, CounterSource, Failure, NotHere

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 13, 15
LOST = {
    1: "NVML was shut down",
    9: "the NVIDIA driver is not loaded: see `nvidia-smi`",
    GPU_IS_LOST: "the GPU is lost (fell off the bus): look for Xid messages in the kernel log",
    16: "the GPU needs a reset before it answers again",
    18: "NVML and the driver have different versions: restart after the driver's update",
}
NO_LIBRARY = "libnvidia-ml.so.1 not found: this machine has no NVIDIA driver"
UNORDERED = (
    "GPUs of several kinds, which CUDA numbers by speed and NVML by bus: name one by UUID, or set "
    "CUDA_DEVICE_ORDER=PCI_BUS_ID"
)
NO_BINDING = "nvidia-ml-py is not installed: pip install nvidia-ml-py"


class Session:
    """NVML between the first `open` and the last `close` of this process."""

    _lock = threading.Lock()
    _users = 0
    _process = 0

    @classmethod
    def open(cls) -> Any:
        """Return the module `pynvml`, initialised.

        Raises:
            NotHere: if something is missing, naming it.
        """
        try:
            import pynvml
        except ImportError:
            raise NotHere(NO_BINDING, lasts=True) from None
        with cls._lock:
            if cls._process != os.getpid():  # handles of a forked parent do not work here
                cls._users, cls._process = 0, os.getpid()
            if cls._users == 0:
                try:
                    pynvml.nvmlInit()
                except pynvml.NVMLError as error:
                    raise NotHere(reason(error), lasts=True) from None
            cls._users += 1
        return pynvml

    @classmethod
    def close(cls) -> None:
        """Shut NVML down if it is not used elsewhere in this process."""
        with cls._lock:
            if cls._process != os.getpid() or cls._users == 0:
                return
            cls._users -= 1
            if cls._users == 0:
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):  # a lost GPU cannot be shut down
                    pynvml.nvmlShutdown()


def reason(error: Exception) -> str:
    """Return the meaning of an NVML error, with a remedy if there is one."""
    code = getattr(error, "value", None)
    if code == 12:
        return NO_LIBRARY
    if isinstance(code, int) and code in LOST:
        return LOST[code]
    return f"NVML says {str(error)!r}"


def explain(error: Exception, call: CounterCall, remedies: dict[str, str] | None = None) -> Failure:
    """Return why an NVML call failed, and whether it is worth trying again."""
    code = getattr(error, "value", None)
    name = call.quantities[0].name
    remedy = (remedies or {}).get(name, "")
    if isinstance(error, NotHere):
        return Failure(str(error), error.lasts)
    if isinstance(error, AttributeError):
        text = f"the installed nvidia-ml-py is too old ({error}): pip install -U nvidia-ml-py"
        return Failure(text, lasts=True)
    if code in LOST:
        return Failure(reason(error), lasts=True, whole=True)
    if code == NOT_SUPPORTED:
        return Failure(_with_remedy("not supported by this GPU or driver", remedy), lasts=True)
    if code == FUNCTION_NOT_FOUND:
        return Failure("the driver is older than this counter: update it", lasts=True)
    if code == NO_PERMISSION:
        return Failure(_with_remedy("NVML refuses it to this user", remedy), lasts=True)
    return Failure(reason(error))


def _with_remedy(text: str, remedy: str) -> str:
    return f"{text}: {remedy}" if remedy else text


@dataclass(frozen=True, slots=True)
class DeviceContext:
    """The device that counters are read from.

    Attributes:
        nvml: the module `pynvml`.
        handle: handle of the requested device, which may be a MIG slice.
        board: handle of the whole device; the same unless it is a slice.
        gpu_instance: number of the slice's GPU instance, None for a whole device.
    """

    nvml: Any
    handle: Any
    board: Any
    gpu_instance: int | None = None

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice."""
        return self.gpu_instance is not None


def locate(nvml: Any, device: str | int = 0) -> DeviceContext:
    """Return the context of a device.

    Args:
        nvml: module that `Session.open` returned.
        device: NVML's index (order of the bus, regardless of CUDA_VISIBLE_DEVICES), a UUID of a GPU
            or MIG instance (with or without prefix, as in torch), or "cuda:N" in torch's numbering
            in this process.

    Raises:
        NotHere: if the device does not exist.
    """
    try:
        handle = _handle(nvml, device)
        return _context(nvml, handle)
    except nvml.NVMLError as error:
        raise NotHere(f"no device {device!r} for NVML: {reason(error)}", lasts=True) from None


def _handle(nvml: Any, device: str | int) -> Any:
    text = str(device)
    if text.startswith("cuda"):
        return _handle_of_torch(nvml, int(text.partition(":")[2] or 0))
    if text.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(text))
    if text.startswith(("GPU-", "MIG-")):
        return _handle_of_prefix(nvml, text)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{text}")
    except nvml.NVMLError:  # under MIG the device that torch sees is the slice
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{text}")


def _context(nvml: Any, handle: Any) -> DeviceContext:
    try:
        # A c_uint in some versions of the binding, an int in others.
        is_slice = bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))
    except (AttributeError, nvml.NVMLError):
        is_slice = False  # bindings and drivers from before MIG
    if not is_slice:
        return DeviceContext(nvml, handle, handle)
    board = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return DeviceContext(nvml, handle, board, nvml.nvmlDeviceGetGpuInstanceId(handle))


def _handle_of_torch(nvml: Any, index: int) -> Any:
    name = torch_uuid(index) or str(index)
    if name.isdigit() and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        if len({nvml.nvmlDeviceGetName(handle) for handle in handles}) > 1:
            raise NotHere(UNORDERED, lasts=True)
    return _handle(nvml, name)


def torch_uuid(index: int) -> str:
    """Return the device that torch calls "cuda:`index`" in this process.

    The answer comes from torch, if it is imported; else from CUDA_VISIBLE_DEVICES, whose numbers
    are those of NVML only if CUDA orders devices by bus.

    Returns:
        A UUID (its prefix "GPU-" or "MIG-" may be missing), an index of NVML as text, or "" if
        nothing renumbers the devices.

    Raises:
        NotHere: if the device is hidden by CUDA_VISIBLE_DEVICES.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and index < torch.cuda.device_count():
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if uuid is not None:
            return str(uuid)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        raise NotHere(f"CUDA_VISIBLE_DEVICES={visible!r} shows no device {index}", lasts=True)
    return names[index]


def _handle_of_prefix(nvml: Any, uuid: str) -> Any:
    """Return the device with a UUID prefix: CUDA accepts shortened UUIDs, NVML does not."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(handle).startswith(uuid):
                return handle
        raise


# What the sources of an NVML device share: opening, reading and closing.


class DeviceCounters(CounterSource):
    """Counters of one device; a subclass defines name, quantities and calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._open = True

    def close(self) -> None:
        """Shut NVML down, unless it is used elsewhere in this process."""
        if self._open:
            self._open = False
            super().close()
            Session.close()


def open_at(
    device: str | int,
    make: Callable[[DeviceContext], Source],
    *,
    name: str,
    quantities: tuple[Quantity, ...],
) -> Source:
    """Return the source that `make` creates for a device, or reasons if that fails.

    Args:
        device: see `nvml_session.locate`.
        make: creates the source; may raise `NotHere`.
        name: name of the source.
        quantities: quantities of the source.
    """
    try:
        nvml = Session.open()
    except NotHere as missing:
        return AbsentSource(name, quantities, str(missing))
    try:
        return make(locate(nvml, device))
    except NotHere as missing:
        Session.close()
        return AbsentSource(name, quantities, str(missing))


# Which GPU or slice a device is, which driver serves it, and what that keeps for itself.


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
