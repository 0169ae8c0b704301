"""What the tests of all frontends share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frontends.twins.writers import Writers


@pytest.fixture(scope="session")
def writers() -> Iterator[Writers]:
    """What writes twins as files; one process for each framework."""
    writers = Writers()
    yield writers
    writers.close()
