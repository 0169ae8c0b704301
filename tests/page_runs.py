"""Runs for the page: two workloads beside each other, steps with a prediction, hostile names."""

from __future__ import annotations

import math
import uuid
from pathlib import Path

from dippm.measure.readings import Readings
from dippm.measure.sampler_writer import Writer
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import End, Moment, Span, Start, Value
from tests.run_folders import REASON, START_NS, WALL_NS, _Tree

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PREDICTION = {
    "source": "resnet18",
    "conditions": {"device": "CPU EPYC", "batch": 8},
    "latency_ms": 310.0,
    "memory_mb": 900.0,
    "intervals": {
        "latency_ms": {"low": 280.0, "high": 345.0, "coverage": 0.9},
        "memory_mb": {"low": 820.0, "high": 990.0, "coverage": 0.9},
    },
}


def make_training(
    root: Path,
    *,
    name: str,
    workload: str,
    experiment: str = "co-location",
    number: int = 0,
    ticks: int = 300,
    delay_s: float = 0.0,
    ended: bool = True,
    prediction: dict | None = PREDICTION,
    **start,
) -> Path:
    """Make the folder of a run whose steps, memory and loss look like those of a training."""
    begun = Moment(START_NS, WALL_NS + int((number * 60 + delay_s) * 1e9))
    given = {"group": workload, "prediction": prediction, "params": {"lr": "0.1"}, **start}
    folder = RunFolder.create(Start(uuid.uuid4().hex, name, experiment, begun, **given), root)
    for step in range(ticks // 5):
        at = START_NS + step * 500_000_000
        took = 300e6 * (1 + 0.08 * math.sin(step + number) + 0.05 * number)
        kind = "validate" if step % 20 == 19 else "forward"
        folder.span(Span(step + 1, kind, at, int(at + took)))
        folder.value(Value("loss", "metric", 2.5 / (1 + step / 6) + number / 9, at, step=step))
    writer = Writer(folder.path / "samples-1.dippm", [_Tree()], {"pid": 1, "hz": 10})
    for tick in range(ticks):
        memory = 650 + 220 * (1 - math.exp(-tick / 40)) + 25 * number
        memory += 18 * math.sin(tick / 3 + number) + (tick % 13)
        busy = 1.4 + 0.4 * math.sin(tick / 20 + number)
        reading = {"rss_mb": memory, "cpu_s": tick / 10 * busy}
        at = START_NS + tick * 100_000_000
        writer.add(0, Readings(at, reading, {"power_w": REASON}))
    writer.close({"end": "the watched process has ended", "missed": 0, "cpu_s": 0.1})
    if ended:
        end_ns = ticks * 100_000_000
        moment = Moment(START_NS + end_ns, begun.wall_ns + end_ns)
        folder.end(End("finished", moment, exit_code=0))
    folder.close()
    return folder.path


def make_exhibition(root: Path) -> list[Path]:
    """Make the runs of pictures and tests: one alone, two beside each other, three by MPS."""
    return [
        make_training(root, name="resnet18", workload="alone", number=0),
        make_training(root, name="resnet18 a", workload="two at once", number=1),
        make_training(root, name="resnet18 b", workload="two at once", number=2, delay_s=-55.0),
        make_training(
            root,
            name="mps a",
            workload="three by MPS",
            number=3,
            tags={"warning/latency_ms": "latency of the last 55 'forward' is 363.2 ms"},
        ),
        make_training(root, name="mps b", workload="three by MPS", number=4, delay_s=-58.0),
        make_training(root, name="mps c", workload="three by MPS", number=5, delay_s=-116.0),
        make_training(root, name="baseline", workload="", experiment="earlier", number=6),
    ]
