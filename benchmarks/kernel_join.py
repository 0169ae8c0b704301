"""Which share of a model's measured operators finds its place in our graph, on the CPU.

Run: python -m benchmarks.kernel_join [--models torchvision:resnet18,...] [--train]

Each model is converted and one step of it profiled. "call" is the time whose operator was joined
with its own call of the graph, "module" with its module and neighbour only; "rows" counts instead
of adding times, over operators that work: views and what does nothing at inference are left out.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median

import torch

from dippm.errors import DippmError
from dippm.measure.kernels import TracedKernel
from dippm.measure.kernels.join import KernelOwner, join_kernels, kind_of
from dippm.measure.kernels.profile import profile_step
from dippm.measure.protocol import Regime
from dippm.measure.regimes import prepare_step
from dippm.model.frontends import InputSpec, named
from dippm.model.frontends.pytorch import convert_module
from dippm.model.graph import ModelGraph, build

CPU = torch.device("cpu")
TORCHVISION = (
    "alexnet vgg11 resnet18 resnext50_32x4d densenet121 googlenet squeezenet1_1 mobilenet_v2 "
    "mobilenet_v3_small mnasnet0_5 shufflenet_v2_x0_5 regnet_y_400mf efficientnet_b0 convnext_tiny "
    "vit_b_16 swin_t swin_v2_t maxvit_t"
)
TIMM = "resmlp_12_224 poolformer_s12 mixer_s16_224 ghostnet_100 deit_tiny_patch16_224"
MODELS = (*(f"torchvision:{n}" for n in TORCHVISION.split()), *(f"timm:{n}" for n in TIMM.split()))
IDLE = frozenset({"view", "identity", ""})
IMAGE = (3, 224, 224)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each model, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--train", action="store_true", help="a training step instead")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    phase = "train" if arguments.train else "inference"
    print(f"torch {torch.__version__}, {phase}, batch 1, share of time and of rows")
    print(f"{'model':34}{'kernels':>8}{'call':>8}{'module':>8}{'none':>8}{'rows':>8}{'join ms':>9}")
    shares = []
    for name in arguments.models.split(","):
        try:
            shares.append(_line(name, Regime(phase=phase)))
        except (DippmError, RuntimeError) as error:
            print(f"{name:34}{str(error).splitlines()[0][:80]}", flush=True)
    call, rows = (median(column) for column in zip(*shares, strict=True))
    print(f"{len(shares)} models, median: {call:.1%} of the time, {rows:.1%} of the rows")
    return 0


def _line(name: str, regime: Regime) -> tuple[float, float]:
    built = named.build(name, "cpu")
    module, inputs = built.module.eval(), (torch.randn(1, *IMAGE),)
    graph = _graph(module)
    with prepare_step(module, inputs, regime, device=CPU) as step:
        kernels = profile_step(step, CPU, module=module)
    kernels = tuple(k for k in kernels if k.part != "optimizer")
    begin = time.perf_counter()
    places = join_kernels(kernels, graph)
    join_ms = 1000 * (time.perf_counter() - begin)
    times: Counter[str | None] = Counter()
    for kernel, place in zip(kernels, places, strict=True):
        times[place.how] += kernel.ns
    total = sum(times.values())
    call, by_module, none = (times[how] / total for how in ("call", "module", None))
    rows = _rows(kernels, places)
    cells = "".join(f"{value:8.1%}" for value in (call, by_module, none, rows))
    print(f"{name:34}{len(kernels):8}{cells}{join_ms:9.0f}", flush=True)
    return call, rows


def _rows(kernels: Sequence[TracedKernel], places: Sequence[KernelOwner]) -> float:
    """Return the share of rows of working operators that were joined with their call."""
    works = [p.how == "call" for k, p in zip(kernels, places, strict=True) if _works(k)]
    return sum(works) / len(works)


def _works(kernel: TracedKernel) -> bool:
    return bool(kernel.operators) and kind_of(kernel.operators[0]) not in IDLE


def _graph(module: torch.nn.Module) -> ModelGraph:
    return build(convert_module(module, InputSpec.parse(IMAGE)))


if __name__ == "__main__":
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    raise SystemExit(main())
