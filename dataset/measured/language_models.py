"""Rows of language models that a graph of `dataset.families.language_models` describes."""

from __future__ import annotations

import pandas as pd

from dataset.families.language_models import UNFUSED

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
    """Return the rows of optimum-benchmark that a graph describes, with graph and precision.

    Excluded are generation, weights of fewer bits, ONNX Runtime, and LLaMA under torch 2.0, for
    which reports differ by up to a factor of 2.6 and some rows exceed the GPU's peak.
    The precision of BERT rows was not recorded: at 14 TFLOP/s it is torch's default, fp32.

    Args:
        table: table of `dataset.measured.sources.optimum_benchmark`.
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
