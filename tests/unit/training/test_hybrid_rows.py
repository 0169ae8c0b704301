"""What the tables say and the rows that the hybrid predictor learns from say the same."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from training.hybrid import sources

GEMM = {
    "source": "aiconfigurator", "operator": "gemm", "gpu": "A100-SXM-80GB", "timer": "K",
    "precision": "bf16", "mode": "eager", "layout": None, "software": "s", "latency_ms": 1.0,
    "num_heads": None, "num_kv_heads": None, "head_dim": None, "window_size": None,
}  # fmt: skip


class Lookup:
    """Stands for the store of graphs; takes what is made on the spot."""

    def __init__(self, known: tuple[str, ...] = ()) -> None:
        self.made: dict[str, object] = {}
        self.store = known


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """Return the tables that `read` gives; the test fills them."""
    found: dict[str, pd.DataFrame] = {}
    monkeypatch.setattr(sources, "read", lambda name, _: found[name])
    return found


def test_the_architecture_of_an_operator_row_is_its_layer(
    tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [{"m": 8, "n": 64, "k": 32}, {"m": 99, "n": 64, "k": 32}, {"m": 8, "n": 64, "k": 16}]
    rows = [GEMM | shape | {"row_id": f"aiconfigurator/{i}"} for i, shape in enumerate(shapes)]
    tables["aiconfigurator"] = pd.DataFrame(rows)
    monkeypatch.setattr(sources, "OPERATOR_SOURCES", ("aiconfigurator",))
    made = sources._operator_rows(Path(), Lookup())
    first, second, other = sorted(made, key=lambda row: row.graph)
    assert first.architecture == second.architecture != other.architecture
    assert first.graph != second.graph
