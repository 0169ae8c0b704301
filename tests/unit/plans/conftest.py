"""A desk for each test."""

import pytest

from tests.unit.plans.desks import Desk


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    yield made
    made.clear()
