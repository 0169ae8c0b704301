"""Cells of NAS-Bench-101: named, sampled, and converted like any module."""

from __future__ import annotations

import warnings

import pandas as pd
import pytest

from dataset.join import raw_graphs
from dataset.measured import nasbench101, sources
from dataset.measured.location import DataNotFoundError
from dippm.estimate.features.kernel_table import KernelTable
from dippm.model.graph import build

PUBLISHED = (
    ("0110|0010|0001|0000", "maxpool3x3|maxpool3x3", 1_756_298),
    ("01111|00111|00010|00001|00000", "maxpool3x3|conv3x3-bn-relu|conv3x3-bn-relu", 6_843_402),
    ("01111|00011|00010|00001|00000", "conv1x1-bn-relu|conv1x1-bn-relu|conv3x3-bn-relu", 5_039_754),
    ("01000|00110|00010|00001|00000", "maxpool3x3|conv3x3-bn-relu|conv1x1-bn-relu", 11_215_242),
)
"""Cells with the parameters that EC-NAS states."""


def name(rows: str, operations: str) -> str:
    record = {"adjacency_rows": rows, "interior_ops": operations, "image": "32x32x3"}
    return nasbench101.key_of(record)


def parameters(key: str) -> int:
    module = nasbench101.module_of(key.removeprefix("nb101:").partition("@")[0])
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_network_has_the_published_parameters() -> None:
    for rows, operations, wanted in PUBLISHED:
        assert parameters(name(rows, operations)) == wanted
    try:
        table = sources.read("ecnas")
    except DataNotFoundError:
        return
    for record in table.iloc[::100].to_dict("records"):
        assert parameters(record["model"]) == record["trainable_params"]


def test_filters_that_do_not_divide_go_to_the_first_vertices() -> None:
    adjacency = [[0, 1, 1, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0] * 5]
    assert nasbench101.vertex_widths(128, adjacency) == [0, 43, 43, 42, 128]
    chain = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0] * 4]
    assert nasbench101.vertex_widths(128, chain) == [0, 128, 128, 128]


def test_a_cell_becomes_a_training_step() -> None:
    rows, operations, wanted = PUBLISHED[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = build(raw_graphs.convert(name(rows, operations)))
    assert not graph.unknown_ops
    assert graph.param_bytes == pytest.approx(4 * wanted, rel=0.01)  # running statistics beside
    # Three vertices in nine cells, and projections for all but the second of them and the output.
    assert graph.histogram()["conv2d"] == 1 + 9 * (2 + 4)
    table = KernelTable.of_training(graph, "fp32", channels_last=True)
    assert len(set(table.part.tolist())) == 4


def test_what_names_no_cell_is_refused() -> None:
    for bad in (
        "conv3x3", "011-001(conv3x3)", "011-101-000(conv3x3)", "011-001-000(conv5x5)",
        "001-001-000()", "010-000-000(conv3x3)", "012-001-000(conv3x3)", "0()",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"cell|edge|known|nowhere"):
            nasbench101.module_of(bad)


def test_the_sample_runs_from_the_fastest_to_the_slowest() -> None:
    table = pd.DataFrame({"latency_ms": range(3000), "model": [f"m{i}" for i in range(3000)]})
    chosen = nasbench101.sample_architectures(table)["latency_ms"]
    assert len(chosen) == nasbench101.ARCHITECTURES
    assert chosen.min() < 10
    assert chosen.max() >= 2990
    assert len(nasbench101.sample_architectures(table.iloc[:7])) == 7
