"""Language models that others measured, built from their published sizes, without weights.

Names are "hf:llama-2-7b@256", the number being the tokens of a sequence. Attention is one fused
call; "hf:llama-2-7b-unfused@256" has its products, mask and softmax apart, as transformers ran it
before version 4.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

UNFUSED = "-unfused"
SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "bert-base": ("Bert", {}),
    "llama-2-7b": ("Llama", {"max_position_embeddings": 4096}),
    "llama-2-13b": (
        "Llama",
        {
            "hidden_size": 5120,
            "intermediate_size": 13_824,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "max_position_embeddings": 4096,
        },
    ),
    "mistral-7b": ("Mistral", {}),
}
"""Architecture, and what differs from the defaults of its configuration."""

CHECKPOINTS = {
    "hf:BAAI/bge-base-en-v1.5": "bert-base",
    "hf:NousResearch/Llama-2-7b-hf": "llama-2-7b",
    "hf:NousResearch/Llama-2-13b-hf": "llama-2-13b",
    "hf:lmsys/vicuna-7b-v1.5": "llama-2-7b",
    "hf:meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "hf:mistralai/Mistral-7B-v0.1": "mistral-7b",
}
BASELINE = "_baseline"
FUSED_RUNS = ("+bt", "+fa2")


def forward_passes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of optimum-benchmark that a graph states, with their graph and precision.

    Left out: generation, weights of fewer bits, ONNX Runtime, and LLaMA under torch 2.0, where
    rows of one report are up to 2.6 times faster than of another and some beat the GPU's peak.
    The precision of BERT rows was not recorded: at 14 TFLOP/s it is torch's default, fp32.

    Args:
        table: of `dataset.measured.sources.optimum_benchmark`.
    """
    name = table["model"].map(CHECKPOINTS)
    run = table["experiment"].astype(str)
    bert = name.eq("bert-base") & run.str.endswith(BASELINE)
    llama = name.notna() & name.ne("bert-base") & table["software"].str.startswith("torch 2.1")
    kept = table["task"].eq("forward") & table["quantization"].eq("none") & (bert | llama)
    rows = table[kept]
    fused = run[kept].str.endswith(FUSED_RUNS).map({True: "", False: UNFUSED})
    length = "@" + rows["seq_len"].astype(int).astype(str)
    return rows.assign(
        model="hf:" + name[kept] + length,
        graph="hf:" + name[kept] + fused + length,
        precision=rows["precision"].fillna("fp32"),
    )


def module_of(name: str) -> Any:
    """Return the module of a name such as "llama-2-7b-unfused", on no device.

    Raises:
        ValueError: if the name is not known.
    """
    import torch
    import transformers

    base = name.removesuffix(UNFUSED)
    if base not in SIZES:
        raise ValueError(f"unknown language model {name!r}; known: {', '.join(SIZES)}")
    kind, sizes = SIZES[base]
    settings: Mapping[str, Any] = {
        **sizes,
        "attn_implementation": "sdpa" if base == name else "eager",
    }
    if kind != "Bert":
        settings = {**settings, "use_cache": False}
    config = getattr(transformers, f"{kind}Config")(**settings)
    body = "Model" if kind == "Bert" else "ForCausalLM"
    with torch.device("meta"):
        return getattr(transformers, kind + body)(config).eval()
