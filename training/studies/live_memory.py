"""Our liveness peak compared with the memory that PyTorch keeps alive, by model.

    python -m training.studies.live_memory --graphs GRAPHS --out build/live_memory --sample 100

PyTorch's side: models run on fake tensors without gradients, in eager mode, and a dispatch mode
counts the storages that are alive, each rounded to 512 bytes as the caching allocator does. Weights
are not counted. Under autocast the fakes are CUDA tensors (its lists differ from the CPU's).

The graphs of the repository were exported before converters recorded which tensors a module's code
holds; `--exported FOLDER` exports them again, in a few seconds each, and stores them there.

Peaks of a model are written at once, so that a second run computes only those that are missing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shlex
import shutil
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dataset.join import raw_graphs
from dippm.errors import DippmError
from dippm.estimate.conditions import Precision, precision_of
from dippm.estimate.models.memory import MemoryFootprint
from dippm.model.frontends import named
from dippm.model.frontends.torch.prepare import eager_masks
from dippm.model.graph import build
from dippm.model.graph.model_graph import ModelGraph
from training.studies.cuda_fakes import autocast, cuda_device

BLOCK = 512
"""Granularity of the caching allocator in bytes."""
WITHIN = 0.05
WORST = 10
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "amp")
LAYERS = 4
"""Number of layers of the language models; a peak does not depend on it."""
LANGUAGE_MODELS = tuple(
    f"transformers:{name}@256"
    for name in (
        "albert bart bert big_bird bloom camembert codegen convbert deberta deberta-v2 distilbert "
        "electra ernie esm falcon fnet gemma gpt2 gpt_bigcode gpt_neo gpt_neox gptj layoutlm llama "
        "m2m_100 mbart mistral mobilebert mpnet mpt nystromformer olmo opt pegasus persimmon phi "
        "qwen2 rembert roberta roformer squeezebert stablelm starcoder2 t5 xglm xlm xlnet"
    ).split()
)

RECORDED = (
    "timm:darknet17@256", "timm:fasternet_t2@224", "timm:flexivit_base@240", "timm:gernet_s@224",
    "timm:lcnet_100@224", "timm:regnetx_002@224", "timm:resnetv2_34@288",
    "timm:test_efficientnet@160", "timm:tinynet_e@106", "torchvision:mnasnet1_3@224",
    "torchvision:squeezenet1_1@224", "torchvision:vgg13_bn@224", "transformers:albert@256",
    "transformers:bert@256", "transformers:distilbert@256", "transformers:electra@256",
    "transformers:fnet@256", "transformers:gpt2@256", "transformers:roberta@256",
)  # fmt: skip
"""Small models for `tests/recordings/live_memory`."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak bytes of live activations when PyTorch runs a model, or why they are not known."""

    spec: str
    batch: int
    precision: Precision
    torch_bytes: int = 0
    error: str = ""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that are alive.

    Attributes:
        alive: current number of bytes.
        most: peak number of bytes.
    """

    def __init__(self, weights: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self.alive = self.most = 0
        self._held = dict.fromkeys((t.untyped_storage()._cdata for t in weights), 0)

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor once, until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._held:
            self._held[key] = -(-storage.nbytes() // BLOCK) * BLOCK
            self.alive += self._held[key]
            self.most = max(self.most, self.alive)
            weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.alive -= self._held.pop(key, 0)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.add(value)
        return result


class _FusedAttention(TorchFunctionMode):
    """Gives attention on fake CUDA tensors the result of a fused kernel, which CPU builds lack."""

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        self.half = half

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") != "scaled_dot_product_attention":
            return function(*args, **kwargs)
        query, _, value = (tensor.to(self.half) for tensor in args[:3])
        batch, heads, rows = query.shape[:3]
        return query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)


def torch_peak(module: nn.Module, inputs: dict[str, torch.Tensor], precision: Precision) -> int:
    """Return the peak bytes of live activations in an eager forward pass.

    Args:
        module: module on the meta device; its tensors are replaced by fakes.
        inputs: tensors by name, "" for the first positional one; only shapes and dtypes are read.
        precision: "fp32", "fp16" (weights too) or an autocast.
    """
    device = torch.device("cuda", 0) if precision.startswith("amp") else torch.device("cpu")
    floats = torch.float16 if precision == "fp16" else torch.float32
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(cuda_device())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(eager_masks())
        _fake_weights(module, device, floats)
        given = {name: _fake(t, device, floats) for name, t in inputs.items()}
        live = LiveBytes(iter([*module.parameters(), *module.buffers()]))
        for tensor in given.values():
            live.add(tensor)
        if precision.startswith("amp"):
            half = torch.bfloat16 if precision == "amp-bf16" else torch.float16
            stack.enter_context(autocast(half))
            stack.enter_context(_FusedAttention(half))
        stack.enter_context(torch.no_grad())
        stack.enter_context(live)
        positional = [given.pop("")] if "" in given else []
        module(*positional, **given)
        return live.most


def _fake(tensor: torch.Tensor, device: torch.device, floats: torch.dtype) -> torch.Tensor:
    dtype = floats if tensor.is_floating_point() else tensor.dtype
    return torch.empty(tensor.shape, dtype=dtype, device=device)


def _fake_weights(module: nn.Module, device: torch.device, floats: torch.dtype) -> None:
    """Replace parameters and buffers by fakes; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, value in held.items():
                if value is None:
                    continue
                if id(value) not in made:
                    fake = _fake(value, device, floats)
                    is_weight = isinstance(value, nn.Parameter)
                    made[id(value)] = (
                        nn.Parameter(fake, fake.is_floating_point()) if is_weight else fake
                    )
                held[name] = made[id(value)]  # type: ignore[assignment]


