"""Measured prompts and decode steps of whole language models, by source.

optimum-benchmark: `generate` of transformers on one A100-80GB. The time of a step is what is left
of it without the prompt. Splitwise: prompts and tokens of Llama 2 70B and BLOOM on several GPUs.
ML.ENERGY: serving with vLLM; batch, time and energy per token are means over requests whose prompts
are not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dataset.measured.location import data_dir, table_path
from dataset.measured.sources import read
from dippm.decide.language.setting import Software

NAMES = (
    ("Llama-2-7b", "llama-2-7b"), ("Llama-2-7B", "llama-2-7b"), ("LLaMa-7B", "llama-2-7b"),
    ("Llama-2-13b", "llama-2-13b"), ("LLaMa-13B", "llama-2-13b"), ("LLaMa-65B", "llama-65b"),
    ("vicuna-7b", "llama-2-7b"), ("istral-7b", "mistral-7b-v0.1"), ("istral-7B", "mistral-7b-v0.1"),
)  # fmt: skip
SERVED = {
    "bigcode/starcoder2-15b": "starcoder2-15b", "bigcode/starcoder2-3b": "starcoder2-3b",
    "bigcode/starcoder2-7b": "starcoder2-7b", "codellama/CodeLlama-13b-hf": "codellama-13b",
    "codellama/CodeLlama-34b-hf": "codellama-34b", "codellama/CodeLlama-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-7b-hf": "codellama-7b", "google/codegemma-1.1-2b": "gemma-2b",
    "google/codegemma-7b": "gemma-7b", "google/gemma-2-27b-it": "gemma-2-27b",
    "google/gemma-2-2b-it": "gemma-2-2b", "google/gemma-2-9b-it": "gemma-2-9b",
    "meta-llama/Meta-Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "microsoft/Phi-3-medium-4k-instruct": "phi-3-medium",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
    "mistralai/Mistral-Large-Instruct-2407": "mistral-large",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mixtral-8x22b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
}  # fmt: skip
FORMATS = {"none": None, "gptq": "int4", "bnb": "int8"}
FP8 = ("meta-llama/Meta-Llama-3.1-405B-Instruct",)
"""Served in fp8: in half precision 405 B parameters do not fit 8 GPUs of 80 GB."""
ASSUMED_PROMPT = 256
"""Tokens of a prompt of ML.ENERGY, which does not record them."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured setting.

    Attributes:
        source: source of the row.
        group: rows that are reported together.
        shape: name in SHAPES.
        device: GPU.
        gpus: number of GPUs that share the model.
        software: software, see `ServingSetting`.
        precision: "fp16" or "bf16".
        weights: format; None is the precision.
        batch: sequences.
        prompt: tokens of each prompt.
        generated: tokens that each gets.
        first_ms: the pass over the prompts; None if not measured.
        step_ms: mean time of a decode step; None if not measured.
        joules_per_token: energy of all GPUs per token; None if not measured.
        trained: whether the shipped checkpoint saw the row (its prompt) when it was trained.
    """

    source: str
    group: str
    shape: str
    device: str
    gpus: int
    software: Software
    precision: str
    weights: str | None
    batch: int
    prompt: int
    generated: int
    first_ms: float | None = None
    step_ms: float | None = None
    joules_per_token: float | None = None
    trained: bool = False


def optimum_benchmark(data: Path | None) -> list[MeasuredStep]:
    """Return runs of torch 2.1 that generate; those of torch 2.0 contradict each other."""
    table = read("optimum_benchmark", data)
    table = table[table["software"].str.startswith("torch 2.1") & (table["precision"] == "fp16")]
    keys = ["report", "experiment", "model", "gpus_visible", "batch", "software", "seq_len"]
    forward = table[table["task"] == "forward"].drop_duplicates(keys).set_index(keys)["latency_ms"]
    found = []
    for row in table[table["task"] == "generate"].to_dict("records"):
        first = forward.get(tuple(row[key] for key in keys))
        shape = next((shape for part, shape in NAMES if part in row["model"]), None)
        if shape is None or first is None or pd.isna(row["new_tokens"]):
            continue
        # AWQ and some GPTQ runs are recorded as not quantised; their names say what they are.
        text = f"{row['experiment']} {row['model']}".casefold()
        named = next((q for q in ("gptq", "awq", "bnb") if q in text), row["quantization"])
        quantised = "int4" if named in ("gptq", "awq") else FORMATS[named]
        steps = int(row["new_tokens"]) - 1
        found.append(
            MeasuredStep(
                "optimum_benchmark",
                f"{shape} {named}",
                shape,
                row["gpu"],
                1,
                "eager",
                "fp16",
                quantised,
                int(row["batch"]),
                int(row["seq_len"]),
                steps + 1,
                float(first),
                (float(row["latency_ms"]) - float(first)) / steps,
                trained=quantised is None,
            )
        )
    return found


def splitwise(data: Path | None) -> list[MeasuredStep]:
    """Return the median of each setting, without those under a power cap."""
    table = pd.read_csv(table_path(data_dir(data), "splitwise", "perf_power.csv"))
    table = table[~table["gpu"].str.contains("pcap")]
    keys = ["model", "gpu", "tp", "prompt_tokens", "batch", "output_tokens"]
    found = []
    for key, rows in table.groupby(keys):
        model, gpu, tp, prompt, batch, generated = key
        found.append(
            MeasuredStep(
                "splitwise",
                f"{model} {gpu}",
                {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}[model],
                {"a100-80gb": "A100-80GB", "h100-80gb": "H100"}[gpu],
                int(tp),
                "engine",
                "fp16",
                None,
                int(batch),
                int(prompt),
                int(generated),
                float(rows["prompt_ms"].median()),
                float(rows["token_ms"].median()),
            )
        )
    return found


def ml_energy(data: Path | None) -> list[MeasuredStep]:
    """Return the rows of language models on one server; batch and output are their means."""
    table = pd.read_csv(table_path(data_dir(data), "mlenergy", "llm_mllm_v2.csv"))
    table = table[table["model"].isin(SERVED) & (table["pp"] == 1)]
    return [
        MeasuredStep(
            "mlenergy",
            row["gpu"],
            SERVED[row["model"]],
            row["gpu"],
            int(row["tp"]),
            "graph",
            "bf16",
            "fp8" if row["model"] in FP8 else None,
            max(1, round(row["avg_batch_requests"])),
            ASSUMED_PROMPT,
            max(2, round(row["avg_output_tokens"])),
            step_ms=1e3 * row["avg_tpot_s"],
            joules_per_token=row["energy_per_request_j"] / row["avg_output_tokens"],
        )
        for row in table.to_dict("records")
    ]


SOURCES = {"optimum_benchmark": optimum_benchmark, "splitwise": splitwise, "mlenergy": ml_energy}
