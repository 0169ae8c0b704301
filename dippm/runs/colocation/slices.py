"""MIG slices: the profiles of a GPU, and slices of our own at chosen placements.

A slice is a GPU instance with one compute instance that fills it. Ids, sizes and placements come
from the driver. MIG mode is never switched, and no GPU is reset.
"""

from __future__ import annotations

from ctypes import byref, c_uint
from typing import Any, NamedTuple

from dippm.devices import Placement
from dippm.errors import CollocationError
from dippm.runs.colocation.boards import Board, collocation_error

PREFIX = "MIG "
SHARED_ENGINES = 0


class Profile(NamedTuple):
    """A MIG profile of a GPU as its driver reports it.

    Attributes:
        name: name such as "3g.20gb".
        id: the driver's id.
        compute_slices: number before "g".
        most: largest number of such instances.
    """

    name: str
    id: int
    compute_slices: int
    most: int


class Instance(NamedTuple):
    """An existing GPU instance.

    Attributes:
        id: the driver's id, reused after the instance is destroyed.
        profile_id: the driver's id of the profile.
        start: first memory slice.
        size: number of memory slices.
    """

    id: int
    profile_id: int
    start: int
    size: int


def check_mode(board: Board) -> None:
    """Refuse a GPU that is not in MIG mode.

    Raises:
        CollocationError: if the mode is off, with the command for an administrator.
    """
    try:
        current, pending = board.nvml.nvmlDeviceGetMigMode(board.handle)
    except board.nvml.NVMLError as error:
        raise collocation_error(error, f"{board.uuid} has no MIG mode") from error
    if current == 1 == pending:
        return
    change = "waits for a reset of the GPU" if current != pending else "is off"
    raise CollocationError(
        f"MIG mode of {board.uuid} {change}",
        f"DIPPM does not switch it. An administrator can, while the GPU is idle: "
        f"`nvidia-smi -i {board.uuid} -mig 1`.",
    )


def mode_is_on(board: Board) -> bool:
    """Whether the GPU is in MIG mode, where a process gets one slice at most."""
    try:
        return bool(board.nvml.nvmlDeviceGetMigMode(board.handle)[0])
    except (AttributeError, board.nvml.NVMLError):
        return False


def profiles(board: Board) -> tuple[Profile, ...]:
    """Return the MIG profiles of a GPU.

    Raises:
        CollocationError: if the driver does not list them.
    """
    nvml = board.nvml
    found = []
    for asked in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(board.handle, asked)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue  # this GPU has no such profile
        except nvml.NVMLError as error:
            raise collocation_error(
                error, f"the MIG profiles of {board.uuid} cannot be listed"
            ) from error
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        name = name.removeprefix(PREFIX).strip().casefold()
        found.append(Profile(name, info.id, info.sliceCount, info.instanceCount))
    return tuple(found)


def possible_placements(board: Board, profile: Profile) -> tuple[Placement, ...]:
    """Return all placements of a profile, occupied or not.

    Raises:
        CollocationError: if the driver does not list them.
    """
    nvml, count = board.nvml, c_uint()
    try:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            board.handle, profile.id, None, byref(count)
        )
        places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            board.handle, profile.id, places, byref(count)
        )
    except nvml.NVMLError as error:
        what = f"the places of {profile.name} on {board.uuid} cannot be listed"
        raise collocation_error(error, what) from error
    return tuple(
        Placement(profile.name, place.start, place.size) for place in places[: count.value]
    )


def layout(board: Board, known: tuple[Profile, ...]) -> tuple[Instance, ...]:
    """Return the existing GPU instances, ordered by position.

    Raises:
        CollocationError: if the driver does not list them.
    """
    try:
        found = [_read_instance(board, handle) for p in known for handle in _handles(board, p)]
    except board.nvml.NVMLError as error:
        raise collocation_error(error, f"the slices of {board.uuid} cannot be listed") from error
    return tuple(sorted(set(found), key=lambda instance: (instance.start, instance.id)))