def module_of(spec: str, batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model on the meta device, and inputs for it."""
    zoo, _, rest = spec.partition(":")
    name, _, size = rest.partition("@")
    if zoo in ("transformers", "hf"):
        from transformers import AutoConfig, AutoModel

        layers = {"num_hidden_layers": LAYERS} if zoo == "transformers" else {}
        config = AutoConfig.for_model(name.removesuffix("-base"), **layers)
        config.use_cache = False
        with torch.device("meta"):
            module = AutoModel.from_config(config).eval()
        ids = torch.zeros(batch, int(size), dtype=torch.int64, device="meta")
        inputs = {"input_ids": ids}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids
        return module, inputs
    module = named.build(f"{zoo}:{name}", "meta").module
    preset = getattr(module, "pretrained_cfg", None) or {}
    channels = preset.get("input_size", (3,))[0]
    return module, {"": torch.empty(batch, channels, int(size), int(size), device="meta")}


def graph_of(spec: str, graphs: Path) -> ModelGraph:
    """Return the graph of a model, converting it if the folder has none."""
    if not raw_graphs.path_of(spec, graphs).is_file():
        from dippm.model.frontends.frontend import InputSpec
        from dippm.model.frontends.pytorch import convert_module

        module, inputs = module_of(spec, 1)
        shapes = {name: tuple(t.shape[1:]) for name, t in inputs.items()}
        graphs.mkdir(parents=True, exist_ok=True)
        text = convert_module(module, InputSpec(shapes)).to_json()
        raw_graphs.path_of(spec, graphs).write_bytes(gzip.compress(text.encode(), 3))
    return build(raw_graphs.read(spec, graphs))


def specs_in(graphs: Path) -> list[str]:
    """Return the vision models whose raw graphs lie in a folder."""
    stems = sorted(path.name.removesuffix(".json.gz") for path in graphs.glob("*@*.json.gz"))
    zoos = ("torchvision", "hf", "own", "transformers")
    return [
        stem.replace(".", ":", 1) if stem.partition(".")[0] in zoos else f"timm:{stem}"
        for stem in stems
        if not stem.startswith("own.")
    ]


def measure(spec: str, batch: int, precision: Precision) -> Peak:
    """Return PyTorch's peak, or the reason why the model cannot be run."""
    try:
        module, inputs = module_of(spec, batch)
        return Peak(spec, batch, precision, torch_peak(module, inputs, precision))
    except Exception as error:  # one model of a zoo must not stop the others
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Peak(spec, batch, precision, error=reason)


def ratios(peaks: Iterable[Peak], graphs: Path) -> dict[Peak, float]:
    """Return the ratio to PyTorch's for each known peak of a model with a graph."""
    found = {}
    for peak in peaks:
        if peak.error:
            continue
        try:
            graph = graph_of(peak.spec, graphs)
        except (DippmError, FileNotFoundError):
            continue
        ours = MemoryFootprint.of(graph, peak.precision).peak(peak.batch)
        found[peak] = ours.total_bytes / peak.torch_bytes
    return found


def tables(found: Mapping[Peak, float]) -> tuple[Table, Table]:
    """Return the summary by precision, and the worst models."""
    summary = Table("precision", "n", "median", "p10", "p90", "within 5 %")
    for precision in PRECISIONS:
        ratio = np.array([r for peak, r in found.items() if peak.precision == precision])
        if len(ratio):
            cells = (np.median(ratio), np.quantile(ratio, 0.1), np.quantile(ratio, 0.9))
            close = f"{np.mean(np.abs(ratio - 1) <= WITHIN):.0%}"
            summary.add_row(precision, str(len(ratio)), *(f"{c:.3f}" for c in cells), close)
    worst = Table("model", "batch", "precision", "ours / torch")
    for peak in sorted(found, key=lambda p: -abs(np.log(found[p])))[:WORST]:
        worst.add_row(peak.spec, str(peak.batch), peak.precision, f"{found[peak]:.3f}")
    return summary, worst


def write_recording(peaks: Iterable[Peak], graphs: Path, folder: Path) -> None:
    """Write the peaks and raw graphs of RECORDED, which the quick test reads."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = [peak for peak in peaks if peak.spec in RECORDED and not peak.error]
    for spec in {peak.spec for peak in kept}:
        target = folder / f"{spec.replace(':', '.')}.json.gz"
        shutil.copyfile(raw_graphs.path_of(spec, graphs), target)
    rows = [{k: v for k, v in asdict(peak).items() if k != "error"} for peak in kept]
    document = {"command": shlex.join(sys.orig_argv), "torch": torch.__version__, "peaks": rows}
    (folder / "peaks.json").write_text(json.dumps(document, indent=1) + "\n")


def main(
    graphs: Annotated[Path, typer.Option(help="folder of raw graphs; what lacks is added")],
    out: Annotated[Path, typer.Option(help="folder of the peaks")],
    sample: Annotated[int, typer.Option(help="vision models, drawn; 0 takes all")] = 100,
    batch: Annotated[list[int] | None, typer.Option(help="samples, may be repeated")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="may be repeated")] = None,
    exported: Annotated[
        Path | None, typer.Option(help="folder for graphs made anew, which tell what code holds")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="where the tests' recording goes")] = None,
) -> None:
    """Print the ratios to PyTorch's peaks by precision, and the worst models."""
    vision = [spec for spec in specs_in(graphs) if not spec.startswith("transformers")]
    random.Random(0).shuffle(vision)
    specs = [*(vision[:sample] if sample else vision), *LANGUAGE_MODELS]
    chosen = [precision_of(name) for name in precision or ["fp32"]]
    out.mkdir(parents=True, exist_ok=True)
    file = out / "peaks.jsonl"
    known = [Peak(**json.loads(line)) for line in file.open()] if file.is_file() else []
    done = {(peak.spec, peak.batch, peak.precision) for peak in known}
    points = [(s, b, p) for s in specs for b in batch or [8] for p in chosen]
    for point in track([p for p in points if p not in done], "PyTorch's peaks"):
        known.append(measure(*point))
        with file.open("a") as lines:
            lines.write(json.dumps(asdict(known[-1])) + "\n")
    if record is not None:
        write_recording(known, exported or graphs, record)
    console = Console()
    for table in tables(ratios(known, exported or graphs)):
        console.print(table)
    console.print(f"torch {torch.__version__}; {sum(bool(p.error) for p in known)} could not run")


if __name__ == "__main__":
    typer.run(main)
