"""The caller's side of a worker."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

Remaining = Callable[[], float]

POLL_S = 0.2
KEPT_LOG_BYTES = 1 << 16
LONGEST_FRAME = 1 << 30
"""Largest frame in bytes; a graph of a million operators has about 300 million."""


class TimedOutError(Exception):
    """No answer arrived in time."""


class WorkerDiedError(Exception):
    """The worker ended without an answer.

    Attributes:
        code: exit code, negative for a signal; None if it closed its pipe but still runs.
    """

    def __init__(self, code: int | None) -> None:
        closed = "closed its pipe without an answer"
        super().__init__(closed if code is None else describe_exit(code))
        self.code = code


class BadFrameError(WorkerDiedError):
    """The worker sent an invalid frame, and cannot be used any more.

    Args:
        what: description that completes "the process ...".
    """

    def __init__(self, what: str) -> None:
        Exception.__init__(self, what)
        self.code = None


class WorkerPipes:
    """A running worker in its own process group, and the pipes to it.

    Args:
        command: command to start, which has to call `own_pipes`.
        environment: environment of the process.
        inherited: file descriptors that it inherits, for instance of locks.
        keep_log: function called with each piece of the worker's stderr.
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
            start_new_session=True,  # Ctrl-C reaches only the caller, which ends its workers
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
        _RUNNING.add(self)

    @property
    def pid(self) -> int:
        """Id of the process, and of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Queue a request; `receive` writes it."""
        if not self._unsent:
            self._selector.register(self._requests, selectors.EVENT_WRITE)
        self._unsent += frame(message)

    def receive(self, remaining: Remaining) -> Message:
        """Wait for the next frame.

        Args:
            remaining: function that returns the remaining time in s.

        Raises:
            TimedOutError: if the time is over.
            WorkerDiedError: if the worker ended instead.
            BadFrameError: if it sent an invalid or too long frame.
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
        """Return the end of the output of the worker and its libraries."""
        return self._log.decode(errors="replace").strip()[-characters:]

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the process, read its remaining output, and return its exit code."""
        end = time.monotonic() + seconds
        while self.alive and (left := end - time.monotonic()) > 0:
            self._hear()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(POLL_S, left))
        self._hear()
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, not to its children."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and its children; further calls do nothing."""
        if self._talk.closed:
            return
        self._requests.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # A process that waits for a hung driver cannot be killed; the next worker will notice.
        self.wait(10)
        self.forget()

    def close(self, patience_s: float = 10) -> None:
        """Let the process end by itself, and kill it if it does not."""
        self._forget_requests()
        self._requests.close()
        self.wait(patience_s)
        self.kill()

    def forget(self) -> None:
        """Close the pipes and leave the process alone."""
        self._selector.close()
        for pipe in (self._requests, self._answers, self._talk):
            pipe.close()

    def _next(self) -> Message | None:
        """Take a frame from the received bytes."""
        if len(self._received) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._received)
        if size > LONGEST_FRAME:
            raise BadFrameError(f"answered with {size:,} bytes, more than any graph has")
        end = HEADER.size + size
        if len(self._received) < end:
            return None
        try:
            message = json.loads(self._received[HEADER.size : end])
        except (ValueError, RecursionError) as error:
            raise BadFrameError("answered with invalid JSON") from error
        if not isinstance(message, dict):
            raise BadFrameError("answered with an invalid message")
        del self._received[:end]
        return message

    def _move(self, seconds: float) -> bool:
        """Transfer bytes through the pipes, and return whether there were any."""
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
        """Read the worker's output, so that it never blocks or fails on a full disk."""
        for _ in range(64):  # endless output must not block the caller
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


_RUNNING: weakref.WeakSet[WorkerPipes] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close inherited pipes in a forked copy, which would otherwise keep the worker alive."""
    for pipes in list(_RUNNING):
        pipes.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


# Frames of JSON text: a length of eight bytes, then the text. Nothing is ever unpickled.


Message = dict[str, Any]

HEADER = struct.Struct("<Q")


def own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Return a worker's requests and answers.

    From here on stdin is empty, and printed text goes to stderr, line by line: what waited for the
    end of the process would be lost with one that is killed.
    """
    # Libraries print to stdout, which would break the frames: duplicates carry the frames.
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return requests, answers


def write_frame(stream: IO[bytes], message: Message) -> None:
    """Write a message to a blocking stream."""
    rest = memoryview(frame(message))
    while rest:
        rest = rest[stream.write(rest) :]


def read_frame(stream: IO[bytes]) -> Message:
    """Read a message from a blocking stream.

    Raises:
        EOFError: if the stream was closed.
    """
    (size,) = HEADER.unpack(_exactly(stream, HEADER.size))
    message: Message = json.loads(_exactly(stream, size))
    return message


def frame(message: Message) -> bytes:
    """Return the bytes of a message."""
    data = json.dumps(message).encode()
    return HEADER.pack(len(data)) + data


def _exactly(stream: IO[bytes], size: int) -> bytes:
    chunks: list[bytes] = []
    while size:
        chunk = stream.read(min(size, 1 << 20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


# Descriptions of how a process ended, and detection of out-of-memory errors.


OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory"
    r"|unable to allocate|ALLOC_FAILED|bad_alloc|MemoryError|failed to map segment"
    r"|memory allocation",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory, or its limit, was exhausted."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or tells_out_of_memory(str(error))


def tells_out_of_memory(text: str) -> bool:
    """Return whether a library's message means that memory ran out."""
    return OUT_OF_MEMORY.search(text) is not None


def describe_exit(code: int) -> str:
    """Describe how a process ended, for instance "killed by SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"killed by {signal_name(-code)}{hint}"


def signal_name(number: int) -> str:
    """Return the name of a signal, also one that Python does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
