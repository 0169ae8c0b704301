"""Published reports of language models → our tables of optimum-benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import pandas as pd

from dataset.published.whole_models import Files, Tables

DEVICE = "NVIDIA A100-SXM4-80GB"
WORKLOAD = {
    "experiment": ("experiment_name",),
    "model": ("model",),
    "torch": ("backend.version",),
    "transformers": ("environment.transformers_version",),
    "dtype": ("backend.torch_dtype",),
    "quantization": ("backend.quantization_scheme", "backend.quantization_strategy"),
    "bettertransformer": ("backend.bettertransformer",),
    "torch_compile": ("backend.torch_compile",),
}
"""Our column → its names in the reports, which differ between versions."""
PASSES = {
    "batch": ("benchmark.input_shapes.batch_size",),
    "seq_len": ("benchmark.input_shapes.sequence_length",),
    "new_tokens": ("benchmark.new_tokens",),
    "forward_latency_s": ("forward.latency(s)",),
    "forward_throughput_samples_s": ("forward.throughput(samples/s)",),
    "forward_peak_memory_mb": ("forward.peak_memory(MB)",),
    "forward_mem_used_mb": ("forward.max_memory_used(MB)",),
    "forward_mem_allocated_mb": ("forward.max_memory_allocated(MB)",),
    "forward_mem_reserved_mb": ("forward.max_memory_reserved(MB)",),
    "generate_latency_s": ("generate.latency(s)",),
    "generate_throughput_tok_s": ("generate.throughput(tokens/s)",),
    "generate_peak_memory_mb": ("generate.peak_memory(MB)",),
    "generate_mem_used_mb": ("generate.max_memory_used(MB)",),
    "generate_mem_allocated_mb": ("generate.max_memory_allocated(MB)",),
    "generate_mem_reserved_mb": ("generate.max_memory_reserved(MB)",),
}
TRAINING = {
    "batch": ("benchmark.training_arguments.per_device_train_batch_size",),
    "seq_len": ("benchmark.dataset_shapes.sequence_length",),
    "train_runtime_s": ("training.runtime(s)",),
    "train_throughput_samples_s": ("training.throughput(samples/s)",),
}
NOT_OF_TRAINING = ("transformers", "bettertransformer", "torch_compile")


def optimum_benchmark(files: Files) -> Tables:
    """Return inference sorted by report, model and batch, and training in the reports' order."""
    inference, training = [], []
    for name, path in files.items():
        report = pd.read_csv(path)
        # COMMIT/examples/REPORT/artifacts/VARIANT/full_report.csv
        parts = PurePosixPath(name).parts
        title = "/".join(part for part in parts[2:-1] if part != "artifacts")
        gpus = _column(report, ["environment.gpus"])
        rows = pd.DataFrame(
            {
                "gpu": DEVICE,
                "report": title,
                "gpus_visible": gpus.str.count(DEVICE).fillna(1).astype("int64"),
                **{ours: _column(report, theirs) for ours, theirs in WORKLOAD.items()},
            }
        )
        if title.startswith("training"):
            figures = {ours: _column(report, theirs) for ours, theirs in TRAINING.items()}
            rows = rows.drop(columns=list(NOT_OF_TRAINING))
            training.append(rows.assign(**figures))
        else:
            figures = {ours: _column(report, theirs) for ours, theirs in PASSES.items()}
            rows["quantization"] = rows["quantization"].fillna("none")
            inference.append(rows.assign(**figures))
    head = ["gpu", "report", "experiment", "model", "gpus_visible", "torch"]
    passes = pd.concat(inference).sort_values(["report", "model", "batch"], kind="stable")
    # Two runs of an experiment with equal times count as one.
    told_apart = ["report", "experiment", "model", "torch", "batch", "seq_len", "new_tokens"]
    passes = passes.drop_duplicates([*told_apart, "forward_latency_s", "generate_latency_s"])
    steps = pd.concat(training)
    return {
        "a100_80gb_inference.csv": _arrange_columns(passes, head, PASSES),
        "a100_80gb_llama_training.csv": _arrange_columns(steps, head, TRAINING),
    }


def _column(report: pd.DataFrame, names: Sequence[str]) -> pd.Series[object]:
    """Return the column under the first of these names in the report, else nulls."""
    for name in names:
        if name in report:
            return report[name]
    return pd.Series(None, index=report.index, dtype="object")


def _arrange_columns(table: pd.DataFrame, head: list[str], figures: object) -> pd.DataFrame:
    """Return the columns in our order: origin, conditions, figures."""
    last = list(figures)  # type: ignore[call-overload]
    middle = [name for name in table.columns if name not in head and name not in last]
    table = table[[*head, *middle, *last]].astype({"batch": "float64", "seq_len": "float64"})
    return table.reset_index(drop=True)
