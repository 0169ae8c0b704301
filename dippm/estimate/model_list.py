"""Models of a comparison (`Candidate`), read from lists of models, and lists of batch sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dippm.base.written import csv_rows, whole_number
from dippm.errors import ConditionsError, DippmError, shortened
from dippm.estimate.prediction import Prediction
from dippm.model.convert import source_name

COLUMNS = ("model", "input", "batch", "framework")
ONE_MODEL = (str, bytes, os.PathLike, Mapping, Prediction)
"""Iterable types that are a single model rather than a list of models."""
EXAMPLE = 'model,input,batch\nresnet50.onnx,"3,224,224","1,8,32"'


class ModelListError(DippmError, ValueError):
    """A list of models cannot be read."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model of a comparison, with the options in which it differs from the others.

    Attributes:
        model: path, name or object, as `dippm.predict` takes it.
        input: sizes without the batch; None for those of the comparison.
        batches: batch sizes; None for those of the comparison.
        framework: name of the framework, see `dippm.predict`.
    """

    model: Any
    input: Any = None
    batches: tuple[int, ...] | None = None
    framework: str | None = None


def cases_of(models: Any) -> list[Candidate]:
    """Return each of several models as a `Candidate`.

    Raises:
        ConditionsError: if a single model is given, which may be iterable (a name, a sequence of
            layers), or an object that is not a list of models.
    """
    is_one = isinstance(models, ONE_MODEL) or callable(models)
    if is_one or not isinstance(models, Iterable):
        raise ConditionsError(
            f"{shortened(source_name(models))} is not a list of models",
            "Put it into a list, also a single model: [model].",
        )
    return [case if isinstance(case, Candidate) else Candidate(case) for case in models]


def candidates_of(text: str) -> tuple[Candidate, ...]:
    """Return the models that a text lists.

    Either one model per line, or a table with commas or tabs whose first line names its columns:
    "model", and any of "input", "batch" (see `batches_of`) and "framework". Empty lines and
    lines that begin with "#" do not count; paths are relative to the current folder.

    Raises:
        ModelListError: if the text lists nothing, or a line does not fit the columns.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise ModelListError("the list of models is empty", f"For example:\n{EXAMPLE}")
    delimiter = "\t" if "\t" in lines[0] else ","
    head = [name.strip().casefold() for name in lines[0].split(delimiter)]
    if "model" not in head:
        return tuple(Candidate(line.strip()) for line in lines)
    unknown = [name for name in head if name not in COLUMNS]
    if unknown or len(set(head)) < len(head):
        raise ModelListError(
            f"the list of models has the columns {shortened(', '.join(head))}",
            f"Each of these at most once: {', '.join(COLUMNS)}.",
        )
    try:
        rows = csv_rows("\n".join(lines[1:]), delimiter)
    except ValueError as error:
        raise ModelListError(f"the list of models: {error}", f"For example:\n{EXAMPLE}") from error
    return tuple(_candidates(head, rows))


def _candidates(head: list[str], rows: Iterable[list[str]]) -> Iterator[Candidate]:
    for number, row in enumerate(rows, 1):
        cells = {name: cell.strip() for name, cell in zip(head, row, strict=False)}
        if len(row) != len(head) or not cells["model"]:
            raise ModelListError(
                f"model {number} of the list has {len(row)} values for {len(head)} columns",
                'Put sizes into quotes: "3,224,224".',
            )
        try:
            batches = batches_of(cells["batch"]) if cells.get("batch") else None
        except ConditionsError as error:
            where = shortened(cells["model"])
            raise ModelListError(f"{where}: {error.message}", error.hint) from None
        framework = cells.get("framework") or None
        yield Candidate(cells["model"], cells.get("input") or None, batches, framework)


# Batch sizes and other whole numbers of a sweep, as text: lists, powers of two, steps.

MOST = 10_000
"""Maximum number of sizes in a range with steps."""
HINT = "Give 8, a list 1,8,32, powers of two 1:1024, or steps 8:128:8."


def batches_of(text: str) -> tuple[int, ...]:
    """Return the batch sizes that a text specifies, in its order and without duplicates.

    "1,8,32" is a list; "1:1024" stands for both ends and the powers of two between them; "8:128:8"
    is a range with a step; parts of a list may be ranges.

    Raises:
        ConditionsError: if the text has another form, or a range has more than `MOST` sizes.
    """
    found: list[int] = []
    for part in filter(None, re.split(r"[,;\s]+", text.strip())):
        try:
            numbers = [whole_number(number) for number in part.split(":")]
        except ValueError:
            raise ConditionsError(f"batch is {text!r}", HINT) from None
        found += _range(numbers, text)
    if not found:
        raise ConditionsError(f"batch is {text!r}", HINT)
    return tuple(dict.fromkeys(found))


def _range(numbers: list[int], text: str) -> list[int]:
    if len(numbers) == 1:
        return numbers
    first, last, *steps = numbers
    if len(steps) > 1 or first < 1 or last < first or any(step < 1 for step in steps):
        raise ConditionsError(f"batch is {text!r}", HINT)
    if not steps:
        powers = (1 << exponent for exponent in range(first.bit_length() - 1, last.bit_length()))
        return [
            first,
            *(power for power in powers if first < power < last),
            *[last][: last - first],
        ]
    if (last - first) // steps[0] >= MOST:
        raise ConditionsError(f"batch {text!r} asks for more than {MOST:,} sizes", HINT)
    return list(range(first, last + 1, steps[0]))
