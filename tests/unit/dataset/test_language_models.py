"""Language models of optimum-benchmark: which rows a graph states, and by which graph."""

from __future__ import annotations

import warnings

import pandas as pd
import pytest

from dataset.families import language_models as families
from dataset.join import raw_graphs
from dataset.measured import language_models
from dippm.model.graph import build

ROW = {
    "task": "forward", "quantization": "none", "precision": "fp16", "seq_len": 256.0,
    "software": "torch 2.1.1+cu118", "model": "hf:NousResearch/Llama-2-7b-hf", "experiment": "fp16",
}  # fmt: skip


def rows(*changes: dict[str, object]) -> pd.DataFrame:
    return language_models.forward_passes(pd.DataFrame([ROW | change for change in changes]))


def test_a_row_has_the_graph_of_its_attention() -> None:
    kept = rows({}, {"experiment": "fp16+bt"}, {"experiment": "fp16+fa2"})
    assert kept["graph"].tolist() == [
        "hf:llama-2-7b-unfused@256", "hf:llama-2-7b@256", "hf:llama-2-7b@256",
    ]  # fmt: skip
    assert set(kept["model"]) == {"hf:llama-2-7b@256"}


@pytest.mark.parametrize(
    "change",
    [
        {"task": "generate"},
        {"quantization": "gptq"},
        {"model": "hf:TheBloke/LLaMa-7B-GPTQ"},
        {"software": "torch 2.0.1"},
        {"model": "hf:BAAI/bge-base-en-v1.5", "experiment": "bge_batch_size_sweep_ort_trt_fp16"},
    ],
)
def test_what_a_graph_does_not_state_is_left_out(change: dict[str, object]) -> None:
    assert rows(change).empty


def test_bert_ran_in_the_precision_that_torch_starts_with() -> None:
    bert = {"model": "hf:BAAI/bge-base-en-v1.5", "experiment": "bge_seq_len_sweep_baseline"}
    kept = rows(bert | {"precision": None, "software": "torch 2.0.1"})
    assert kept["precision"].tolist() == ["fp32"]


def test_attention_apart_or_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
    monkeypatch.setitem(families.SIZES, "tiny", ("Llama", sizes))
    absorbed = {}
    for name in ("tiny", "tiny-unfused"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = build(raw_graphs.convert(f"hf:{name}@32"))
        (absorbed[name],) = (set(n.absorbed) for n in graph.nodes if n.op == "attention")
        assert not graph.unknown_ops
    assert "sdpa" in absorbed["tiny"]
    assert {"softmax", "batch_matmul"} <= absorbed["tiny-unfused"]


def test_an_unknown_language_model_is_refused() -> None:
    with pytest.raises(ValueError, match="llama-2-7b"):
        families.module_of("llama-3")
