"""The README's table of accuracy: a row for each question that a user has, from the shipped cards.

Where several tables or GPUs answer a question, their errors stand as a range; the cards have each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dippm.estimate.models.predictor import phases_of
from dippm.estimate.pretrained.store import available, read_metrics

Line = Mapping[str, Any]
"""A line of a card's metrics."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a user asks, and which lines of the cards answer it.

    Attributes:
        text: the question.
        target: column of the prediction.
        split: how the name of the split begins.
        data: words that the name of the data holds.
        phase: of the checkpoint.
        without: words that it does not hold.
    """

    text: str
    target: str
    split: str
    data: tuple[str, ...]
    phase: str = "inference"
    without: tuple[str, ...] = ()

    def is_answered_by(self, line: Line) -> bool:
        """Return whether a line is about this."""
        data = str(line.get("data"))
        return (
            line.get("target") == self.target
            and line.get("phase", "inference") == self.phase
            and str(line.get("split")).startswith(self.split)
            and all(word in data for word in self.data)
            and not any(word in data for word in self.without)
        )


MODELS, GPTS = ("whole models",), ("hwgpt",)
QUESTIONS = (
    Question("latency in a laboratory never seen", "latency_ms", "L", MODELS, without=GPTS),
    Question("the same, GPTs that nobody else measured", "latency_ms", "L", GPTS),
    Question("latency of a kind of model never seen", "latency_ms", "S2", ("timm tables", "eager")),
    Question("the same, compiled", "latency_ms", "S2", ("timm tables", "compiled")),
    Question("the same, torchvision", "latency_ms", "S2", ("pytorch_gpu",)),
    Question("the same, CNNs over batch", "latency_ms", "S2", ("parvagpu", "7g.80gb")),
    Question("the same, on MIG slices", "latency_ms", "S2", (", MIG slices",)),
    Question("the same, GPTs", "latency_ms", "S2", GPTS),
    Question("the same, U-Nets of images", "latency_ms", "S2", ("sd_webui",)),
    Question("latency on a GPU never measured", "latency_ms", "S3a", ("timm tables", "eager")),
    Question("the same, compiled", "latency_ms", "S3a", ("timm tables", "compiled")),
    Question("the same, torchvision", "latency_ms", "S3a", ("pytorch_gpu",)),
    Question("the same, GPTs", "latency_ms", "S3a", GPTS),
    Question("training step of a kind of model never seen", "latency_ms", "S2", ("timm",), "train"),
    Question("the same, on a GPU never measured so", "latency_ms", "S3a", ("timm",), "train"),
    Question("memory of a training step", "memory_mb", "model held out", (), "train"),
    Question("memory in a laboratory never seen", "memory_mb", "laboratory", ()),
    Question("memory of a model never seen", "memory_mb", "model held out", ("all",)),
    Question("power in a laboratory never seen", "power_w", "source", ()),
    Question("energy in a laboratory never seen", "energy_j", "source", GPTS),
    Question("latency on this project's CPU, new kind", "latency_ms", "S2-5", ("cpu",)),
    Question("memory on this project's CPU, new kind", "memory_mb", "S2-5", ("cpu",)),
)


def shipped() -> Iterator[Line]:
    """Yield the lines of all shipped checkpoints."""
    for info in available():
        for line in read_metrics(info.path).get("summary", []):
            yield {**line, "checkpoint": info.name, "phase": phases_of(info.config)[0]}


def rows(
    lines: Iterable[Line], questions: Iterable[Question] = QUESTIONS
) -> Iterator[dict[str, str]]:
    """Yield a row of the table for each question that lines of the cards answer.

    Args:
        lines: as of `shipped`, each with the name of its "checkpoint" and its "phase".
        questions: that are asked.
    """
    known = list(lines)
    for question in questions:
        found = [line for line in known if question.is_answered_by(line)]
        if found:
            yield {
                "asked": question.text,
                "GPU": _gpus(found),
                "median APE %": _range(line["median_ape"] for line in found),
                "MAPE %": _range(line["mape"] for line in found),
                "inside 90 % interval, %": _range(
                    line["coverage"] for line in found if line.get("coverage") is not None
                ),
                "n": f"{sum(line['n'] for line in found):,}",
                "checkpoint": ", ".join(dict.fromkeys(str(line["checkpoint"]) for line in found)),
            }


def _gpus(lines: Iterable[Line]) -> str:
    names = list(dict.fromkeys(str(line["gpu"]) for line in lines))
    return ", ".join(names) if len(names) < 4 else f"{len(names)} GPUs"


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    if not found:
        return "–"
    low, high = (f"{value:.1f}" for value in (found[0], found[-1]))
    return low if low == high else f"{low} – {high}"
