"""A desk: a folder with a plan and its programs, and schedulers that are processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dippm.runs.plans.plan import Plan
from dippm.runs.plans.table import read_plan
from dippm.runs.store.folder import RecordedRun, read_folder
from tests.unit.tracking.commands import environment, line_of, until

HEADER = "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n"
SCHEDULER = """
import json, sys
from pathlib import Path
from dippm.errors import DippmError
from dippm.runs.plans.scheduler import run_plan
from dippm.runs.plans.options import PlanOptions

def tell(**words):
    print(json.dumps(words), file=sys.__stdout__, flush=True)

class Audience:
    def line(self, name, text):
        tell(line=text, by=name)
    def say(self, text):
        tell(say=text)
    def became(self, row, status, seconds):
        tell(row=row.number, became=str(status), seconds=seconds)

try:
    outcome = run_plan(Path(sys.argv[1]), PlanOptions(**json.loads(sys.argv[2])), Audience())
except DippmError as error:
    tell(error=type(error).__name__, message=error.message, hint=error.hint)
else:
    tell(ran=outcome.ran, skipped=outcome.skipped, signal=outcome.signal, well=outcome.well,
         seconds=outcome.seconds)
"""


class Desk:
    """Where a plan lies.

    Attributes:
        folder: the current folder of its schedulers.
        plan: the file.
        environment: of its schedulers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.spool = folder, folder / "spool"
        self.plan = folder / "plan.csv"
        self.state = folder / "state"
        self.environment = {**environment(self.spool), "XDG_STATE_HOME": str(self.state)}
        self._started: list[subprocess.Popen[bytes]] = []

    def rows(self, *lines: str) -> Path:
        """Write the plan: rows below the usual header."""
        self.plan.write_text(HEADER + "".join(f"{line}\n" for line in lines))
        return self.plan

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, before: str = "", **terms: Any) -> subprocess.Popen[bytes]:
        """Start a scheduler; `before` is a statement that it runs first."""
        process = subprocess.Popen(
            [sys.executable, "-c", before + SCHEDULER, str(self.plan), json.dumps(terms)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def clear(self) -> None:
        """End schedulers that a failed test has left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, before: str = "", **terms: Any) -> list[dict[str, Any]]:
        """Run a scheduler to its end; return what it told."""
        out, _ = self.start(before, **terms).communicate(timeout=300)
        return told(out)

    def read(self) -> Plan:
        return read_plan(self.plan)

    def statuses(self) -> list[str]:
        return [str(row.status) for row in self.read().rows]

    def recorded(self, run: str) -> RecordedRun:
        """Return a run when its end is written."""
        until(lambda: (self.spool / run / "end.json").exists(), f"the end of run {run}")
        return read_folder(self.spool / run)

    def call(self, statement: str) -> Any:
        """Evaluate a statement that prints JSON in a process of the desk's environment."""
        answer = subprocess.run(
            [sys.executable, "-c", statement, str(self.plan)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            timeout=120,
        )
        assert answer.returncode == 0, answer.stderr.decode()
        return json.loads(answer.stdout)

    def recover(self) -> list[str]:
        return self.call(
            "import json, sys; from pathlib import Path;"
            "from dippm.runs.plans.recovery import recover;"
            "print(json.dumps(recover(Path(sys.argv[1]))))"
        )


def told(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def next_line(process: subprocess.Popen[bytes], key: str) -> dict[str, Any]:
    """Return the next thing of a kind that a scheduler tells."""
    while True:
        found = json.loads(line_of(process))
        if key in found:
            return found


def lines(heard: list[dict[str, Any]]) -> list[str]:
    return [words["line"] for words in heard if "line" in words]


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C at a terminal does for a scheduler."""
    process.send_signal(signal.SIGINT)
