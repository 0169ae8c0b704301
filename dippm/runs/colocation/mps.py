"""MPS servers of our own, in private directories; other servers are never touched.

A server's processes are identified by its private directory in their environment, so a reused pid
does no harm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dippm.errors import CollocationError
from dippm.runs.colocation.journal import UndoOutcome
from dippm.runs.colocation.sharing import Sharing

PROGRAM = "nvidia-cuda-mps-control"
NAME = b"nvidia-cuda-mps"
"""Name of MPS processes as Linux truncates it."""
FOLDER = "dippm-mps-"
LONGEST_SOCKET = 107
PATIENCE_S = 20.0
QUIT_S = 10.0
PAUSE_S = 0.05
NO_PROGRAM = (
    f"{PROGRAM} comes with the NVIDIA driver's compute tools: install them or add it to PATH."
)


class Server(NamedTuple):
    """An MPS server, identified by its private directory.

    Attributes:
        folder: private parent of the directories of pipes and logs, mode 0700.
        visible: UUIDs of the devices that it serves.
    """

    folder: str
    visible: tuple[str, ...]

    @classmethod
    def new(cls, visible: tuple[str, ...]) -> Server:
        """Return a server that is not started; nothing is created yet."""
        name = FOLDER + os.urandom(6).hex()
        places = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")
        longest = len(f"/{name}/pipe/control_privileged") + 1
        fitting = (p for p in places if p and os.access(p, os.W_OK))
        root = next((p for p in fitting if len(os.fsencode(p)) + longest <= LONGEST_SOCKET), "/tmp")
        return cls(os.path.join(root, name), visible)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for the journal."""
        return self._asdict()

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Server:
        """Return the server of a journal's JSON form."""
        return cls(str(held["folder"]), tuple(held["visible"]))

    @property
    def directories(self) -> dict[str, str]:
        """Environment variables through which the server and its clients find each other."""
        pipe, log = (os.path.join(self.folder, name) for name in ("pipe", "log"))
        return {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": log}

    def __str__(self) -> str:
        return f"the MPS server of {self.folder}"


def start(server: Server, sharing: Sharing) -> dict[str, str]:
    """Start a server with its limits for all clients; return the facts to record.

    Raises:
        CollocationError: if it does not start; the caller has to stop what did.
    """
    _create_directories(server)
    with tempfile.TemporaryFile() as talk:  # reading a pipe would wait for the daemon to exit
        started = _program([_find_program(), "-d"], server, stdout=talk, stderr=subprocess.STDOUT)
        if started.returncode:
            talk.seek(0)
            raise _server_error(server, talk.read().decode(errors="replace"))
    _until(lambda: _listens(server), PATIENCE_S)  # the daemon may be slow to listen
    facts = _set_limits(server, sharing)
    _ask(server, f"start_server -uid {os.getuid()}")
    if not _until(lambda: _ask(server, "get_server_list").split(), PATIENCE_S):
        raise _server_error(server, "no server came up")
    return facts


def environment(server: Server, sharing: Sharing) -> dict[str, str]:
    """Return the environment of a client."""
    limits = {}
    if sharing.thread_percent is not None:
        limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{sharing.thread_percent:g}"
    if sharing.memory_limit_mb is not None:
        each = (f"{number}={_limit(sharing)}" for number in range(len(server.visible)))
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(each)
    return {**server.directories, **limits}


def stop(server: Server) -> UndoOutcome:
    """Stop our server, first by its command, then by signals, and remove its directories."""
    running = _processes(server)
    if running:
        with contextlib.suppress(CollocationError):  # without an answer, signals follow
            _ask(server, "quit", patience_s=QUIT_S)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                _signal(server, number)
            if _until(lambda: not _processes(server), QUIT_S):
                break
        else:
            left = ", ".join(map(str, _processes(server)))
            return UndoOutcome("left", f"{server} is left: process {left} does not end")
    folder = Path(server.folder)
    was_there = folder.exists()
    if folder.name.startswith(FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        return UndoOutcome("left", f"{server} has ended; its directory cannot be removed")
    if running:
        return UndoOutcome("undone", f"{server} was ended")
    return UndoOutcome("undone", f"{folder} was removed") if was_there else UndoOutcome("nothing")


def _set_limits(server: Server, sharing: Sharing) -> dict[str, str]:
    """Set the server's limits for all clients, and return them as it reports them."""
    limits = {}
    if sharing.thread_percent is not None:
        _ask(server, f"set_default_active_thread_percentage {sharing.thread_percent:g}")
        limits["mps.thread_percent"] = _ask(server, "get_default_active_thread_percentage")
    if sharing.memory_limit_mb is not None:
        for number in range(len(server.visible)):
            which = f"default_device_pinned_mem_limit {number}"
            _ask(server, f"set_{which} {_limit(sharing)}")
            limits["mps.memory_limit"] = _ask(server, f"get_{which}")
    for name, said in limits.items():
        if not any(map(str.isdigit, said)):  # errors are plain text with exit code 0
            raise _server_error(server, f"{name} is not set: {said or 'no answer'}")
    return limits


def _create_directories(server: Server) -> None:
    try:
        os.mkdir(server.folder, 0o700)
        for path in server.directories.values():
            os.mkdir(path, 0o700)
    except OSError as error:
        hint = "Give another place: XDG_RUNTIME_DIR or TMPDIR."
        message = f"{server.folder} cannot be made: {error.strerror}"
        raise CollocationError(message, hint) from error


def _find_program() -> str:
    program = shutil.which(PROGRAM)
    if program is None:
        raise CollocationError(f"{PROGRAM} was not found", NO_PROGRAM)
    return program


def _limit(sharing: Sharing) -> str:
    return f"{sharing.memory_limit_mb}M"


def _ask(server: Server, command: str, patience_s: float = PATIENCE_S) -> str:
    """Send the server a command and return its answer."""
    answer = _program(
        [_find_program()], server, patience_s, input=command.encode() + b"\n", capture_output=True
    )
    said = (answer.stdout + answer.stderr).decode(errors="replace").strip()
    if answer.returncode:
        raise _server_error(server, f"{command}: {said}")
    return said


def _listens(server: Server) -> bool:
    try:
        _ask(server, "get_server_list")
    except CollocationError:
        return False
    return True


def _program(
    words: list[str], server: Server, patience_s: float = PATIENCE_S, **pipes: Any
) -> subprocess.CompletedProcess[bytes]:
    kept = {name: v for name, v in os.environ.items() if not name.startswith("CUDA_MPS_")}
    own = {"CUDA_VISIBLE_DEVICES": ",".join(server.visible), **server.directories}
    if "input" not in pipes:
        pipes["stdin"] = subprocess.DEVNULL
    try:
        return subprocess.run(
            words, env={**kept, **own}, timeout=patience_s, start_new_session=True, **pipes
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _server_error(server, str(error)) from error


def _server_error(server: Server, said: str) -> CollocationError:
    log = Path(server.directories["CUDA_MPS_LOG_DIRECTORY"], "control.log")
    try:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
    except OSError:
        last = []
    reasons = "; ".join(text for text in (said.strip(), *last) if text) or "it says nothing"
    hint = "MPS needs a GPU of compute capability 3.5 or more, and a driver that runs."
    return CollocationError(f"the MPS server for {', '.join(server.visible)}: {reasons}", hint)


def _processes(server: Server) -> list[int]:
    """Return the current user's processes that belong to the server."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={server.directories['CUDA_MPS_PIPE_DIRECTORY']}".encode()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_part(name, mark)]


def _is_part(pid: str, mark: bytes) -> bool:
    try:
        if Path("/proc", pid, "comm").read_bytes().strip() != NAME:  # clients carry the mark too
            return False
        return mark in Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False


def _signal(server: Server, number: int) -> None:
    for pid in _processes(server):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _until(reached: Callable[[], Any], patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while not reached():
        if time.monotonic() >= end:
            return False
        time.sleep(PAUSE_S)
    return True
