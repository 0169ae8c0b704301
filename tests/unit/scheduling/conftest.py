"""The model of the tests of choices."""

from tests.unit.choice.conftest import wide, wide_file

__all__ = ["wide", "wide_file"]
