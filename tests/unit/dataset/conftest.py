"""What the tests of the collector share."""

from __future__ import annotations

import pytest

from .collect_runs import stop_all


@pytest.fixture(autouse=True)
def _nothing_left_running():
    """End the collectors of a test that failed."""
    yield
    stop_all()
