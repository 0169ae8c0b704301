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
BARE = """
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {absent!r} else found(name, path, target)
PathFinder.find_spec = find_spec
"""
"""A `sitecustomize` of a machine on which packages are missing: its finders find nothing."""
_started: list[Any] = []


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


def start(
    out: Path,
    plan: Path,
    *more: str,
    bench: str = "QuickBench",
    clock: tuple[float, float] | None = None,
    **environment: str,
) -> Any:
    """Start a collector on the CPU and return its process.

    Its workers serve a hundred jobs, as on a GPU: one that imports torch takes seconds to start.

    Args:
        out: where it writes.
        plan: what it measures.
        more: further words of its command line.
        bench: class in `collect_faults`.
        clock: seconds per row and per look at the clock, see `collect_clock`; None for real time.
        environment: further variables.
    """
    run = ["-m", "dataset.collect"]
    if clock is not None:
        run = [str(HERE / "collect_clock.py"), *map(str, clock)]
    words = [sys.executable, *run, "--out", str(out), "--device", "cpu"]
    words += ["--plan", str(plan), "--families", "collect_faults", "--json"]
    words += ["--jobs-per-worker", "100", "--bench", f"collect_faults:{bench}", *more]
    variables = {
        **os.environ,
        "DIPPM_LOCK_DIR": str(out.parent / "locks"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    process = subprocess.Popen(
        words, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _started.append(process)
    return process


def stop_all() -> None:
    """End what a failed test left running; workers follow their supervisor."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdout, process.stderr):
            pipe.close()
        process.wait()


def finish(process: Any) -> tuple[int, dict[str, Any], str]:
    """Wait for the end; return exit code, summary and what was said."""
    out, talk = process.communicate()
    return process.returncode, json.loads(out or "{}"), talk


def collect(out: Path, plan: Path, *more: str, **keywords: str) -> tuple[int, dict[str, Any], str]:
    return finish(start(out, plan, *more, **keywords))


def wait_for_lines(journal: Path, count: int, process: Any) -> None:
    """Wait until a running collector has journalled so many rows."""
    while not journal.exists() or journal.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def wait_for_words(process: Any, words: str) -> None:
    """Wait until a running collector says something."""
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))
