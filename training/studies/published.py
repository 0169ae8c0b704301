"""Predictions compared with published figures of whole models, which were never used in training.

    python -m training.studies.published [--results STEM]

`published.csv` holds rates: NVIDIA's tables of convolutional networks in PyTorch 1.9; those that
diffusers 0.17 keeps of the U-Net of Stable Diffusion 1.5 in PyTorch 2.0, iterations of the whole
pipeline, of which the U-Net is nearly all; what the authors of Swin, ToMe, Hiera and InceptionNeXt
measured of vision models; and what those of RT-DETR did of it in TensorRT. The first two are means
over a data set or an image, loader and scheduler included, so a few percent of them are not the
model's. The U-Net takes two samples for each image. The memory of their V100 and A100 is stated by
NVIDIA alone; 16 and 80 GB are assumed. `published_memory.csv` holds peaks of the memory that
PyTorch allocates.

Points whose latency is limited by the host are summed separately: their host is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import dippm
from dippm.estimate.conditions import Mode
from dippm.model.graph import ModelGraph
from training.studies.kernel_tables import markdown

FIGURES = Path(__file__).with_name("published.csv")
MEMORY_FIGURES = Path(__file__).with_name("published_memory.csv")
HOST_SHARE = 0.5
UNET = "diffusers:sd-1.5-unet"
DETECTOR = "transformers:rtdetr-"
BACKBONES: dict[str, dict[str, Any]] = {
    "r18": {"depths": [2, 2, 2, 2], "decoder_layers": 3},
    "r34": {"depths": [3, 4, 6, 3], "decoder_layers": 4},
    "r50": {"depths": [3, 4, 6, 3]},
    "r101": {
        "depths": [3, 4, 23, 3],
        "encoder_hidden_dim": 384,
        "encoder_ffn_dim": 2048,
        "decoder_in_channels": [384, 384, 384],
    },
}
"""Options of an RT-DETR by its backbone, as those that its authors publish."""
BASIC = {"encoder_in_channels": [128, 256, 512], "hidden_expansion": 0.5}
"""Options beside those of the two whose ResNet has basic blocks."""
PROMPT_LENGTH, PROMPT_WIDTH, LATENT = 77, 768, (4, 64, 64)
LAYOUTS = {"nchw": (False,), "nhwc": (True,), "either": (False, True)}
"""Whether images are stored channels last, by layout of a figure; the faster one counts."""
NOTE = "`python -m training.studies.published --results training/studies/results/published`"


@dataclass(frozen=True, slots=True)
class Beside:
    """A published figure and our prediction.

    Attributes:
        source, model, gpu, precision, mode, batch: point of the row; TensorRT's mode is its name.
        published_ms: time of a batch, from the published rate.
        predicted_ms: our prediction of the same.
        low_ms, high_ms: 90 % interval of our prediction.
        host_share: share of launches in our predicted latency.
    """

    source: str
    model: str
    gpu: str
    precision: str
    mode: str
    batch: int
    published_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    host_share: float


def figures() -> pd.DataFrame:
    """Return the published figures, with "published_ms" of a batch."""
    found = pd.read_csv(FIGURES, comment="#")
    samples = found["batch"].where(found["unit"] == "samples/s", 1)
    return found.assign(published_ms=1e3 * samples / found["rate"])


def graph_of(model: str, size: float, batch: int) -> ModelGraph:
    """Return the graph of a published model; the U-Net has sizes of its own for each batch."""
    if model == UNET:
        return unet(batch)
    given = detector(model.removeprefix(DETECTOR)) if model.startswith(DETECTOR) else model
    return dippm.read_graph(given, input=(3, int(size), int(size)))


def detector(backbone: str) -> Any:
    """Return an RT-DETR without its losses, by its backbone."""
    import torch
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    options = dict(BACKBONES[backbone])
    is_basic = backbone in ("r18", "r34")
    resnet = RTDetrResNetConfig(
        depths=options.pop("depths"),
        layer_type="basic" if is_basic else "bottleneck",
        hidden_sizes=[64, 128, 256, 512] if is_basic else [256, 512, 1024, 2048],
        out_features=["stage2", "stage3", "stage4"],
    )
    options |= BASIC if is_basic else {}

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = RTDetrConfig(backbone_config=resnet, **options)
            self.detector = RTDetrForObjectDetection(config)

        def forward(self, images: Any) -> Any:
            found = self.detector(images)
            return found.logits, found.pred_boxes

    return Plain().eval()


def unet(batch: int) -> ModelGraph:
    """Return the U-Net of Stable Diffusion 1.5, without weights.

    Raises:
        ImportError: if diffusers is not installed.
    """
    import torch
    from diffusers import UNet2DConditionModel

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet = UNet2DConditionModel(sample_size=LATENT[-1], cross_attention_dim=768)

        def forward(self, latent: Any, step: Any, prompt: Any) -> Any:
            return self.unet(latent, step, prompt, return_dict=False)[0]

    with torch.device("meta"):
        module = Plain().eval()
        sizes = (LATENT, (), (PROMPT_LENGTH, PROMPT_WIDTH))
        given = tuple(torch.empty(batch, *size) for size in sizes)
        return dippm.read_graph(torch.export.export(module, given))


def compared(rows: pd.DataFrame) -> Iterator[Beside]:
    """Yield each figure with its prediction."""
    loaded = dippm.load()
    graphs: dict[tuple[Any, ...], ModelGraph] = {}
    for row in track(list(rows.itertuples()), "published figures"):
        key = (row.model, row.batch) if row.model == UNET else (row.model, row.size)
        if key not in graphs:
            graphs[key] = graph_of(row.model, row.size, row.batch)
        answers = [
            loaded.predict(
                graphs[key],
                batch=row.batch,
                device=row.gpu,
                precision=row.precision,
                attention=row.attention,
                channels_last=channels_last,
                **({"mode": row.mode} if row.mode in get_args(Mode) else {"runtime": row.mode}),
            )
            for channels_last in LAYOUTS[row.layout]
        ]
        found = min(answers, key=lambda answer: answer.latency_ms or math.inf)
        assert found.latency_ms is not None, found.absent
        interval = found.intervals["latency_ms"]
        yield Beside(
            source=row.source,
            model=row.model,
            gpu=row.gpu,
            precision=row.precision,
            mode=row.mode,
            batch=row.batch,
            published_ms=row.published_ms,
            predicted_ms=found.latency_ms,
            low_ms=interval.low,
            high_ms=interval.high,
            host_share=found.host.share if found.host else 0.0,
        )


def summed(found: pd.DataFrame) -> pd.DataFrame:
    """Return errors by source, GPU and precision, separately for points limited by the host."""
    error = np.log(found["predicted_ms"] / found["published_ms"])
    inside = found["published_ms"].between(found["low_ms"], found["high_ms"])
    tried = found.assign(
        decides=np.where(found["host_share"] > HOST_SHARE, "host", "device"),
        error=error,
        ape=100 * np.abs(np.expm1(error)),
        inside=100.0 * inside,
    )
    keys = ["decides", "source", "gpu", "precision", "mode"]
    columns = {name: (name, "mean") for name in ("error", "inside")}
    columns = {"n": ("ape", "size"), "mape": ("ape", "mean"), **columns}
    lines, whole = (tried.groupby(by).agg(**columns) for by in (keys, "decides"))
    whole.index = pd.MultiIndex.from_tuples([(name, "all", "", "", "") for name in whole.index])
    both = pd.concat([lines, whole]).rename_axis(keys).reset_index()
    both["bias"] = 100 * np.expm1(both.pop("error"))
    return both.sort_values("decides", kind="stable").round(1)


def memory_compared() -> pd.DataFrame:
    """Return the published peaks of memory with "predicted_mb" and "error_percent"."""
    rows = pd.read_csv(MEMORY_FIGURES, comment="#")
    predicted = [allocated_mb(row) for row in track(list(rows.itertuples()), "published memory")]
    error = 100 * (np.array(predicted) / rows["allocated_mb"] - 1)
    return rows.assign(predicted_mb=np.round(predicted).astype(int), error_percent=error.round(1))


def allocated_mb(row: Any) -> float:
    """Return weights and activations of our prediction, in MiB, without 8 MiB that cuBLAS takes."""
    found = dippm.predict(
        graph_of(row.model, row.size, row.batch),
        batch=row.batch,
        precision=row.precision,
        attention=row.attention,
    )
    assert found.memory_parts is not None, found.absent
    return found.memory_parts.weights_mb + found.memory_parts.activations_mb


def table_of(found: pd.DataFrame, title: str) -> Table:
    """Return rows for people."""
    table = Table(*found.columns, title=title)
    for line in found.itertuples(index=False):
        table.add_row(*map(str, line))
    return table


def main(
    results: Annotated[Path | None, typer.Option(help="stem of result files to write")] = None,
) -> None:
    """Print the errors relative to published figures."""
    found = pd.DataFrame(asdict(one) for one in compared(figures()))
    lines, memory = summed(found), memory_compared()
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(table_of(lines, "latency against published figures, percent"))
    console.print(table_of(memory, "allocated memory against published figures"))
    if results is not None:
        rounded = [
            {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            for row in found.to_dict("records")
        ]
        text = ",\n".join(f" {json.dumps(row)}" for row in rounded)
        results.with_suffix(".json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
        parts = [
            f"{title}\n\n{markdown(list(part.columns), part.astype(str).to_numpy().tolist())}"
            for title, part in (("## Latency, percent", lines), ("## Allocated memory", memory))
        ]
        page = "\n\n".join(["# Against published figures", NOTE, *parts]) + "\n"
        results.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
