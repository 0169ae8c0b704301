"""How long results are held, in the operators of a file."""

from __future__ import annotations

import pytest

from dippm.model.relax.lifetimes import last_operators, merge_lifetimes


@pytest.mark.parametrize(
    ("held", "until"),
    [
        ([], []),
        ([None, None], [None, None]),
        ([(1, 3), (2, 2), (3, 3)], [2, 1, 2]),
        ([(10, 30), None, (20, 20), (30, 99)], [3, None, 2, 3]),
        ([(1, 1), None, None], [2, None, None]),
        ([(5, 2)], [0]),
    ],
)
def test_steps_of_the_program_are_operators_of_the_file(held, until):
    """An operator whose step is not known ran with the next one that is."""
    assert last_operators(held) == until


def test_a_result_of_two_names_lives_as_long_as_the_longer():
    assert merge_lifetimes(None, (3, 5)) == (3, 5)
    assert merge_lifetimes((3, 5), (4, 9)) == (3, 9)
    assert merge_lifetimes((3, 5), (4, 4)) == (3, 5)
