"""Products of the kernel network take one thread of BLAS, and nothing else of the process does."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dippm.estimate.models.kernel_network import _blas, _one_blas_thread


@pytest.fixture(autouse=True)
def known_libraries() -> None:
    """Look for libraries anew: frameworks that tests imported may have brought further ones."""
    _blas.cache_clear()


def blas_threads() -> set[int]:
    """Return how many threads the libraries of BLAS in this process may use."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_inside_and_what_was_before_outside() -> None:
    with threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        with _one_blas_thread:
            assert blas_threads() == {1}
        assert blas_threads() == before


def test_threads_that_are_inside_at_once_leave_it_as_the_first_found_it() -> None:
    """One enters second and leaves last."""
    inside, may_leave = threading.Event(), threading.Event()

    def stay() -> None:
        with _one_blas_thread:
            inside.set()
            may_leave.wait()

    with threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        other = threading.Thread(target=stay)
        with _one_blas_thread:
            other.start()
            inside.wait()
        assert blas_threads() == {1}
        may_leave.set()
        other.join()
        assert blas_threads() == before
