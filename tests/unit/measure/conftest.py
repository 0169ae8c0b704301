"""What the tests of measurements share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _own_garbage(own_garbage):
    """Measure beside what other files left: each point collects garbage more than once."""
