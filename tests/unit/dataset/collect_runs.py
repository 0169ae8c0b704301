"""Real collectors for the tests: processes of their own, with the families that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def write_plan(path: Path, families: dict[str, Sequence[int]]) -> Path:
    """Write one job for each family with these batches; "steady:7" names different members."""
    lines = []
    for name, batches in families.items():
        family, _, number = name.partition(":")
        inside = f"number={number}" if number else ""
        points = [{"batch": batch} for batch in batches]
        lines.append(json.dumps({"model": f"own:{family}({inside})@4", "points": points}))
    path.write_text("\n".join(lines) + "\n")
    return path


def steady(count: int, batches: Sequence[int] = (1, 2, 4, 8, 16)) -> dict[str, Sequence[int]]:
    return {f"steady:{i}": batches for i in range(count)}


def start(out: Path, plan: Path, *more: str, bench: str = "QuickBench", **environment: str) -> Any:
    """Start a collector on the CPU and return its process."""
    words = [sys.executable, "-m", "dataset.collect", "--out", str(out), "--device", "cpu"]
    words += ["--plan", str(plan), "--families", "collect_faults", "--json"]
    words += ["--bench", f"collect_faults:{bench}", *more]
    variables = {
        **os.environ,
        "DIPPM_LOCK_DIR": str(out.parent / "locks"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return subprocess.Popen(
        words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: Any, timeout_s: float = 120) -> tuple[int, dict[str, Any], str]:
    """Return exit code, summary and what was said."""
    out, talk = process.communicate(timeout=timeout_s)
    return process.returncode, json.loads(out or "{}"), talk


def collect(out: Path, plan: Path, *more: str, **keywords: str) -> tuple[int, dict[str, Any], str]:
    return finish(start(out, plan, *more, **keywords))


def wait_for_lines(journal: Path, count: int, process: Any, timeout_s: float = 60) -> None:
    """Wait until a running collector has journalled so many rows."""
    deadline = time.monotonic() + timeout_s
    while not journal.exists() or journal.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no rows came"
        time.sleep(0.02)
