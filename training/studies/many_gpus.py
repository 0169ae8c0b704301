"""Estimates for many GPUs compared with all measured rows on more than one.

    python -m training.studies.many_gpus --data ../shared/data

Compared are the ratios of n GPUs to one (or to the fewest) in the same table, because the tables'
regimes differ from ours: pytorch-gpu-benchmark runs torch.nn.DataParallel on 12 images of each GPU,
splitwise serves LLaMA-2 70B with shared products. Nothing is fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Annotated, Any, cast

import pandas as pd
import typer

import dippm
from dataset.families.language_models import module_of
from dataset.measured.location import table_path
from dataset.measured.sources import pytorch_gpu_benchmark
from dippm.base.number_format import show
from dippm.decide.parallel.estimate import estimate
from dippm.decide.parallel.one_process import ReplicatedState, forward_ms, reduce_ms
from dippm.decide.parallel.plan import plan_of
from dippm.devices import find, host_of
from dippm.estimate.conditions import Conditions, supported_precisions
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph.model_graph import ModelGraph

HOSTS = {"A100-40GB": "server-2022"}
OTHER_HOSTS = "desktop-2019"
BATCH = 12
SERVED = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM-80GB"}
LLAMA = "llama-2-70b"


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured ratio and our estimate.

    Attributes:
        table: table of the measurement.
        where: group of the row in the summary.
        gpus: number of GPUs of the row.
        measured: time over that of the fewest GPUs.
        estimated: estimate of `measured`.
    """

    table: str
    where: str
    gpus: int
    measured: float
    estimated: float


def one_process_rows(data: Path, loaded: LoadedPredictor) -> Iterator[Compared]:
    """Yield the rows of pytorch-gpu-benchmark on two GPUs and more.

    The time of one GPU is the measured one; the addition by others is estimated.
    """
    table = pytorch_gpu_benchmark.read(data / "pytorch_gpu_benchmark")
    table = table[table["precision"] != "fp64"]
    key = ["gpu", "system", "precision", "phase", "model", "repeat"]
    for model, rows in table.groupby("model"):
        name = str(model).split(":")[1].split("@")[0]
        graph = dippm.read_graph(f"torchvision:{name}")
        sizes = _tensors(name)
        for _, same in rows.groupby(key, dropna=False):
            one = same[same["n_gpus"] == 1]["latency_ms"]
            many = same[same["n_gpus"] > 1]
            if one.empty or many.empty:
                continue
            for row in many.itertuples():
                added = _added_ms(loaded, graph, sizes, row)
                yield Compared(
                    "DataParallel",
                    f"{row.gpu} {row.phase}",
                    int(row.n_gpus),
                    row.latency_ms / float(one.mean()),
                    1 + added / float(one.mean()),
                )


def _added_ms(
    loaded: LoadedPredictor, graph: ModelGraph, sizes: tuple[list[int], list[int]], row: Any
) -> float:
    """Return the time in ms that further GPUs add to a step."""
    device = find(row.gpu)
    precision = row.precision if row.precision in supported_precisions(device) else "fp32"
    host = host_of(HOSTS.get(row.gpu, OTHER_HOSTS))
    assert host is not None
    conditions = Conditions(
        device=device, batch=BATCH, precision=cast(Any, precision), timer="wall+copy", host=host
    )
    found = loaded.predict_at(graph, conditions)
    kernels = [cost for cost in found.operators if cost.node is not None]
    device_ms = sum(cost.time_ms for cost in kernels)
    launches = sum(cost.kernels for cost in kernels)
    plan = plan_of(device, gpus=int(row.n_gpus), strategy="data", batch=BATCH)
    width = 2 if row.precision == "fp16" else 4
    parameters, buffers = sizes
    copied = ReplicatedState(width * sum((*parameters, *buffers)), len(parameters) + len(buffers))
    launch_ms = host.launch_us / 1e3
    group = plan.data_group
    added = forward_ms(group, copied, device_ms, launches, launch_ms)
    added -= forward_ms(plan_of(device, gpus=1, strategy=None).data_group, copied, device_ms,
                        launches, launch_ms)  # fmt: skip
    if row.phase == "train":
        gradients = ReplicatedState(width * sum(parameters), len(parameters))
        added += reduce_ms(group, gradients, launch_ms)
    return added


def _tensors(name: str) -> tuple[list[int], list[int]]:
    """Return the number of elements of each parameter and of each buffer."""
    import torch
    import torchvision

    with torch.device("meta"):
        module = torchvision.models.get_model(name, weights=None)
    return [p.numel() for p in module.parameters()], [b.numel() for b in module.buffers()]


