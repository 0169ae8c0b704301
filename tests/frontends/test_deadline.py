"""A time limit inside this process, what it leaves behind; and where a worker stands."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dippm.model.frontends import limits, worker
from dippm.model.frontends.limits import OutOfTimeError, time_limit

PROFILED = """
import sys
from dippm.model.frontends.limits import OutOfTimeError, time_limit

with time_limit(60.0):
    pass
if "late" in sys.argv:
    try:
        with time_limit(0.01):
            while True:
                pass
    except TimeoutError:
        pass
calls = []
sys.setprofile(lambda frame, event, arg: calls.append(event))
(lambda: None)()
sys.setprofile(None)
print(calls.count("call"))
"""


def spin() -> None:
    while True:
        pass


def swallow() -> None:
    try:
        spin()
    except OutOfTimeError:
        spin()


@pytest.mark.parametrize("work", [spin, swallow])
def test_work_that_takes_longer_is_interrupted_where_it_is(
    work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more where the work swallows it."""
    monkeypatch.setattr(limits, "REPEAT_S", 0.01)
    with pytest.raises(TimeoutError, match=r"longer than 0\.01 s") as caught, time_limit(0.01):
        work()
    assert isinstance(caught.value.__cause__, OutOfTimeError)


@pytest.mark.parametrize("moment", ["in time", "late"])
def test_a_profiler_goes_on_after_it(moment: str) -> None:
    """Taken back, the error would be looked for at every step, and a profiled call never return."""
    command = [sys.executable, "-c", PROFILED, moment]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert int(found.stdout) >= 1


def test_an_interruption_that_comes_too_late_is_met_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work ends while the error is on its way: nothing meets it afterwards."""
    raised = threading.Event()
    really_raise = limits._raise_in

    def raise_in(thread: int) -> None:
        really_raise(thread)
        raised.set()

    monkeypatch.setattr(limits, "_raise_in", raise_in)
    try:
        with time_limit(0.01):
            raised.wait()  # one call into C: the error is met after it, at the end of the block
    except TimeoutError:
        pass
    for _ in range(1000):
        time.sleep(0)


def test_a_worker_leaves_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, gone = tmp_path / "own", tmp_path / "gone"
    own.mkdir()
    gone.mkdir()
    monkeypatch.chdir(gone)
    worker._leave_removed_folder(own)
    assert Path.cwd() == gone
    gone.rmdir()
    worker._leave_removed_folder(own)
    assert Path.cwd() == own
