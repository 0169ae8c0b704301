"""What a profiled step costs beside the step itself, and whether it slows what is timed after it.

Run: python -m benchmarks.profiled_capture [--model torchvision:resnet50] [--device cpu] [--runs 5]

"trace" is what a campaign does: the trace of `torch.autograd.profiler` as Kineto wrote it, read by
DIPPM. "tables" is `torch.profiler.profile` and its list of events. The first capture of a process
is shown apart: on a GPU it loads CUPTI. The step is timed before the first capture and after the
last. On a CPU all is processor time, for other processes of the machine take none of it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from dippm.measure.kernels.profile import WARM_STEPS, profile_step
from dippm.measure.subject import load_subject
from dippm.measure.timing import stopwatch
from dippm.model.frontends import InputSpec


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="torchvision:resnet50")
    parser.add_argument("--input", default="3,32,32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    device, spec = torch.device(arguments.device), InputSpec.parse(arguments.input)
    subject = load_subject(arguments.model, spec, batch=1, device=device)
    watch = stopwatch(device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time

    def step() -> Any:
        return subject.module(*subject.inputs)

    def trace() -> int:
        return len(profile_step(step, device, module=subject.module))

    def tables() -> int:
        for _ in range(WARM_STEPS):
            step()
        with torch.profiler.profile() as profiler:
            step()
            watch.finish()
        return len(profiler.events() or ())

    def step_ms() -> float:
        return median(1000 * _taken_s(clock, step, watch.finish) for _ in range(20))

    def cost_ms(capture: Callable[[], int]) -> float:
        """Return the time of a capture without that of its steps, as they were right before."""
        steps_ms = (WARM_STEPS + 1) * step_ms()
        return 1000 * _taken_s(clock, capture, watch.finish) - steps_ms

    with torch.inference_mode():
        step()
        before_ms = step_ms()
        print(f"{arguments.model}, torch {torch.__version__}, step {before_ms:.2f} ms")
        for name, capture in (("trace", trace), ("tables", tables)):
            costs = [cost_ms(capture) for _ in range(arguments.runs + 1)]
            count, first = capture(), costs.pop(0)
            print(
                f"{name:7} {count} rows, first {first:.0f} ms, then {median(costs):.1f} ms "
                f"({min(costs):.1f} to {max(costs):.1f}) beside its {WARM_STEPS + 1} steps"
            )
        print(f"step after all captures {step_ms() / before_ms:.3f} of what it was before")
    return 0


def _taken_s(
    clock: Callable[[], float], work: Callable[[], Any], finish: Callable[[], None]
) -> float:
    finish()
    begin = clock()
    work()
    finish()
    return clock() - begin


if __name__ == "__main__":
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    raise SystemExit(main())
