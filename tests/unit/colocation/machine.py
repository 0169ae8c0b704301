"""A machine with a fake driver and fake MPS, where programs share a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import fake_mps, fake_nvml
from tests.unit.tracking.commands import line_of

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
HEAD = """
import sys, signal, warnings
from pathlib import Path
from dippm.runs import colocation
from dippm.runs.colocation import instance_removal, mps, seated, undo
instance_removal.PATIENCE_S, mps.QUIT_S, mps.PATIENCE_S = 0.3, 2.0, 20.0
journal = Path(sys.argv[1])
"""
SEATED = """
with seated({given}, journal=journal) as seats:
    print("seated", flush=True)
    sys.stdin.readline()
print("over")
"""
REFUSED = """
try:
    with seated({given}, journal=journal):
        print("seated")
except colocation.CollocationError as error:
    print(type(error).__name__, "|", error.message, "|", error.hint)
"""


class Machine:
    """Processes of it meet the same fake GPUs."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.answers, self.journal = folder / "answers", folder / "journal"
        self.tmp = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))  # sockets have short names
        programs = fake_mps.put(folder / "programs")
        held = fake_nvml.environment(library, self.answers)
        for name in [name for name in held if name.startswith(("CUDA_", "XDG_RUNTIME"))]:
            del held[name]
        self.environment = {
            **held,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TMPDIR": str(self.tmp),
        }
        self.say("")

    def say(self, *lines: str) -> None:
        """Let the fake driver answer so from now on; see nvml.c and mig.c."""
        self.answers.write_text("".join(f"{line}\n" for line in lines))

    @property
    def layout(self) -> list[str]:
        """The MIG instances, as lines of the file of the fake."""
        path = fake_nvml.instances(self.answers)
        return path.read_text().splitlines() if path.exists() else []

    @layout.setter
    def layout(self, lines: list[str]) -> None:
        """Change them as another user would."""
        text = "".join(f"{line}\n" for line in lines)
        fake_nvml.instances(self.answers).write_text(text)

    @property
    def entries(self) -> list[Path]:
        """The entries of the journal."""
        return sorted(self.journal.glob("*.json"))

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(
            [sys.executable, "-c", HEAD + code, self.journal],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def seated(self, given: str, **environment: str) -> subprocess.Popen[str]:
        """Start a program that has taken its seats, and waits for a line to give them up."""
        process = self.start(SEATED.format(given=given), **environment)
        assert line_of(process) == "seated", process.communicate()
        return process

    def start(self, code: str, **environment: str) -> subprocess.Popen[str]:
        """Start a program."""
        return subprocess.Popen(
            [sys.executable, "-c", HEAD + code, self.journal],
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def undo(self) -> list[str]:
        """Return what a later process says that it has undone."""
        answer = self.run("for line in undo(journal): print(line)")
        assert (answer.returncode, answer.stderr) == (0, "")
        return answer.stdout.splitlines()

    def mps(self, root: Path | None = None) -> list[int]:
        """Return the processes of MPS servers whose directories are under a folder."""
        return [pid for pid, pipe in _mps() if Path(pipe).is_relative_to(root or self.tmp)]


def _mps() -> list[tuple[int, str]]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not Path("/proc", pid, "comm").read_text().startswith("nvidia-cuda-mps"):
                continue
            words = Path("/proc", pid, "environ").read_text().split("\0")
        except OSError:
            continue
        pipes = [word.partition("=")[2] for word in words if word.startswith("CUDA_MPS_PIPE_D")]
        found += [(int(pid), pipe) for pipe in pipes]
    return found
