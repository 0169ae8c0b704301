"""What the tables say and the rows that the hybrid predictor learns from say the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dataset.measured.operators import dense, elementwise
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.judge.shipped_answers import askable_rows
from training.hybrid.rows import sources

GEMM = {
    "source": "aiconfigurator", "operator": "gemm", "gpu": "A100-SXM-80GB", "timer": "K",
    "precision": "bf16", "mode": "eager", "layout": None, "software": "s", "latency_ms": 1.0,
    "num_heads": None, "num_kv_heads": None, "head_dim": None, "window_size": None,
}  # fmt: skip


PROBLEM = {
    "source": "kernelbench", "gpu": "H100-SXM-80GB", "timer": "E", "precision": "fp32",
    "layout": "nchw", "software": "run", "latency_ms": 1.0, "problem_id": 1,
}  # fmt: skip


def timm_row(model: str, gpu: str, torch: str = "2.9.1", mode: str = "eager") -> dict[str, Any]:
    """Return a row of timm's benchmark, as its table has it."""
    return {
        "row_id": f"timm_infer/{model} {gpu}", "source": "timm_infer", "gpu": gpu, "mode": mode,
        "software": f"torch {torch}, cuda 12.8", "precision": "amp", "layout": "nchw", "timer": "E",
        "model": f"timm:{model}", "latency_ms": 1.0, "batch": 8,
    }  # fmt: skip


class Store(dict[str, ModelGraph]):
    """Stands for a folder of graphs; whatever it lacks could not be converted."""

    def refused(self, key: str) -> bool:
        return key not in self


class Lookup:
    """Stands for the lookup of graphs; takes what is made on the spot."""

    def __init__(self, **known: ModelGraph) -> None:
        self.made: dict[str, object] = {}
        self.store = Store(known)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """Return the tables that are there; the test fills them."""
    found: dict[str, pd.DataFrame] = {}
    monkeypatch.setattr(sources, "read_if_there", lambda name, _: found.get(name))
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


def test_a_problem_is_one_architecture_at_all_its_sizes(tables: dict[str, pd.DataFrame]) -> None:
    lookup = Lookup(
        small=dense((8,), 4, 2), large=dense((99,), 4, 2), chain=elementwise("relu", (3,))
    )
    lookup.store["strange"] = replace(lookup.store["small"], unknown_ops={"aten.odd": 1})
    runs = [
        ("small", 1, "eager"),
        ("large", 1, "compile_inductor_default"),
        ("chain", 2, "eager"),
        ("small", 1, "compile_cudagraphs"),
        ("strange", 1, "eager"),
        ("absent", 1, "eager"),
    ]
    tables["kernelbench"] = pd.DataFrame(
        {**PROBLEM, "model": model, "level": level, "config": config, "row_id": f"kernelbench/{i}",
         "mode": "eager" if config == "eager" else "compiled"}
        for i, (model, level, config) in enumerate(runs)
    )  # fmt: skip
    chain, large, small = sources._kernelbench_rows(Path(), lookup)
    assert (chain.family, large.family) == ("chain relu", "operator dense")
    assert (chain.kind, large.kind) == ("module", "operator")
    assert not chain.is_model
    assert small.architecture == large.architecture != chain.architecture
    assert (small.batch, large.batch) == (8, 99)
    assert (small.mode, large.mode) == ("eager", "compiled")
    assert small.timer == "wall"


def test_a_language_model_is_one_architecture_however_attention_ran(
    tables: dict[str, pd.DataFrame],
) -> None:
    runs = {"experiment": ["fp16", "fp16+bt"], "row_id": ["a", "b"]}
    tables["optimum_benchmark"] = pd.DataFrame({
        "source": "optimum_benchmark", "task": "forward", "quantization": "none",
        "precision": "fp16", "seq_len": 256.0, "software": "torch 2.1.1", "timer": "W",
        "model": "hf:mistralai/Mistral-7B-v0.1", "gpu": "A100-80GB", "mode": "eager",
        "layout": None, "batch": 4, "latency_ms": 9.0, **runs,
    })  # fmt: skip
    lookup = sources._Graphs(Path(), {"hf:mistral-7b@256": dense((7,), 4, 2)})
    apart, fused = sources._language_rows(Path(), lookup)
    assert (apart.graph, fused.graph) == ("hf:mistral-7b-unfused@256", "hf:mistral-7b@256")
    assert apart.architecture == fused.architecture
    assert (apart.family, apart.batch, apart.timer) == ("llama", 4, "wall")


