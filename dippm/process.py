"""A worker and the process that started it: frames over pipes, limits, and words for its end.

Both ends speak frames of JSON text (a length of eight bytes, then the text), so nothing that a
worker sends is unpickled. A worker is a plain fresh interpreter and not one of `multiprocessing`,
because that runs the caller's main script once more, which breaks scripts without a ``__main__``
guard. It may hang, talk without end or die at any moment: the caller waits for no longer than it
was told, and hears how it ended.

Caller's side: `WorkerPipes`. Worker's side: `own_pipes`, `read_frame`, `write_frame`,
`limit_memory`, `follow_parent`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

Message = dict[str, Any]
Remaining = Callable[[], float]

POLL_S = 0.2
KEPT_LOG_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory"
    r"|unable to allocate|ALLOC_FAILED|bad_alloc",
    re.IGNORECASE,
)
_HEADER = struct.Struct("<Q")


class TimedOutError(Exception):
    """No answer came in time."""


class WorkerDiedError(Exception):
    """The worker ended without an answer.

    Attributes:
        code: its exit code, negative for a signal; None if it closed its pipe and lives on.
    """

    def __init__(self, code: int | None) -> None:
        closed = "closed its pipe without an answer"
        super().__init__(closed if code is None else describe_exit(code))
        self.code = code


class WorkerPipes:
    """A running worker in a process group of its own, and the pipes to it.

    Args:
        command: what to start; it shall call `own_pipes`.
        environment: of the process.
        inherited: file descriptors that it keeps, for instance of locks.
        keep_log: called with each piece that the worker writes to stderr.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        inherited: Sequence[int] = (),
        keep_log: Callable[[bytes], None] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the caller, which ends its workers in order
            pass_fds=inherited,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._talk = self._process.stderr
        self._keep_log = keep_log
        self._unsent, self._received, self._log = bytearray(), bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        for pipe in (self._answers, self._talk):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)
        os.set_blocking(self._requests.fileno(), False)

    @property
    def pid(self) -> int:
        """The process, which is also its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Queue a request; `receive` writes it."""
        if not self._unsent:
            self._selector.register(self._requests, selectors.EVENT_WRITE)
        self._unsent += _frame(message)

    def receive(self, remaining: Remaining) -> Message:
        """Wait for the next frame.

        Args:
            remaining: seconds that are left, asked for again and again.

        Raises:
            TimedOutError: if no time is left.
            WorkerDiedError: if the worker ended instead.
        """
        while (message := self._next()) is None:
            left = remaining()
            if left <= 0:
                raise TimedOutError
            # A child of a dead worker may keep the pipes open.
            if not self._move(min(POLL_S, left)) and not self.alive:
                raise self._death()
        return message

    def last_words(self, characters: int = 2000) -> str:
        """Return the end of what the worker and its libraries printed."""
        return self._log.decode(errors="replace").strip()[-characters:]

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the process, hear it out, and return its exit code."""
        end = time.monotonic() + seconds
        while self.alive and (left := end - time.monotonic()) > 0:
            self._hear()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(POLL_S, left))
        self._hear()
        return self._process.poll()

    def kill(self) -> None:
        """End it and everything it started, at once; further calls do nothing."""
        if self._talk.closed:
            return
        self._requests.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # One that waits for a hung driver cannot be killed; the next one will tell.
        self.wait(10)
        self._selector.close()
        self._answers.close()
        self._talk.close()

    def close(self, patience_s: float = 10) -> None:
        """Let it end by itself; kill it if it does not."""
        self._forget_requests()
        self._requests.close()
        self.wait(patience_s)
        self.kill()

    def _next(self) -> Message | None:
        """Take a frame from what was received."""
        if len(self._received) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._received)
        end = _HEADER.size + size
        if len(self._received) < end:
            return None
        message: Message = json.loads(self._received[_HEADER.size : end])
        del self._received[:end]
        return message

    def _move(self, seconds: float) -> bool:
        """Move bytes through the pipes; return whether there were any."""
        ready = [key.fileobj for key, _ in self._selector.select(seconds)]
        if self._talk in ready:
            self._hear()
        if self._requests in ready:
            self._write()
        if self._answers in ready:
            chunk = self._answers.read(1 << 20)
            if chunk == b"":
                raise self._death()
            self._received += chunk or b""
        return bool(ready)

    def _write(self) -> None:
        try:
            del self._unsent[: self._requests.write(self._unsent)]
        except BrokenPipeError:
            raise self._death() from None
        if not self._unsent:
            self._selector.unregister(self._requests)

    def _hear(self) -> None:
        """Read what the worker printed, so that it never waits for it or fails on a full disk."""
        for _ in range(64):  # one that talks without end must not hold up the caller
            chunk = None if self._talk.closed else self._talk.read(1 << 16)
            if chunk is None:
                return
            if not chunk:
                if self._talk in self._selector.get_map():
                    self._selector.unregister(self._talk)
                return
            self._log = (self._log + chunk)[-KEPT_LOG_BYTES:]
            if self._keep_log is not None:
                self._keep_log(chunk)

    def _forget_requests(self) -> None:
        if self._unsent:
            self._unsent.clear()
            self._selector.unregister(self._requests)

    def _death(self) -> WorkerDiedError:
        self._forget_requests()
        return WorkerDiedError(self.wait(10))


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return a worker's requests and answers.

    From here on stdin is empty, and what is printed goes to stderr.
    """
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def write_frame(stream: IO[bytes], message: Message) -> None:
    """Write a message to a blocking stream."""
    rest = memoryview(_frame(message))
    while rest:
        rest = rest[stream.write(rest) :]


def read_frame(stream: IO[bytes]) -> Message:
    """Read a message from a blocking stream.

    Raises:
        EOFError: if it was closed.
    """
    (size,) = _HEADER.unpack(_exactly(stream, _HEADER.size))
    message: Message = json.loads(_exactly(stream, size))
    return message


def limit_memory(limit_mb: int) -> None:
    """Limit this process' private memory; on Linux only."""
    if sys.platform != "linux":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit_mb << 20, limit_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def follow_parent(parent: int) -> None:
    """Die at once with the thread that started this process; on Linux only.

    Args:
        parent: its process.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out or its limit was met."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"} or OUT_OF_MEMORY.search(str(error)))


def describe_exit(code: int) -> str:
    """Return how a process ended, for instance "killed by SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"killed by {signal_name(-code)}{hint}"


def signal_name(number: int) -> str:
    """Return the name of a signal, also of one that Python does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _frame(message: Message) -> bytes:
    data = json.dumps(message).encode()
    return _HEADER.pack(len(data)) + data


def _exactly(stream: IO[bytes], size: int) -> bytes:
    chunks: list[bytes] = []
    while size:
        chunk = stream.read(min(size, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
