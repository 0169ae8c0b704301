"""A desk for each test."""

import pytest

from tests.unit.plans.desks import Desk


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)
