"""A service in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 120


class Process:
    """`dippm serve` on a free port.

    Attributes:
        address: that it answers at.
        token: that it printed; "" if none is needed.
        port: of the address.
        log: file of its lines of JSON.
    """

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None):
        self.log = folder / "log.jsonl"
        self._talk = self.log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dippm", "serve", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=self._talk,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        line = self.process.stdout.readline()
        match = re.fullmatch(r"answers at (\S+)\n", line)
        assert match, (line, self.log.read_text())
        self.address = match[1]
        self.port = int(self.address.rpartition(":")[2])
        self.token = ""
        if "0.0.0.0" in options and "DIPPM_TOKEN" not in (environment or {}):
            self.token = self.process.stdout.readline().split()[1]
        wait_for(lambda: self.events("listening"))
        wait_for(lambda: self._listens())

    def _listens(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 5):
            return True

    def events(self, name: str) -> list[dict]:
        lines = self.log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def children(self) -> list[int]:
        """Return every process below it."""
        found, left = [], [self.process.pid]
        parents = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            if status.rpartition(")")[2].split()[0] != "Z":
                parents.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(
                    int(entry.name)
                )
        while left:
            below = parents.get(left.pop(), [])
            found += below
            left += below
        return found

    def answerers(self) -> list[int]:
        """Return the processes that answer; their guards are below them."""
        return [pid for pid in self.children() if parent(pid) == self.process.pid]

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self.process.stdout.close()
        self._talk.close()
        return code


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, patience_s: float = PATIENCE_S):
    """Wait for an event and return it; the patience is for what never comes."""
    end = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found
