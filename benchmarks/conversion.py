"""How long a conversion takes in a warm worker, and how much memory it needs.

    python benchmarks/conversion.py [--repeat 5] [--only NAME] [--large] [--json]

`--large` takes the large models instead, once each; the U-Net needs diffusers, and the million
operators take minutes. Imports and process starts are excluded: every worker converts a small model
first. Nothing comes from the cache. Model files are made in a temporary folder before the clock
starts.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dippm.errors import DippmError
from dippm.model import frontends
from dippm.model.frontends.worker import POOL

LLAMA_7B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}
SAVED_MODEL = """
import sys, keras
keras.applications.VGG16(weights=None).export(sys.argv[1], verbose=False)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured conversion.

    Attributes:
        name: what was converted.
        p50_s: median wall time, request to graph in hand.
        p90_s: the slow end.
        cpu_s: median processor time of worker and caller together; far below `p50_s` means that
            the machine was busy with something else.
        target_s: what the project asks for.
        peak_memory_mb: resident peak of the worker, its libraries included.
        caller_memory_mb: resident peak of this process, which also makes the models.
        target_memory_mb: what the project asks for; None if nothing.
        operators: of the converted graph, before DIPPM merges any.
        cpu_s_per_1000: processor time for a thousand of them; NaN for smaller models.
        failure: why there are no numbers; empty if there are.
    """

    name: str
    p50_s: float
    p90_s: float
    cpu_s: float
    target_s: float
    peak_memory_mb: float
    caller_memory_mb: float
    target_memory_mb: float | None
    operators: int
    cpu_s_per_1000: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A conversion to measure; `source` and `warm_up` make their models in a folder.

    `warm_up_inputs` is None if they are those of the model.
    """

    name: str
    source: Callable[[Path], Any]
    warm_up: Callable[[Path], Any]
    inputs: str | None
    target_s: float
    target_memory_mb: float | None = None
    warm_up_inputs: str | None = None
    memory_limit_mb: int = 4096


def vision() -> Any:
    """Return torchvision's models."""
    from dippm.model.vision_operators import declare_vision_operators

    declare_vision_operators()
    import torchvision

    return torchvision.models


def module(folder: Path) -> Any:
    """Return a ResNet-50."""
    return vision().resnet50().eval()


def small_module(folder: Path) -> Any:
    """Return the smallest model that goes the same way."""
    import torch

    return torch.nn.Conv2d(3, 4, 3)


def onnx_file(folder: Path, model: Any = None) -> Path:
    """Export a ResNet-50, or the given model, with a dynamic batch."""
    import torch

    subject = model or module(folder)
    path = folder / f"{type(subject).__name__}.onnx"
    torch.onnx.export(
        subject,
        (torch.zeros(2, 3, 224, 224),),
        path,
        dynamo=False,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
        opset_version=17,
    )
    return path


def small_onnx_file(folder: Path) -> Path:
    """Export the small model."""
    return onnx_file(folder, small_module(folder))


def saved_model(folder: Path) -> Path:
    """Write a VGG16 in a process of its own, so that TensorFlow is not loaded here."""
    path = folder / "vgg16"
    subprocess.run([sys.executable, "-c", SAVED_MODEL, path], check=True, capture_output=True)
    return path


def llama(folder: Path) -> str:
    """Write the configuration of a decoder of 6.7 billion parameters."""
    (folder / "config.json").write_text(json.dumps(LLAMA_7B))
    return f"hf-config:{folder}"


def small_llama(folder: Path) -> str:
    """Write the same with two narrow layers."""
    small = {**LLAMA_7B, "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    (folder / "small").mkdir(exist_ok=True)
    (folder / "small" / "config.json").write_text(json.dumps(small))
    return f"hf-config:{folder / 'small'}"


def recurrent(folder: Path) -> Any:
    """Return a GRU of six layers; its input has 512 steps."""
    import torch

    return torch.nn.GRU(256, 256, 6, batch_first=True).eval()


def recurrent_onnx_file(folder: Path) -> Path:
    """Export the GRU of six layers."""
    import torch

    path = folder / "gru.onnx"
    torch.onnx.export(
        recurrent(folder),
        (torch.zeros(2, 512, 256),),
        path,
        dynamo=False,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
        opset_version=17,
    )
    return path


def unet(folder: Path) -> Any:
    """Return the U-Net of Stable Diffusion XL at its published size, without data."""
    import torch

    vision()
    from diffusers import UNet2DConditionModel

    with torch.device("meta"):
        return UNet2DConditionModel(
            sample_size=128,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=(320, 640, 1280),
            cross_attention_dim=2048,
            transformer_layers_per_block=(1, 2, 10),
            attention_head_dim=(5, 10, 20),
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
            use_linear_projection=True,
        ).eval()


def small_unet(folder: Path) -> Any:
    """Return a small one, so that the worker has imported diffusers."""
    vision()
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        block_out_channels=(32,),
        layers_per_block=1,
        cross_attention_dim=32,
    ).eval()


