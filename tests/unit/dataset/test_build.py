from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from dataset import build
from dataset.join import raw_graphs
from dataset.join.graph_store import GraphStore
from dataset.join.models import describe, describe_all, join
from dataset.join.raw_graphs import BuildOutcome

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="needs the timm extra")

MODEL, ABSENT = "timm:test_resnet@64", "timm:no_such_model@64"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one converted model and one failure."""
    folder = tmp_path_factory.mktemp("graphs")
    outcomes = {o.spec: o for o in raw_graphs.build([MODEL, ABSENT], folder, workers=1)}
    assert outcomes[MODEL] == BuildOutcome(MODEL)
    assert "no_such_model" in outcomes[ABSENT].error
    return folder


def test_a_second_run_does_nothing_and_reports_the_same(graphs: Path) -> None:
    path = raw_graphs.path_of(MODEL, graphs)
    before = path.stat().st_mtime_ns
    outcomes = list(raw_graphs.build([MODEL, ABSENT], graphs, workers=1))
    assert path.stat().st_mtime_ns == before
    assert [bool(o.error) for o in outcomes] == [False, True]


def test_a_graph_of_the_cache_scales_with_the_batch(graphs: Path) -> None:
    raw = raw_graphs.read(MODEL, graphs)
    assert raw.batch == raw_graphs.BATCH
    assert raw.batch_is_symbolic
    with pytest.raises(FileNotFoundError, match="no_such_model"):
        raw_graphs.read(ABSENT, graphs)
    with pytest.raises(FileNotFoundError, match="nobody tried"):
        raw_graphs.read("timm:resnet50@224", graphs)


def test_a_spec_without_image_size_is_refused() -> None:
    with pytest.raises(ValueError, match="image size"):
        raw_graphs.convert("timm:resnet50")


def test_models_are_described_once(graphs: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models.jsonl"
    first = {r["model"]: r for r in describe_all([MODEL, ABSENT], graphs, cache, 1)}
    assert first[MODEL]["family_id"] == "resnet"
    assert first[MODEL]["macs_per_sample"] > 1e6
    assert "arch_id" not in first[ABSENT]
    marked = json.loads(cache.read_text().splitlines()[0]) | {"param_bytes": -7}
    cache.write_text(json.dumps(marked) + "\n")
    (again,) = describe_all([MODEL], graphs, cache, 1)
    assert again["param_bytes"] == -7


def test_rows_without_graph_are_left_out_and_counted(graphs: Path) -> None:
    records = [describe(spec, graphs) for spec in (MODEL, ABSENT)]
    models = pd.DataFrame(records)
    rows = pd.DataFrame(
        {"row_id": ["a", "b", "c"], "source": "x", "model": [MODEL, ABSENT, MODEL], "batch": 2}
    )
    table = join(rows, models)
    assert list(table["row_id"]) == ["a", "c"]
    document = build.manifest(rows, models, table, Path())
    assert document["excluded_rows"] == 1
    assert document["models_with_graph"] == 1


def test_a_store_tells_what_was_refused_from_what_nobody_tried(graphs: Path) -> None:
    store = GraphStore(graphs)
    assert MODEL in store
    assert [store.refused(key) for key in (MODEL, ABSENT, "timm:resnet50@224")] == [
        False, True, False,
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError, match="nobody tried"):
        store["timm:resnet50@224"]
