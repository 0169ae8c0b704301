from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dippm.umlaut import Benchmark


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, with a spool of its own and no store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    monkeypatch.delenv("DIPPM_BENCHMARKS", raising=False)
    monkeypatch.setenv("DIPPM_ATTACH", "no")
    return tmp_path


@pytest.fixture
def benchmark(here: Path) -> Iterator[Benchmark]:
    made = Benchmark("runs.db", description="tests")
    yield made
    made.close()


@pytest.fixture
def script(here: Path) -> Callable[..., object]:
    """Run a script in a process of its own, where no store is to be had."""
    import os
    import subprocess
    import sys

    def run(text: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        (here / "script.py").write_text(text)
        (here / "no_store").mkdir(exist_ok=True)
        (here / "no_store" / "mlflow.py").write_text("raise ImportError('not in this test')\n")
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join([str(here / "no_store"), root])
        return subprocess.run(
            [sys.executable, "script.py", *words],
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path},
        )

    return run
