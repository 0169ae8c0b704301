"""Measured board powers, with what the work made the device do: the teachers of the power model.

    flagperf        A100-40GB, one operator repeated for at least 20 s
    aiconfigurator  H200, one product or attention repeated for a second
    hwgpt           five GPUs, forward passes of GPTs at batch 8; time and power of the same runs
    raphischer      Quadro RTX 5000, CNNs over ImageNet; GPU utilisation says how long it was busy
    ecnas           Quadro RTX 6000, training steps of small CNNs of NAS-Bench-101
    zeus            A40, P100, V100, Quadro RTX 6000, training epochs of ResNet-50 over ImageNet
    splitwise       A100-80GB, LLMs on 2 to 8 of them; work is weights read and products made

Sets of our own come beside them, see `collected_power`.

Left out: ML.ENERGY and the other networks of Zeus, whose tables do not state shapes;
aiconfigurator's 8-bit rows, which the kernel table cannot state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from dataset.join.graph_store import GraphStore
from dataset.measured import gpt, nasbench101, operators
from dataset.measured.location import DataNotFoundError, table_path
from dataset.measured.sources import read_if_there
from dippm.devices import Device, find
from dippm.estimate.conditions import PRECISIONS
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.power import achieved_shares, work_ms
from dippm.model.graph.model_graph import ModelGraph

OPERATORS, GPTS, CNNS, LLMS = "single operators", "GPTs", "CNNs", "LLMs served by several GPUs"
STEPS, WAITING = "training steps of CNNs", "CNNs that wait for their images"
OPERATORS_EACH = 500
SENSOR_MS = {"gemm": 0.1, "encoder_attention": 0.33, "generation_attention": 0.33}
"""aiconfigurator repeats a kernel 3,000 times at most, a product five times as often: shorter ones
end before a second is over, and the sensor of an H200 averages over one. Causal attention is left
out: the kernel table counts masked scores as computed, so its share of the peak is not known."""
GPT_BATCH = 8
LIKE_RUNS, FASTER = 99, 1 / 3
"""HW-GPT-Bench ran on several boards of each GPU: the power of like architectures has two or three
modes up to a third apart, the lower ones in longer runs. Which board ran is not said, so a sample
is the median of the faster third (no choice by power) of the runs most like it."""
CNN_GRAPHS = {
    "ResNet50": "timm:resnet50@224",
    "ResNet101": "timm:resnet101@224",
    "ResNet152": "timm:resnet152@224",
    "ResNet50V2": "timm:resnetv2_50@224",
    "ResNet101V2": "timm:resnetv2_101@224",
    "ResNet152V2": "timm:resnetv2_152@224",
    "VGG16": "torchvision:vgg16@224",
    "VGG19": "torchvision:vgg19@224",
    "DenseNet121": "timm:densenet121@224",
    "DenseNet169": "timm:densenet169@224",
    "DenseNet201": "timm:densenet201@224",
    "InceptionV3": "timm:tf_inception_v3@299",
    "InceptionResNetV2": "timm:inception_resnet_v2@299",
    "Xception": "timm:legacy_xception@299",
    "EfficientNetB0": "timm:tf_efficientnet_b0@224",
    "EfficientNetB1": "timm:tf_efficientnet_b1@240",
    "EfficientNetB2": "timm:tf_efficientnet_b2@260",
    "EfficientNetB3": "timm:tf_efficientnet_b3@300",
    "EfficientNetB4": "timm:tf_efficientnet_b4@380",
}
"""The same architectures at Keras' default sizes; for the others we have no graph to vouch for."""
IMAGENET_IMAGES = 1_281_167
LEAST_BUSY = 0.3
LLM_PARAMETERS = {"llama2-70b": 69e9, "bloom-176b": 176e9}
LONGEST_PROMPT = 2048
"""Readings of longer prompts fall to a sixth of the limit while the GPUs are busy: they are off."""


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One measured power.

    Attributes:
        source: source of the measurement.
        kind: kind of work, for the report.
        group: operator, or architecture: what a split by operators and models keeps together.
        busy: share of the time in which kernels ran.
        shares: shares of peak rates, as `PowerModel.power_w` takes them.
        idle_w, limit_w: idle power and limit of the board; None for those of the catalogue.
    """

    source: str
    kind: str
    group: str
    device: Device
    busy: float
    shares: tuple[float, ...]
    power_w: float
    row_id: str = ""
    idle_w: float | None = None
    limit_w: float | None = None


def power_samples(data: Path, graphs: GraphStore) -> list[PowerSample]:
    """Return all samples; a model whose graph is not in the store is left out.

    So are sources whose tables are not on this machine, see `absent_sources`.
    """
    return [
        *_operator_samples(_flagperf(data)),
        *_operator_samples(_aiconfigurator(data)),
        *_gpt_samples(data, graphs),
        *_cnn_samples(data, graphs),
        *_training_samples(data, graphs),
        *_llm_samples(data),
    ]


def _flagperf(data: Path) -> pd.DataFrame | None:
    table = read_if_there("flagperf", data)
    if table is None:
        return None
    table = table[table["power_w"].notna() & table["precision"].isin(PRECISIONS)]
    plain = (table["precision"] == "fp32") & (table["fp32_matmul_mode"] != "TF32")
    return table.assign(precision=table["precision"].mask(plain, "fp32-ieee"))


def _aiconfigurator(data: Path) -> pd.DataFrame | None:
    table = read_if_there("aiconfigurator", data)
    if table is None:
        return None
    table = table[table["power_w"].notna() & table["precision"].isin(PRECISIONS)]
    table = table[table["latency_ms"] >= table["operator"].map(SENSOR_MS)]
    parts = table.groupby("operator", sort=True)
    return pd.concat([p.sample(min(OPERATORS_EACH, len(p)), random_state=0) for _, p in parts])


def _operator_samples(table: pd.DataFrame | None) -> Iterator[PowerSample]:
    if table is None:
        return
    table = table.assign(layer=operators.layer_keys(table))
    for row in table.to_dict("records"):
        graph = operators.graph_of(row)
        if graph is None:
            continue
        group = row["operator"] if row["source"] == "flagperf" else row["layer"]
        yield _sample(row, OPERATORS, group, graph, 1, row["latency_ms"])


def _gpt_samples(data: Path, graphs: GraphStore) -> Iterator[PowerSample]:
    every = read_if_there("hwgpt", data)
    if every is None:
        return
    table = every[every["power_w"].notna() & every["energy_run_ms"].notna()]
    wanted = gpt.sample_architectures(every)["arch_id"].unique()
    rows = [
        {**row, **_at_full_clocks(like, row["macs"]), "key": gpt.key_of(row)}
        for _, like in table.groupby(["gpu", "scale", "embed_dim", "n_layer"])
        for row in like[like["arch_id"].isin(wanted)].to_dict("records")
    ]
    for row in sorted(rows, key=lambda row: row["key"]):  # a graph is built once for all GPUs
        if row["key"] in graphs:
            group = f"gpt {row['arch_id']}"
            yield _sample(row, GPTS, group, graphs[row["key"]], GPT_BATCH, row["run_ms"])


def _at_full_clocks(like: pd.DataFrame, macs: float) -> dict[str, float]:
    """Return power and time of an architecture, from the faster ones of the runs most like it."""
    distance = (like["macs"] / macs - 1).abs()
    nearest = like.loc[distance.nsmallest(LIKE_RUNS).index]
    pace = nearest["energy_run_ms"] / nearest["macs"]
    fast = nearest[pace <= pace.quantile(FASTER)]
    return {"power_w": fast["power_w"].median(), "run_ms": pace[fast.index].median() * macs}


def _cnn_samples(data: Path, graphs: GraphStore) -> Iterator[PowerSample]:
    table = read_if_there("raphischer", data)
    if table is None:
        return
    for row in table.sort_values("model").to_dict("records"):
        model = row["model"].removeprefix("raphischer:")
        key = CNN_GRAPHS.get(model)
        if key is None or key not in graphs:
            continue
        busy = row["gpu_util_mean_pct"] / 100
        busy_ms = row["latency_ms"] * busy
        kind = CNNS if row["gpu_bound"] else WAITING
        yield _sample(row, kind, model, graphs[key], int(row["batch"]), busy_ms, busy)


def _training_samples(data: Path, graphs: GraphStore) -> Iterator[PowerSample]:
    table = read_if_there("ecnas", data)
    cells = [] if table is None else nasbench101.sample_architectures(table).to_dict("records")
    work = [(row, _step_table(row, graphs)) for row in cells if row["model"] in graphs]
    for (row, kernels), busy in zip(work, _busy(work), strict=True):
        busy_ms = row["latency_ms"] * busy
        yield _sample_of(row, STEPS, row["model"], kernels, int(row["batch"]), busy_ms, busy)
    epochs = read_if_there("zeus", data)
    for row in [] if epochs is None else _imagenet_epochs(epochs).to_dict("records"):
        if row["model"] in graphs:
            kernels, busy_ms = _step_table(row, graphs), row["latency_ms"]
            yield _sample_of(row, STEPS, row["model"], kernels, int(row["batch"]), busy_ms)


def _step_table(row: Mapping[str, Any], graphs: GraphStore) -> KernelTable:
    last = row["layout"] == "nhwc"
    return KernelTable.of_training(graphs[row["model"]], row["precision"], channels_last=last)


def _busy(steps: Sequence[tuple[Mapping[str, Any], KernelTable]]) -> list[float]:
    """Return the share of each step of one laboratory in which kernels ran, by its times alone.

    Steps are told apart into what grows with the products, with the other kernels, and with the
    number of kernels whatever they do: in that part the GPU waits for the host.
    """
    if not steps:
        return []
    times = np.array([row["latency_ms"] for row, _ in steps])
    work = [work_ms(t, int(r["batch"]), DeviceView.of(find(r["gpu"]))) for r, t in steps]
    launches = np.array([table.launches for _, table in steps])
    parts = np.array([(w[:2].sum(), w[3].sum()) for w in work])
    columns = np.column_stack([parts, launches]) / times[:, None]
    per_launch_ms = nnls(columns, np.ones(len(times)))[0][-1]
    busy = np.maximum(LEAST_BUSY, 1 - per_launch_ms * launches / times)
    return [float(share) for share in busy]


def _imagenet_epochs(table: pd.DataFrame) -> pd.DataFrame:
    """Return Zeus' epochs of ResNet-50 without a lowered limit: its images are ImageNet's.

    Shapes of its other networks are not stated.
    """
    table = table[(table["model"] == "zeus:resnet50") & (table["dataset"] == "imagenet")]
    table = table[table["power_limit_w"] == table.groupby("gpu")["power_limit_w"].transform("max")]
    step_ms = 1e3 * table["time_per_epoch_s"] * table["batch"] / IMAGENET_IMAGES
    named = {"model": CNN_GRAPHS["ResNet50"], "precision": "fp32", "layout": "nchw"}
    return table.assign(latency_ms=step_ms, **named)


def _sample(
    row: Mapping[str, Any],
    kind: str,
    group: str,
    graph: ModelGraph,
    batch: int,
    busy_ms: float,
    busy: float = 1.0,
) -> PowerSample:
    table = KernelTable.of(graph, row["precision"], row["mode"])
    return _sample_of(row, kind, group, table, batch, busy_ms, busy)


def _sample_of(
    row: Mapping[str, Any],
    kind: str,
    group: str,
    table: KernelTable,
    batch: int,
    busy_ms: float,
    busy: float = 1.0,
) -> PowerSample:
    device = find(row["gpu"])
    shares = achieved_shares(table, batch, DeviceView.of(device), busy_ms)
    power_w, row_id = float(row["power_w"]), str(row["row_id"])
    return PowerSample(row["source"], kind, group, device, busy, shares, power_w, row_id)


def _llm_samples(data: Path) -> Iterator[PowerSample]:
    """Yield requests: their prompt is computed once, then each token reads all weights."""
    try:
        table = pd.read_csv(table_path(data, "splitwise", "perf_power.csv"))
    except DataNotFoundError:
        return
    table = table[table["avg_power_frac"].notna() & (table["prompt_tokens"] <= LONGEST_PROMPT)]
    keys = ["model", "tp", "prompt_tokens", "batch", "output_tokens"]
    device = find("A100-80GB")
    peak, bandwidth = device.known_rate("fp16") * 1e9, device.known("bandwidth_gb_s") * 1e6
    for (model, tp, prompt, batch, tokens), rows in table.groupby(keys):
        seen = rows[["e2e_ms", "avg_power_frac"]].median()
        weights = LLM_PARAMETERS[model] / tp
        tensor = 2 * weights * batch * (prompt + tokens) / peak / seen["e2e_ms"]
        memory = 2 * weights * (1 + tokens) / bandwidth / seen["e2e_ms"]
        power_w = float(seen["avg_power_frac"] * device.known("power_limit_w"))
        shares = (min(1.0, tensor), 0.0, 0.0, min(1.0, memory))
        yield PowerSample("splitwise", LLMS, f"{model} on {tp}", device, 1.0, shares, power_w)
