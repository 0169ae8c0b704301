"""Our latency over that of `torch.utils.benchmark`, on this machine's CPU.

Run: python -m benchmarks.latency_agreement [--models torchvision:resnet18,...] [--rounds 9]

The two take turns on the same module and inputs, so that what else the machine does hits both: a
round is their ratio. Ours is the median of the timed steps of a `Bench`, theirs the median of
`Timer.blocked_autorange`; both with one thread. The goal is within 3 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import torch
from torch.utils.benchmark import Timer

from dippm.frontends import InputSpec
from dippm.measure.protocol import Settings
from dippm.measure.subject import load_subject
from dippm.measure.timing import HostStopwatch, time_steps

MODELS = (
    "torchvision:squeezenet1_1",
    "torchvision:resnet18",
    "torchvision:mobilenet_v3_small",
    "torchvision:shufflenet_v2_x0_5",
)
GOAL = 0.03


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each model; 1 if one is further away than the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--input", default="3,64,64")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, {arguments.rounds} rounds")
    far = 0
    for name in arguments.models.split(","):
        ratios = sorted(_ratios(name, arguments.input, arguments.rounds))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        middle = median(ratios)
        far += abs(middle - 1) > GOAL
        print(f"{name:32} ours / theirs {middle:.3f} (quartiles {low:.3f} to {high:.3f})")
    return int(far > 0)


def _ratios(name: str, sizes: str, rounds: int) -> list[float]:
    spec, device = InputSpec.parse(sizes), torch.device("cpu")
    subject = load_subject(name, spec, batch=1, device=device)
    module, inputs = subject.module, subject.inputs
    timer = Timer("module(*inputs)", globals={"module": module, "inputs": inputs}, num_threads=1)
    settings, ratios = Settings(settle_s=0.2), []
    with torch.inference_mode():
        for number in range(rounds):
            theirs = [timer.blocked_autorange(min_run_time=0.2).median] if number % 2 else []
            timings = time_steps(lambda: module(*inputs), HostStopwatch(), settings)
            theirs = theirs or [timer.blocked_autorange(min_run_time=0.2).median]
            ratios.append(median(timings.wall_ms) / (1000 * theirs[0]))
    return ratios


if __name__ == "__main__":
    raise SystemExit(main())
