"""GPTs of HW-GPT-Bench: named, sampled, and converted like any module."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dataset.join import raw_graphs
from dataset.measured import gpt, sources
from dataset.measured.sources import hwgpt
from dippm.model.graph import ModelGraph, build

GPUS = ("a100", "v100")
WIDTH, HEADS, RATIOS = 128, (2, 4, 2), (2, 3, 4)


def architecture(bias: bool = False) -> dict[str, object]:
    return {
        "embed_dim": WIDTH, "n_layer": 3, "n_head": np.array(HEADS), "mlp_ratio": np.array(RATIOS),
        "bias": np.bool_(bias), "seq_len": 1024,
    }  # fmt: skip


def converted(bias: bool) -> ModelGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(raw_graphs.convert(gpt.key_of(architecture(bias))))


@pytest.mark.parametrize("bias", [False, True])
def test_a_gpt_has_the_published_macs_and_parameters(bias: bool) -> None:
    graph = converted(bias).at_batch(4)
    products = sum(node.macs for node in graph.nodes if node.op == "dense")
    inner = 256 * WIDTH * sum(HEADS) + 3 * WIDTH**2 * sum(RATIOS)
    assert products == 4 * 1024 * (50254 * WIDTH + inner)
    biases = sum(192 * h + 2 * r * WIDTH + 2 * WIDTH for h, r in zip(HEADS, RATIOS, strict=True))
    weights = 100510 * WIDTH + 4 * WIDTH * 3 + inner
    assert graph.param_bytes == 4 * (weights + bias * biases)
    assert not graph.unknown_ops


def test_rotary_positions_are_the_operators_of_an_exported_module() -> None:
    count = converted(bias=False).histogram()
    assert count["attention"] == 3
    assert "multiply_add" not in count
    for op, each in {"neg": 2, "concat": 4, "multiply": 5, "add": 4, "silu": 1}.items():
        assert count[op] == 3 * each


@pytest.mark.parametrize("name", ["768", "8x2(heads=4,ratios=2-2,bias=0)"])
def test_what_names_no_gpt_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"GPT|every block"):
        gpt.module_of(name)


def table(per_shape: int) -> pd.DataFrame:
    widths = {"s": (8, 16), "m": (32,)}
    shapes = [(s, w, d) for s in widths for w in widths[s] for d in (1, 2)]
    rows = [
        {"scale": scale, "embed_dim": width, "n_layer": depth, "macs": i}
        for scale, width, depth in shapes
        for i in range(per_shape)
    ]
    archs = pd.DataFrame(rows).rename_axis("arch_id").reset_index()
    return pd.concat([archs.assign(gpu=gpu) for gpu in GPUS], ignore_index=True)


def test_the_same_architectures_are_chosen_on_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt, "ARCHITECTURES_PER_SCALE", 8)
    measured = table(per_shape=40)
    lonely = measured["arch_id"].eq(4) & measured["gpu"].eq("v100")
    chosen = gpt.sample_architectures(measured[~lonely])
    assert chosen.groupby(["scale", "gpu"]).size().eq(8).all()
    assert chosen.groupby("arch_id")["gpu"].nunique().eq(len(GPUS)).all()
    assert 4 not in set(chosen["arch_id"])
    dearest = chosen.groupby(["embed_dim", "n_layer"])["macs"].agg(["min", "max"])
    assert (dearest["min"] <= 10).all()
    assert (dearest["max"] >= 30).all()


def test_a_table_names_each_graph_that_it_needs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = pd.DataFrame([architecture() | {"arch_id": 0, "scale": "s", "macs": 1}] * 2)
    others = pd.DataFrame({"model": ["timm:a@224", "timm:a@224", "timm:b@224"]})
    tables = {"hwgpt": measured.assign(gpu=GPUS), "timm_infer": others}
    monkeypatch.setattr(sources, "read", lambda name, _: tables[name])
    monkeypatch.setattr(sources, "is_there", lambda *_: True)
    specs = raw_graphs.specs_of(["timm_infer", "hwgpt"])
    assert specs == ["timm:a@224", "timm:b@224", gpt.key_of(architecture())]


def test_a_gpu_ran_under_autocast_to_what_its_settings_say(tmp_path: Path) -> None:
    archs = pd.DataFrame({"arch_id": [0], "batch_inferred": [8]})
    latency = pd.DataFrame({"arch_id": 0, "gpu": ["a100", "v100"], "latency_ms": 1.0})
    archs.to_parquet(tmp_path / "archs.parquet")
    latency.assign(power_w=None).to_parquet(tmp_path / "latency.parquet")
    assert list(hwgpt.read(tmp_path)["precision"]) == ["amp-bf16", "amp"]
