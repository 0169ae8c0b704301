"""A small network, and a program that runs it as a tracked run and prints the run's name.

The program is a process of its own: the memory of a run is that of the process and its children,
and a test runner has children of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
STEPS = 40


def network(width: int = 16) -> torch.nn.Module:
    """Return the network; for images of 3 channels."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(width, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(width, 10),
    ).eval()


def tracked(order: dict[str, Any]) -> str:
    """Run the network in another process, and return the identifier of the run.

    Args:
        order: arguments of `dippm.track`.
    """
    program = [sys.executable, "-m", "tests.unit.tracking.small_net"]
    answer = subprocess.run(
        program, input=json.dumps(order), capture_output=True, text=True, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def main() -> None:
    from dippm.runs.store.folder import spool
    from dippm.runs.tracking.block import track

    module, images = network(), torch.zeros(4, 3, 32, 32)
    with track("net", **json.load(sys.stdin)) as run, torch.no_grad():
        for _ in range(STEPS):
            with run.span("forward"):
                module(images)
        while not any(file.stat().st_size for file in (spool() / run.uuid).glob("samples-*")):
            time.sleep(0.02)  # steps are so short that the first reading may come after them
    print(run.uuid)


if __name__ == "__main__":
    main()