def shared_product_rows(
    data: Path, loaded: LoadedPredictor, lengths: list[int]
) -> Iterator[Compared]:
    """Yield the rows of splitwise: prefill of LLaMA-2 70B, as times and against two GPUs.

    Left out are means that the GPUs could not reach at their peak: the server had split the batch.
    """
    table = pd.read_csv(table_path(data, "splitwise", "perf_power.csv"))
    table = table[(table["model"] == "llama2-70b") & table["gpu"].isin(list(SERVED))]
    for tokens, rows in table[table["prompt_tokens"].isin(lengths)].groupby("prompt_tokens"):
        graph = dippm.read_graph(module_of(LLAMA), input=(int(str(tokens)),))
        means = rows.groupby(["gpu", "batch", "tp"])["prompt_ms"].mean()
        for (gpu, batch), same in means.groupby(level=["gpu", "batch"]):
            device = find(SERVED[gpu])
            flops = 2 * graph.at_batch(int(batch)).macs
            least_ms = flops / device.peak_tflops["fp16"] / 1e9
            measured = {tp: ms for (_, _, tp), ms in same.items() if ms > least_ms / tp}
            one = loaded.predict_at(
                graph, Conditions(device=device, batch=int(batch), precision="fp16")
            )
            plans = {tp: plan_of(device, gpus=tp, strategy="tensor") for tp in measured}
            steps = {tp: estimate(one, one, plan, loaded).step_ms for tp, plan in plans.items()}
            for tp, ms in measured.items():
                yield Compared("tensor parallel, ms", gpu, tp, ms, steps[tp])
                if 2 in measured and tp > 2:
                    ratios = ms / measured[2], steps[tp] / steps[2]
                    yield Compared("tensor parallel over two GPUs", gpu, tp, *ratios)


def summary(found: list[Compared]) -> Iterator[str]:
    """Yield the errors by table, place and number of GPUs as a table in Markdown."""
    yield "| table | where | GPUs | n | measured | estimated | median error | bias |"
    yield "|---|---|---|---|---|---|---|---|"
    keys = sorted({(c.table, c.where, c.gpus) for c in found})
    for key in [*keys, *sorted({(c.table, "all", 0) for c in found})]:
        rows = [c for c in found if key in ((c.table, c.where, c.gpus), (c.table, "all", 0))]
        errors = [abs(c.estimated / c.measured - 1) for c in rows]
        bias = exp(sum(log(c.estimated / c.measured) for c in rows) / len(rows))
        middle = (
            show(median(getattr(c, side) for c in rows)) for side in ("measured", "estimated")
        )
        cells = (*key[:2], str(key[2] or "all"), f"{len(rows):,}", *middle)
        yield f"| {' | '.join(cells)} | {median(errors):.0%} | {bias:.2f} |"


def main(
    data: Annotated[Path, typer.Option(help="folder of measured tables")],
    only: Annotated[str, typer.Option(help="data, tensor or all")] = "all",
    tokens: Annotated[
        str, typer.Option(help="prompts of splitwise; a conversion of 80 layers for each length")
    ] = "128,256,512,1024,2048,4096,8192",
) -> None:
    """Print the errors."""
    loaded = dippm.load()
    found: list[Compared] = []
    if only in ("data", "all"):
        found += one_process_rows(data, loaded)
    if only in ("tensor", "all"):
        found += shared_product_rows(data, loaded, [int(length) for length in tokens.split(",")])
    for line in (*summary(found), "", *left_out(data)):
        print(line)


def left_out(data: Path) -> Iterator[str]:
    """Yield the rows on several GPUs that have no ratio of times, and why."""
    table = pd.read_csv(table_path(data, "pytorch_gpu_benchmark", "torchvision_bs12.csv"))
    double = table[(table["dtype"] == "double") & (table["n_gpus"] > 1)]
    yield f"pytorch-gpu-benchmark: {len(double)} rows in double precision, which is not predicted"
    served = pd.read_csv(table_path(data, "splitwise", "perf_power.csv"))
    bloom = served[served["model"] == "bloom-176b"]
    yield f"splitwise: {len(bloom)} rows of bloom-176b, on eight GPUs only: nothing to compare with"
    capped = served[(served["model"] == "llama2-70b") & ~served["gpu"].isin(list(SERVED))]
    yield f"splitwise: {len(capped)} rows of H100s under a power cap, whose limit is not recorded"
    yield "splitwise: times of a token, whose cache no graph of one pass states"
    windows = pd.read_csv(table_path(data, "zeus", "power_limit_windows.csv"))
    several = windows[windows["n_gpus"] > 1]
    yield f"zeus: {len(several)} windows of training; their number of steps is not recorded"
    leader = pd.read_csv(table_path(data, "mlenergy", "llm_mllm_v2.csv"))
    several = leader[(leader["tp"] > 1) | (leader["pp"] > 1)]
    yield f"mlenergy: {len(several)} rows of serving with dynamic batches, decoding"


if __name__ == "__main__":
    typer.run(main)
