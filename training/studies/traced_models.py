"""Models by name, with their traces and graphs, which are cached in a folder."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dataset.join import raw_graphs
from dippm.model.frontends import named
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import build
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.relax.raw_graph import RAW_GRAPH_VERSION, RawGraph
from dippm.model.vision_operators import declare_vision_operators
from training.studies import live_memory
from training.studies.traced_kernels import TracedKernel, TracedPrecision, traced
from training.studies.traced_training import Optimizer, TracedStep, traced_step

LAYERS = 2
"""Number of layers of language models, whose kernels repeat from layer to layer."""
TOKENS = 128


def module_of(spec: str, batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model on the meta device, and inputs for it.

    Args:
        spec: "resnet50" of timm, "torchvision:vit_b_16", or "transformers:bert", which is the
            default configuration of a type with few layers, its encoder if it has one.
        batch: number of samples.

    With "@" and a size, images are as large or texts as long, as `live_memory` has them.
    """
    if "@" in spec:
        return live_memory.module_of(spec, batch)
    zoo, _, name = spec.rpartition(":")
    if zoo == "transformers":
        return _of_transformers(name, batch)
    built = named.build(f"{zoo or 'timm'}:{name}", "meta")
    preset = getattr(built.module, "pretrained_cfg", None) or {}
    shape = built.shapes.get("", tuple(preset.get("input_size", (3, 224, 224))))
    return built.module, {"": torch.empty(batch, *shape, device="meta")}


def _of_transformers(name: str, batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name, num_hidden_layers=LAYERS)
    config.use_cache = False
    with torch.device("meta"):
        module = AutoModel.from_config(config).eval()
    if config.is_encoder_decoder:
        module = module.get_encoder()
    key = module.main_input_name
    if key == "pixel_values":
        size = (config.num_channels, config.image_size, config.image_size)
        return module, {key: torch.empty(batch, *size, device="meta")}
    if key == "input_features":
        frames = 2 * config.max_source_positions
        return module, {key: torch.empty(batch, config.num_mel_bins, frames, device="meta")}
    return module, {key: torch.zeros(batch, TOKENS, dtype=torch.int64, device="meta")}


def trace_of(
    spec: str, batch: int, precision: TracedPrecision, channels_last: bool, cache: Path
) -> list[TracedKernel]:
    """Return a model's trace, from the cache if present."""
    order = "nhwc" if channels_last else "nchw"
    path = cache / f"{stem_of(spec)}.{batch}.{precision}.{order}.trace.json.gz"
    if path.is_file():
        rows = json.loads(gzip.decompress(path.read_bytes()))
        return [_kernel(row) for row in rows]
    module, inputs = module_of(spec, batch)
    kernels = traced(module, inputs, precision, channels_last)
    write_compressed(path, json.dumps([asdict(kernel) for kernel in kernels]))
    return kernels


def step_of(
    spec: str,
    batch: int,
    precision: TracedPrecision,
    channels_last: bool,
    optimizer: Optimizer,
    cache: Path,
) -> TracedStep:
    """Return the trace of a model's training step, from the cache if present."""
    order = "nhwc" if channels_last else "nchw"
    path = cache / f"{stem_of(spec)}.{batch}.{precision}.{order}.{optimizer}.step.json.gz"
    if path.is_file():
        held = json.loads(gzip.decompress(path.read_bytes()))
        return TracedStep([_kernel(row) for row in held["kernels"]], held["saved_bytes"])
    module, inputs = module_of(spec, batch)
    step = traced_step(module, inputs, precision, channels_last, optimizer)
    write_compressed(path, json.dumps(asdict(step)))
    return step


def _kernel(row: dict[str, Any]) -> TracedKernel:
    lists = {name: tuple(row[name]) for name in ("shape", "operands")}
    return TracedKernel(**{**row, **lists})


def graph_of(spec: str, cache: Path, graphs: Path | None = None) -> ModelGraph:
    """Return a model's graph; its raw graph is cached.

    Args:
        spec: see `module_of`.
        cache: folder of the cache.
        graphs: folder that `dataset.raw_graphs` filled, for graphs that the cache lacks.
    """
    path = cache / f"{stem_of(spec)}.graph{RAW_GRAPH_VERSION}.json.gz"
    if path.is_file():
        return build(_read(path))
    made = _made_before(spec, graphs) if graphs else None
    if made:
        with contextlib.suppress(ValueError):  # of another version
            graph = build(_read(made))
            shutil.copyfile(made, path)
            return graph
    from dippm.model.frontends.pytorch import convert_module

    module, inputs = module_of(spec, 1)
    shapes = {name: tuple(t.shape[1:]) for name, t in inputs.items()}
    raw = convert_module(module, InputSpec(shapes))
    write_compressed(path, raw.to_json())
    return build(raw)


def _read(path: Path) -> RawGraph:
    return RawGraph.from_json(gzip.decompress(path.read_bytes()))


def _made_before(spec: str, graphs: Path) -> Path | None:
    if ":" in spec.removeprefix("timm:"):
        return None
    declare_vision_operators()
    import timm

    size = timm.get_pretrained_cfg(spec.removeprefix("timm:")).input_size[-1]
    path = raw_graphs.path_of(f"{spec.removeprefix('timm:')}@{size}", graphs)
    return path if path.is_file() else None


def stem_of(spec: str) -> str:
    return spec.removeprefix("timm:").replace(":", ".")


def write_compressed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(gzip.compress(text.encode(), 3))
    partial.replace(path)
