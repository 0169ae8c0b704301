"""Our latency over that of `torch.utils.benchmark`, on this machine's CPU.

Run: python -m benchmarks.latency_agreement [--models torchvision:resnet18,...] [--rounds 40]

The two take turns on the same module and inputs, in short blocks, so that what else the machine
does hits both: a round is the ratio of two neighbours, and the goal of 3 % is for the median of all
rounds. Ours is the median of timed steps, theirs that of `Timer.blocked_autorange`; both with one
thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import torch
from torch.utils.benchmark import Timer

from dippm.measure.protocol import Settings
from dippm.measure.subject import load_subject
from dippm.measure.timing import HostStopwatch, time_steps
from dippm.model.frontends import InputSpec

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
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, {arguments.rounds} rounds")
    far = 0
    for name in arguments.models.split(","):
        ours, theirs = _medians_ms(name, arguments.input, arguments.rounds)
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        far += abs(median(ratios) - 1) > GOAL
        print(
            f"{name:32} ours / theirs {median(ratios):.3f} (quartiles {low:.3f} to {high:.3f}), "
            f"{median(ours):.1f} ms",
            flush=True,
        )
    return int(far > 0)


def _medians_ms(name: str, sizes: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the median of each block of ours and of theirs."""
    spec, device = InputSpec.parse(sizes), torch.device("cpu")
    subject = load_subject(name, spec, batch=1, device=device)
    module, inputs = subject.module, subject.inputs
    timer = Timer("module(*inputs)", globals={"module": module, "inputs": inputs}, num_threads=1)
    settings = Settings(settle_s=0.0, timed_steps=10)
    ours: list[float] = []
    theirs: list[float] = []

    def time_ours() -> None:
        timings = time_steps(lambda: module(*inputs), HostStopwatch(), settings)
        ours.append(median(timings.wall_ms))

    def time_theirs() -> None:
        theirs.append(1000 * timer.blocked_autorange(min_run_time=0.1).median)

    with torch.inference_mode():
        for number in range(rounds):
            for block in (time_ours, time_theirs) if number % 2 else (time_theirs, time_ours):
                block()
    return ours, theirs


if __name__ == "__main__":
    raise SystemExit(main())