def test_a_network_beside_neighbours_or_at_the_end_of_the_memory_is_no_row() -> None:
    runs = [
        ("torchvision:vgg19@224", "3g.40gb", 128, 1),
        ("torchvision:vgg19@224", "3g.40gb", 128, 2),
        ("torchvision:densenet169@224", "3g.40gb", 128, 1),
        ("torchvision:densenet169@224", "3g.40gb", 64, 1),
        ("torchvision:densenet169@224", "7g.80gb", 128, 1),
    ]
    table = pd.DataFrame(runs, columns=["model", "mig_profile", "batch", "processes_mps"])
    assert sources.alone(table).index.tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    ("model", "gpu", "torch", "mode", "kept"),
    [
        ("convnext_tiny", "RTX-4090", "2.9.1", "eager", ("group_norms", "layer_norms")),
        ("convnext_tiny", "RTX-4090", "2.9.1", "compiled", ()),
        ("convnext_tiny", "RTX-5090", "2.9.1", "eager", ()),
        ("resnet50_gn", "RTX-3090", "2.4.0", "eager", ("scores", "group_norms")),
        ("vit_base_patch16_224", "RTX-3090", "2.4.0", "eager", ("scores", "group_norms")),
        ("vit_base_patch16_224", "RTX-4090", "2.9.1", "eager", ("group_norms", "layer_norms")),
        ("vit_relpos_base_patch16_224", "RTX-4090", "2.9.1", "eager", ("group_norms",)),
        ("swin_tiny_patch4_window7_224", "RTX-4090", "2.9.1", "eager", ("group_norms",)),
    ],
)
def test_norms_of_timm_ran_in_half_precision_on_two_gpus(
    model: str, gpu: str, torch: str, mode: str, kept: tuple[str, ...]
) -> None:
    record = timm_row(model, gpu, torch, mode)
    row = sources.row_of(record, f"timm:{model}@224", model, "family")
    assert row.kept_half == kept
    layers = {"layer_norm", "rms_norm"} if "layer_norms" in kept else set()
    assert row.half_norms == layers | ({"group_norm"} if "group_norms" in kept else set())


def test_a_question_is_of_rows_whose_model_has_none_of_the_half_norms() -> None:
    graphs = {
        name: elementwise(name, (8, 64)) for name in ("batch_norm", "layer_norm", "group_norm")
    }
    row = sources.row_of(timm_row("convnext_tiny", "RTX-4090"), "any", "a", "a")
    rows = [replace(row, row_id=name, graph=name) for name in graphs]
    plain = sources.row_of(timm_row("convnext_tiny", "RTX-5090"), "layer_norm", "a", "a")
    plain_layers = replace(row, row_id="layers", graph="layer_norm", kept_half=("group_norms",))
    operator = replace(plain, row_id="operator", node=0)
    asked = askable_rows([*rows, plain, plain_layers, operator], graphs.__getitem__)
    assert asked == [rows[0], plain, plain_layers]


def test_operators_of_a_sheet_become_rows_with_their_precision(
    tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = dict.fromkeys(("C", "K", "S", "R"))
    row = {
        "source": "deepbench", "operator": "gemm", "gpu": "T4", "timer": "K", "mode": "eager",
        "layout": None, "software": None, "latency_ms": 0.5, "m": 8, "n": 4, "k": 2, **shape,
    }  # fmt: skip
    precisions = ("fp32-ieee", "fp16", "int8", None)
    tables["deepbench"] = pd.DataFrame(
        row | {"precision": precision, "row_id": f"deepbench/{i}"}
        for i, precision in enumerate(precisions)
    )
    monkeypatch.setattr(sources, "OPERATOR_SOURCES", ("deepbench",))
    made = sources._operator_rows(Path(), Lookup())
    assert [(r.precision, r.timer, r.kind) for r in made] == [
        ("fp32-ieee", "kernel", "operator"),
        ("fp16", "kernel", "operator"),
    ]


def test_networks_on_slices_and_u_nets_become_rows_of_whole_models(
    tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {"mode": "eager", "layout": "nchw", "phase": "inference", "n_gpus": 1}
    tables["parvagpu"] = pd.DataFrame([{
        **common, "row_id": "parvagpu/0", "source": "parvagpu", "gpu": "A100-80GB", "timer": "C",
        "precision": "tf32", "software": "torch 1.11", "model": "torchvision:vgg19@224",
        "mig_profile": "2g.20gb", "batch": 16, "latency_ms": 37.1, "processes_mps": 1,
    }])  # fmt: skip
    tables["sd_webui"] = pd.DataFrame([{
        **common, "row_id": "sd_webui/0", "source": "sd_webui", "gpu": "RTX-4070-Ti", "timer": "W",
        "precision": "fp16", "software": None, "model": "sd:unet-v1@64", "mig_profile": None,
        "batch": 8, "latency_ms": 187.6,
    }])  # fmt: skip
    monkeypatch.setattr(sources, "_gpt_rows", lambda *_: [])
    lookup = Lookup()
    lookup.keys_of = lambda models: pd.DataFrame(
        {"architecture": "a", "family": "f", "params_M": 1.0}, index=sorted(set(models))
    )
    network, u_net = sources._model_rows(Path(), lookup)
    assert (network.precision, network.timer, network.mig.name) == ("tf32", "wall+copy", "2g.20gb")
    assert (u_net.device.name, u_net.batch, u_net.mig) == ("RTX-4070-Ti", 8, None)
    assert u_net.is_end_to_end
