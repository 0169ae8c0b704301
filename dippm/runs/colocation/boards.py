"""`Board`: a GPU to share, its other users, and the meaning of its driver's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dippm.errors import CollocationError, DeviceBusyError, DevicePermissionError
from dippm.measure.sources.calls import NotHere
from dippm.measure.sources.mig import profile as profile_of
from dippm.measure.sources.nvml_session import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Session,
    locate,
    reason,
)
from dippm.measure.sources.tree import descendants

MB = 2**20
NO_ROOM, IN_USE = 23, 19
NO_GPU = 'A run without a GPU has "-" for its devices; `nvidia-smi -L` lists the GPUs.'
CONFIG = "/proc/driver/nvidia/capabilities/mig/config"


class Board(NamedTuple):
    """A GPU, or an existing MIG slice.

    Attributes:
        nvml: the module `pynvml` with an open session.
        handle: NVML handle of the whole GPU.
        uuid: UUID of the whole GPU.
        visible: UUID for CUDA_VISIBLE_DEVICES: that of the GPU, or of the slice that was named.
        slice: profile of the slice that was named, "" for none.
    """

    nvml: Any
    handle: Any
    uuid: str
    visible: str
    slice: str


class Neighbour(NamedTuple):
    """A process of someone else on a GPU.

    Attributes:
        pid: process id as the driver reports it.
        memory_mb: device memory in MiB; None if the driver does not report it.
    """

    pid: int
    memory_mb: float | None

    def __str__(self) -> str:
        memory = "memory not told" if self.memory_mb is None else f"{self.memory_mb:,.0f} MiB"
        return f"process {self.pid} ({memory})"


@contextmanager
def boards(devices: Sequence[str]) -> Iterator[tuple[Board, ...]]:
    """Open GPUs by index or UUID, see `nvml_session.locate`.

    Where CUDA_VISIBLE_DEVICES is set an index counts its entries, as in any CUDA program.

    Raises:
        CollocationError: if a GPU does not exist, or is named twice.
    """
    try:
        nvml = Session.open()
    except NotHere as missing:
        raise CollocationError(f"no GPU can be used: {missing}", NO_GPU) from None
    try:
        found = tuple(_board(nvml, device.strip()) for device in devices)
        if len({board.visible for board in found}) < len(found):
            names = ", ".join(devices)
            raise CollocationError(f"a GPU is named twice: {names}", "Name each device once.")
        yield found
    finally:
        Session.close()


def neighbours(board: Board) -> tuple[Neighbour, ...]:
    """Return the processes on a GPU outside of this process's tree.

    Raises:
        CollocationError: if the driver does not list them.
    """
    try:
        running = board.nvml.nvmlDeviceGetComputeRunningProcesses(board.handle)
    except board.nvml.NVMLError as error:
        raise collocation_error(error, f"the processes on {board.uuid} cannot be listed") from error
    mine = descendants(os.getpid())
    memory = {
        process.pid: None if process.usedGpuMemory is None else process.usedGpuMemory / MB
        for process in running
        if process.pid not in mine
    }
    return tuple(Neighbour(pid, memory_mb) for pid, memory_mb in sorted(memory.items()))


def check_alone(board: Board) -> None:
    """Refuse a GPU that is in use by others.

    Raises:
        DeviceBusyError: if there are other processes, naming them.
    """
    others = neighbours(board)
    if others:
        raise DeviceBusyError(
            f"{board.uuid} is in use: {', '.join(map(str, others))}",
            "Its slices are changed only while no other process uses it: wait, or take another "
            "GPU.",
        )


def collocation_error(error: Exception, what: str) -> CollocationError:
    """Return our error for an error of the driver, with the next step."""
    code = getattr(error, "value", None)
    if code == NO_PERMISSION:
        return DevicePermissionError(
            f"{what}: the driver refuses it to this user",
            f"MIG slices are made by root, or by a user with access to {CONFIG}: ask an "
            "administrator for either, or for the slice, whose UUID can be given as the device.",
        )
    if code == NOT_SUPPORTED:
        return CollocationError(
            f"{what}: not supported by this GPU or driver",
            "GPUs before Ampere, and most consumer GPUs, have no MIG: use mps.",
        )
    if code == FUNCTION_NOT_FOUND or isinstance(error, AttributeError):
        return CollocationError(
            f"{what}: the driver or nvidia-ml-py is older than this call", "Update both."
        )
    if code == NO_ROOM:
        return CollocationError(
            f"{what}: the driver finds no room", "`nvidia-smi mig -lgi` lists what is there."
        )
    return CollocationError(f"{what}: {reason(error)}", "`nvidia-smi` says how the GPU is.")


def _board(nvml: Any, device: str) -> Board:
    # An index counts visible devices only: a cluster's scheduler may have given the others away.
    counted = device.isdigit() and "CUDA_VISIBLE_DEVICES" in os.environ
    try:
        place = locate(nvml, f"cuda:{device}" if counted else device)
        uuid, visible = (nvml.nvmlDeviceGetUUID(h) for h in (place.board, place.handle))
        name = nvml.nvmlDeviceGetName(place.handle)
    except (NotHere, ValueError) as missing:
        raise CollocationError(str(missing), NO_GPU) from None
    except nvml.NVMLError as error:
        raise collocation_error(error, f"device {device!r} cannot be used") from error
    return Board(nvml, place.board, uuid, visible, profile_of(name) if place.is_slice else "")
