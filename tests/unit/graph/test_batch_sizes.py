"""Sizes at another batch."""

from __future__ import annotations

import pytest

from dippm.estimate.features.kernel_table import KernelTable
from dippm.model.graph import build
from dippm.model.graph.batch_sizes import batch_rescaler
from tests.unit.graph.sketch import Sketch


@pytest.mark.parametrize(("old", "new", "given", "expected"), [
    (1009, 4, 1009 * 12, 48), (1009, 4, 12, 12), (1009, 2, 1009**2, 4), (1009, 1009, 2018, 2018),
    (1, 1, 7, 7), (1, 8, 7, 7), (1009, 4, 0, 0),
])  # fmt: skip
def test_the_batch_is_a_factor_of_what_grows_with_it(old, new, given, expected) -> None:
    assert batch_rescaler(old, new)(given) == expected


def test_a_file_that_fixes_batch_one_has_its_kernels() -> None:
    s = Sketch(batch=1)
    raw = s.raw(s.call("exp", [s.input(1, 8)], 1, 8), symbolic=False)
    table = KernelTable.of(build(raw))
    assert (table.batch, table.input_bytes, len(table.kind)) == (1, (0.0, 32.0), 1)
