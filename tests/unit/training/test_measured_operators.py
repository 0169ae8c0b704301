"""Measured operators are summed by part of the step, and the rest lies between them."""

from __future__ import annotations

import pandas as pd
import pytest

from dippm.errors import DippmError
from tests import collected_rows
from training.studies.measured_operators import measured_sums


@pytest.fixture
def made(tmp_path):
    """A set whose operators take 60 % of a forward pass, and 30 + 50 + 10 % of a step."""
    rows = [row for row in collected_rows.rows() if row["kind"] == "model"][:20]
    rows += [row | {"row_id": f"{row['row_id']}t", "phase": "train"} for row in rows]
    folder = collected_rows.write(tmp_path / "set", rows)
    kernels = []
    for row in rows:
        trains = row["phase"] == "train"
        shares = {"forward": 0.3, "backward": 0.5, "optimizer": 0.1} if trains else {"forward": 0.6}
        for part, share in shares.items():
            ns = round(share * row["latency_ms"] * 1e6 / 2)
            kernels += [{"row_id": row["row_id"], "part": part, "ns": ns}] * 2
    half = len(kernels) // 2
    for number, part in enumerate((kernels[:half], kernels[half:])):
        pd.DataFrame(part).to_parquet(folder / f"kernels-{number:04d}.parquet")
    return folder


def test_the_parts_of_a_step(made):
    inference, train = sorted(measured_sums(made), key=lambda sums: sums.phase)
    assert (inference.n, train.n) == (20, 20)
    assert inference.parts == pytest.approx({"forward": 60}, rel=1e-3)
    assert inference.between == pytest.approx(40, rel=1e-3)
    assert train.parts == pytest.approx({"forward": 30, "backward": 50, "optimizer": 10}, rel=1e-3)
    assert train.operators == pytest.approx(90, rel=1e-3)
    assert train.off == pytest.approx(10, rel=1e-2)


def test_a_set_without_kernel_tables(tmp_path):
    folder = collected_rows.write(tmp_path / "set", collected_rows.rows()[:20])
    with pytest.raises(DippmError, match="no kernel tables"):
        list(measured_sums(folder))
