"""Time: budgets, limits of points, interruptions; all on a clock of our own."""

from __future__ import annotations

import signal

import pytest

from dataset.collect.errors import Stop, classify, first_line
from dataset.collect.pace import FINISH_S, OVERRUN_S, Pace, seconds
from dippm.base.process import describe_exit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90), ("8m", 480), ("2h", 7200), ("1.5", 1.5), ("1d", 86400)]
)
def test_durations(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "8 minutes", "-5s", "m", "nan", "1e3"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="is no duration"):
        seconds(text)


def test_nothing_starts_that_would_overrun_the_budget(clock):
    pace = Pace(timeout_s=60, budget_s=100, clock=clock)
    pace.begin("quick", 1.0)
    clock.now += 98.5
    pace.begin("quick", 1.0)
    with pytest.raises(Stop, match="budget"):
        pace.begin("slow", 5.0)
    for _ in range(8):
        pace.finish("quick", 3.0)  # it learns that they are slower than it guessed
    with pytest.raises(Stop, match="budget"):
        pace.begin("quick", 1.0)


def test_expected_time_follows_the_slower_of_recent_points(clock):
    pace = Pace(timeout_s=60, clock=clock)
    assert pace.expected_s("kind", 2.0) == 2.0
    pace.finish("kind", 9.0)
    assert pace.expected_s("kind", 2.0) == 9.0
    for duration in (1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0):
        pace.finish("kind", duration)
    assert 1.0 <= pace.expected_s("kind", 99.0) <= 2.0
    assert pace.expected_s("another", 3.0) == 3.0


def test_a_point_has_its_limit_and_never_more_than_the_campaign(clock):
    pace = Pace(timeout_s=60, budget_s=30, clock=clock)
    pace.begin("kind", 1.0)
    assert pace.remaining() == 30 + OVERRUN_S
    pace = Pace(timeout_s=60, clock=clock)
    pace.begin("compiled", 1.0, 2.0)
    assert (pace.remaining(), pace.limit_s) == (120, 120)
    pace.begin("kind", 1.0)
    clock.now += 59
    assert pace.remaining() == 1


def test_an_interruption_leaves_a_moment_and_a_second_one_none(clock):
    pace = Pace(timeout_s=60, clock=clock)
    pace.begin("kind", 1.0)
    pace.interrupt(signal.SIGINT)
    assert pace.remaining() == FINISH_S
    with pytest.raises(Stop, match="SIGINT"):
        pace.check()
    pace.interrupt(signal.SIGTERM)
    assert pace.remaining() == 0
    with pytest.raises(Stop, match="SIGTERM"):
        pace.begin("kind", 1.0)


def test_the_limit_counts_rows(clock):
    pace = Pace(timeout_s=60, limit=2, clock=clock)
    for _ in range(2):
        pace.begin("kind", 1.0)
        pace.count()
    with pytest.raises(Stop, match="limit"):
        pace.check()


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class AcceleratorError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), ("oom", False)),
        (AcceleratorError("CUDA error: out of memory"), ("oom", False)),
        (MemoryError(), ("oom", False)),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), ("oom", False)),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), ("oom", False)),
        (AcceleratorError("CUDA error: an illegal memory access"), ("crash", True)),
        (RuntimeError("CUDA error: device-side assert triggered"), ("crash", True)),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), ("crash", True)),
        (ValueError("shapes do not fit"), ("error", False)),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ("error", False)),
    ],
)
def test_what_an_exception_means(error, expected):
    assert classify(error) == expected


def test_torch_raises_the_names_that_are_looked_for():
    import torch

    assert torch.OutOfMemoryError.__name__ == "OutOfMemoryError"
    assert torch.AcceleratorError.__name__ == "AcceleratorError"


def test_how_a_process_ended():
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-11) == "killed by SIGSEGV"
    assert "memory runs out" in describe_exit(-9)
    assert describe_exit(-99) == "killed by signal 99"


def test_first_line():
    assert first_line("\n\n  one \ntwo") == "one"
    assert first_line("") == "no message"
    assert len(first_line("x" * 1000)) == 300