def placements_of(
    instances: tuple[Instance, ...], known: tuple[Profile, ...]
) -> tuple[Placement, ...]:
    """Return the placements of instances; an unknown profile is named by its id."""
    names = {profile.id: profile.name for profile in known}
    return tuple(
        Placement(names.get(i.profile_id, f"profile {i.profile_id}"), i.start, i.size)
        for i in instances
    )


def create_instance(board: Board, profile: Profile, place: Placement) -> Instance:
    """Create a GPU instance at a placement.

    Raises:
        CollocationError: if the driver refuses.
    """
    nvml = board.nvml
    where = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    try:
        handle = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            board.handle, profile.id, byref(where)
        )
        return _read_instance(board, handle)
    except nvml.NVMLError as error:
        raise collocation_error(error, f"{place} cannot be made on {board.uuid}") from error


def create_compute_instance(board: Board, profile: Profile, instance: Instance) -> str:
    """Create the compute instance that fills a GPU instance; return the UUID of the slice.

    Raises:
        CollocationError: if the driver refuses.
    """
    nvml, what = board.nvml, f"{profile.name} at {instance.start} of {board.uuid} cannot be used"
    try:
        handle = handle_of(board, instance)
        if handle is None:
            raise CollocationError(f"{what}: it is gone", "Another process removed it: try again.")
        part = nvml.nvmlGpuInstanceCreateComputeInstance(
            handle, full_profile_id(board, handle, profile.compute_slices)
        )
        number = nvml.nvmlComputeInstanceGetInfo(part).id
        uuid = _uuid(board, instance.id, number)
    except nvml.NVMLError as error:
        raise collocation_error(error, what) from error
    if uuid is None:
        raise CollocationError(f"{what}: it has no MIG device", "`nvidia-smi -L` lists them.")
    return uuid


def full_profile_id(board: Board, handle: Any, compute_slices: int) -> int:
    """Return the profile id of the compute instance that fills a GPU instance."""
    nvml = board.nvml
    for asked in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, asked, SHARED_ENGINES)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        if info.sliceCount == compute_slices:
            return int(info.id)
    raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)


def handle_of(board: Board, instance: Instance) -> Any | None:
    """Return the handle of an instance that is exactly as recorded, else None."""
    for handle in _handles(board, Profile("", instance.profile_id, 0, 0)):
        if _read_instance(board, handle) == instance:
            return handle
    return None


def compute_instances(board: Board, handle: Any) -> list[tuple[Any, int]]:
    """Return handle and profile of each compute instance in a GPU instance."""
    nvml, found = board.nvml, []
    for asked in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, asked, SHARED_ENGINES)
            room, count = (nvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))(), c_uint()
            count.value = len(room)
            nvml.nvmlGpuInstanceGetComputeInstances(handle, info.id, room, byref(count))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        found += [(part, int(info.id)) for part in room[: count.value]]
    return found


def _handles(board: Board, profile: Profile) -> list[Any]:
    nvml, most = board.nvml, max(profile.most, 16)
    room, count = (nvml.c_nvmlGpuInstance_t * most)(), c_uint(most)
    nvml.nvmlDeviceGetGpuInstances(board.handle, profile.id, room, byref(count))
    return list(room[: count.value])


def _read_instance(board: Board, handle: Any) -> Instance:
    info = board.nvml.nvmlGpuInstanceGetInfo(handle)
    return Instance(info.id, info.profileId, info.placement.start, info.placement.size)


def _uuid(board: Board, instance: int, part: int) -> str | None:
    nvml = board.nvml
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board.handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board.handle, index)
        except nvml.NVMLError_NotFound:
            continue
        numbers = (
            nvml.nvmlDeviceGetGpuInstanceId(device),
            nvml.nvmlDeviceGetComputeInstanceId(device),
        )
        if numbers == (instance, part):
            return str(nvml.nvmlDeviceGetUUID(device))
    return None