IMAGE = "3,224,224"
SMALL_UNET_INPUTS = "sample=4,8,8;timestep=();encoder_hidden_states=7,32"
UNET_INPUTS = (
    "sample=4,128,128;timestep=();encoder_hidden_states=77,2048;"
    "added_cond_kwargs.text_embeds=1280;added_cond_kwargs.time_ids=6"
)


def chain(operators: int) -> Callable[[Path], Path]:
    """Return what writes an ONNX file of so many operators, one after the other."""

    def write(folder: Path) -> Path:
        import onnx
        from onnx import TensorProto, helper

        kinds = ("Relu", "Sigmoid")
        nodes = [helper.make_node(kinds[i % 2], [f"t{i}"], [f"t{i + 1}"]) for i in range(operators)]
        x = helper.make_tensor_value_info("t0", TensorProto.FLOAT, ["N", 16])
        y = helper.make_tensor_value_info(f"t{operators}", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "chain", [x], [y])
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets), folder / f"{operators}.onnx")
        return folder / f"{operators}.onnx"

    return write


CASES = (
    Case("ResNet-50 module", module, small_module, "3,224,224", 1.5),
    Case("ResNet-50 ONNX", onnx_file, small_onnx_file, "3,224,224", 0.6),
    Case("VGG16 SavedModel", saved_model, saved_model, None, 3.0, 2048),
    Case("LLaMA-7B-sized", llama, small_llama, "128", 10.0, 2048),
)
LARGE = (
    Case("GRU 512 x 6", recurrent, small_module, "512,256", 1.0, None, IMAGE),
    Case("GRU 512 x 6 ONNX", recurrent_onnx_file, small_onnx_file, None, 1.0),
    Case("SDXL U-Net", unet, small_unet, UNET_INPUTS, 3.0, None, SMALL_UNET_INPUTS),
    Case("200,000 operators", chain(200_000), chain(2), None, 200.0),
    Case("1,000,000 ops", chain(1_000_000), chain(2), None, 1000.0, memory_limit_mb=16384),
)


def measure(case: Case, repeat: int) -> Row:
    """Convert `repeat` times in one warm worker."""
    with tempfile.TemporaryDirectory() as folder, peak_of_workers() as peaks:
        try:
            source = case.source(Path(folder))
            frontends.load(
                case.warm_up(Path(folder)),
                case.warm_up_inputs or case.inputs,
                cache=False,
                memory_limit_mb=case.memory_limit_mb,
            )
            times, cpu_times, operators = [], [], 0
            for _ in range(repeat):
                start, cpu_start = time.perf_counter(), time.process_time()
                graph = frontends.load(
                    source, case.inputs, cache=False, memory_limit_mb=case.memory_limit_mb
                )
                times.append(time.perf_counter() - start)
                cpu_times.append(time.process_time() - cpu_start + POOL.cpu_s)
                operators = len(graph.operators)
        except (DippmError, ImportError, subprocess.CalledProcessError) as error:
            nan = float("nan")
            words = str(error).splitlines()[0]
            return Row(
                case.name,
                nan,
                nan,
                nan,
                case.target_s,
                nan,
                nan,
                case.target_memory_mb,
                0,
                nan,
                words,
            )
    return Row(
        case.name,
        round(statistics.median(times), 3),
        round(sorted(times)[math.ceil(0.9 * len(times)) - 1], 3),
        round(statistics.median(cpu_times), 3),
        case.target_s,
        round(max(peaks)),
        round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        case.target_memory_mb,
        operators,
        per_1000(statistics.median(cpu_times), operators),
    )


def per_1000(cpu_s: float, operators: int) -> float:
    """Return what a thousand operators take; a small model says little about it."""
    return round(1000 * cpu_s / operators, 3) if operators >= 1000 else math.nan


@contextmanager
def peak_of_workers() -> Iterator[list[float]]:
    """Collect the resident peaks of the workers in use, then end them."""
    peaks: list[float] = []
    yield peaks
    peaks.extend(POOL.peaks_mb())
    POOL.close()


def main() -> None:
    """Print a table, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, help="5; with --large 1")
    parser.add_argument("--large", action="store_true", help="the large models instead")
    parser.add_argument("--only", help="part of a case's name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = LARGE if options.large else CASES
    wanted = [c for c in cases if (options.only or "").casefold() in c.name.casefold()]
    repeat = options.repeat or (1 if options.large else 5)
    rows = [measure(case, repeat) for case in wanted]
    if options.json:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        }
        print(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    heads = ("p50 s", "p90 s", "cpu s", "target", "peak MB", "target", "cpu/1000")
    print(" " * 18 + "".join(f"{head:>9}" for head in heads) + "  operators")
    for row in rows:
        limit = f"{row.target_memory_mb:.0f}" if row.target_memory_mb else "–"
        print(
            f"{row.name:18}{row.p50_s:9.2f}{row.p90_s:9.2f}{row.cpu_s:9.2f}{row.target_s:9.1f}"
            f"{row.peak_memory_mb:9.0f}{limit:>9}"
            f"{row.cpu_s_per_1000:9.2f}{row.operators:11}  {row.failure}"
        )


if __name__ == "__main__":
    main()
