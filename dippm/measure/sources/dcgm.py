"""Activity of a GPU's units by a running DCGM daemon: for GPUs before Hopper.

`dcgmi dmon` needs no special rights; it watches its own group of fields and removes it when it
ends. No other group is touched, and no daemon is started or stopped. Not tested on a real daemon.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.nvml_session import identity
from dippm.measure.sources.program_lines import ProgramLines

MB = 2**20
PERIOD_MS = 100
"""Shortest period of `dcgmi dmon`."""
ANSWER_S = 10.0
NO_PROGRAM = "dcgmi is not installed: install NVIDIA's datacenter-gpu-manager"
NO_DAEMON = "DCGM's daemon does not answer (start nv-hostengine, or the service nvidia-dcgm)"
SLICE = "slices are numbered in DCGM's own way: name the whole GPU, or use gpm (Hopper and later)"
WAITING = "dcgmi has not answered yet: read again"


def _percent(text: str) -> float:
    return 100 * float(text)


def _mb_s(text: str) -> float:
    return float(text) / MB


def _field(name: str, unit: str, about: str) -> Quantity:
    return Quantity(name, unit, "device", about)


FIELDS: tuple[tuple[int, Quantity, Callable[[str], float]], ...] = (
    (1001, _field("graphics_active_percent", "%", "engine that runs kernels busy"), _percent),
    (1002, _field("sm_active_percent", "%", "multiprocessors busy"), _percent),
    (1003, _field("sm_occupancy_percent", "%", "warps of those possible"), _percent),
    (1004, _field("tensor_active_percent", "%", "tensor cores busy"), _percent),
    (1005, _field("dram_active_percent", "%", "bandwidth of that possible"), _percent),
    (1006, _field("fp64_active_percent", "%", "FP64 pipes busy"), _percent),
    (1007, _field("fp32_active_percent", "%", "FP32 pipes busy"), _percent),
    (1008, _field("fp16_active_percent", "%", "FP16 pipes busy, no tensor cores"), _percent),
    (1009, _field("pcie_tx_mb_s", "MiB/s", "sent by the GPU"), _mb_s),
    (1010, _field("pcie_rx_mb_s", "MiB/s", "received by the GPU"), _mb_s),
    (1011, _field("nvlink_tx_mb_s", "MiB/s", "sent over all links"), _mb_s),
    (1012, _field("nvlink_rx_mb_s", "MiB/s", "received over them"), _mb_s),
)
QUANTITIES = tuple(quantity for _, quantity, _ in FIELDS)
_ROW = re.compile(rb"^GPU\s+\d+\s+(.*)$")


class DcgmSource:
    """Activity of one GPU, read by our own `dcgmi dmon` process."""

    name = "dcgm"
    quantities = QUANTITIES

    def __init__(self, program: str, gpu: str) -> None:
        fields = ",".join(str(number) for number, _, _ in FIELDS)
        command = [program, "dmon", "-i", gpu, "-e", fields, "-d", str(PERIOD_MS)]
        self._lines = ProgramLines(command)
        self._said = b""
        self._row: list[str] = []

    def read(self) -> Readings:
        """Return the last values of `dcgmi`, repeated until there are new ones."""
        now = time.monotonic_ns()
        if self._lines.is_closed:
            return _all(now, "the source is closed")
        self._drain()
        if self._lines.exit_code is not None:
            said = self._said.decode(errors="replace").strip().splitlines()
            return _all(now, f"dcgmi ended: {said[-1] if said else self._lines.exit_code}")
        if not self._row:
            return _all(now, WAITING)
        values, absent = {}, {}
        for text, (_, quantity, convert) in zip(self._row, FIELDS, strict=True):
            try:
                values[quantity.name] = convert(text)
            except ValueError:
                absent[quantity.name] = f"DCGM says {text!r}"
        return Readings(now, values, absent)

    def close(self) -> None:
        """Terminate our `dcgmi` process."""
        self._lines.close()

    def _drain(self) -> None:
        for line in self._lines.read():
            row = _ROW.match(line.strip())
            words = row[1].decode(errors="replace").split() if row else []
            if len(words) == len(FIELDS):
                self._row = words
            elif line.strip() and not line.startswith((b"#", b"ID")):
                self._said = line


def open_dcgm(device: str | int = 0) -> Source:
    """Open the activity counters of a GPU; `device` as in `nvml_session.locate`."""
    program = shutil.which("dcgmi")
    if program is None:
        return AbsentSource(DcgmSource.name, QUANTITIES, NO_PROGRAM)
    if str(device).startswith("MIG-"):
        return AbsentSource(DcgmSource.name, QUANTITIES, SLICE)
    try:
        gpu = _number(program, device)
    except _NoAnswerError as error:
        return AbsentSource(DcgmSource.name, QUANTITIES, str(error))
    return DcgmSource(program, gpu)


class _NoAnswerError(Exception):
    pass


def _number(program: str, device: str | int) -> str:
    """Return DCGM's number of a device, which has its own order."""
    try:
        answer = subprocess.run(
            [program, "discovery", "-l"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NoAnswerError(f"{NO_DAEMON}: {error}") from error
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        raise _NoAnswerError(f"{NO_DAEMON}: {said[-1] if said else answer.returncode}")
    numbers: dict[str, str] = {}
    last = ""
    for line in answer.stdout.splitlines():
        if found := re.match(r"\|\s*(\d+)\s*\|", line):
            last = found[1]
        if found := re.search(r"Device UUID:\s*(\S+)", line):
            numbers[found[1]] = last
    uuid = identity(device)["device_uuid"] or str(device)
    named = [number for known, number in numbers.items() if known.startswith(uuid)]
    if named:
        return named[0]
    if uuid in numbers.values():
        return uuid
    raise _NoAnswerError(f"DCGM knows no GPU {uuid}, only {', '.join(numbers) or 'none'}")


def _all(time_ns: int, reason: str) -> Readings:
    return Readings(time_ns, {}, {quantity.name: reason for quantity in QUANTITIES})
