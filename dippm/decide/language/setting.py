"""`ServingSetting`: how a language model is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from dippm.decide.language.formats import WeightFormat
from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions, Precision, spelt

Software = Literal["graph", "engine", "eager"]
SOFTWARE: tuple[Software, ...] = get_args(Software)
"""Kinds of software that run the model:

    graph    a serving engine (fused kernels, paged cache) that replays each decode step as a CUDA
             graph, so the host launches nothing; prefill is launched by the host
    engine   the same kernels, all launched by the host
    eager    `generate` of transformers: a kernel per operation, launched by the host
"""
CACHE_FORMATS = ("bf16", "fp16", "fp8")
MOST_TOKENS = 100_000_000
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class ServingSetting:
    """How a model is run.

    Attributes:
        conditions: device, batch, precision ("bf16" or "fp16") and host; other fields are unused.
        prompt: tokens per prompt.
        generated: generated tokens per sequence.
        weights: format of the matrices of the layers.
        cache: format of keys and values, one of CACHE_FORMATS.
        gpus: number of GPUs that share the model by tensor parallelism.
        software: one of SOFTWARE.
        link: link between GPUs, "nvlink" or "pcie"; None takes that of the device.
    """

    conditions: Conditions
    prompt: int
    generated: int
    weights: WeightFormat
    cache: str
    gpus: int = 1
    software: Software = "graph"
    link: str | None = None

    @property
    def longest(self) -> int:
        """Return the tokens of a sequence at the end."""
        return self.prompt + self.generated

    @property
    def cache_width(self) -> int:
        """Return the bytes per element of the cache."""
        return 1 if self.cache == "fp8" else 2


def positive_integer(name: str, value: Any, most: int = MOST_TOKENS) -> int:
    """Check an integer of at least 1, and return it.

    Raises:
        ConditionsError: if it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConditionsError(
            f"{name} is {str(value)[:40]!r}", f"Give a whole number from 1 to {most:,}."
        )
    return value


def half_precision(name: Any) -> Precision:
    """Return "bf16" or "fp16" for any of its names.

    Raises:
        ConditionsError: if it names another precision.
    """
    found = spelt("precision", name, ("bf16", "fp16"))
    return "bf16" if found == "bf16" else "fp16"


def software_of(name: Any) -> Software:
    """Return the one of SOFTWARE that a name stands for.

    Raises:
        ConditionsError: if it stands for none of them.
    """
    found = spelt("software", name, SOFTWARE)
    return next(one for one in SOFTWARE if one == found)
