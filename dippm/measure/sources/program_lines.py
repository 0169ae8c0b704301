"""Non-blocking reading of the lines that a child program prints."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence


class ProgramLines:
    """A program that was started to read its output.

    Args:
        command: program and arguments; its stderr is read, too.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._rest = b""

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._stdout.closed

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program, None while it runs."""
        return self._process.poll()

    def read(self) -> list[bytes]:
        """Return the lines completed since the last call, without line ends."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._stdout.fileno(), 1 << 16):
                self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        return lines

    def close(self) -> None:
        """Terminate the program."""
        if not self.is_closed:
            self._process.terminate()
            self._process.wait()
            self._stdout.close()
