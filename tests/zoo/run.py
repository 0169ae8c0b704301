"""Runs a case and says what came of it."""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import dippm
from dippm.errors import DippmError
from dippm.model.frontends.torch.usual_inputs import ADDED, CHOSEN
from dippm.model.graph.model_graph import ModelGraph
from tests.zoo.case import Case, NotBuiltError

TIMEOUT_S = 60.0
Verdict = Literal[
    "right", "unchecked", "noted", "not numeric", "refused", "wrong", "crashed", "not built"
]
"""right: MACs or shapes agree with the other count; unchecked: a graph, but no other count;
noted: it differs, and a note or an unknown operator says so; refused: a typed error in time; not
numeric: that, and `Case.not_numeric` says why it should be; wrong: it differs in silence; crashed:
an untyped error, or a refusal that took too long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    suite: str
    name: str
    verdict: Verdict
    detail: str = ""
    operators: int = 0
    unknown: int = 0
    macs: int = 0
    expected_macs: int | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


def run(suite: str, case: Case, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Convert a case's model and hold the graph against what is known about it."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        try:
            source = case.source(Path(folder))
        except NotBuiltError as error:
            return Outcome(suite, case.name, "not built", str(error)[:200])
        began = time.monotonic()

        def outcome(verdict: Verdict, detail: str = "", **known: Any) -> Outcome:
            seconds = round(time.monotonic() - began, 2)
            return Outcome(suite, case.name, verdict, detail[:300], seconds=seconds, **known)

        try:
            graph = _read(case, source, timeout_s)
            batch = case.batch if isinstance(case.batch, int) else case.batch(graph)
            fixed = not graph.batch_is_symbolic and graph.batch != batch
            graph = graph if fixed else graph.at_batch(batch)
        except DippmError as error:
            words = f"{type(error).__name__}: {error.message}".splitlines()[0]
            own = case.own_error() if case.own_error is not None else ""
            if own and _sizeless(own) in _sizeless(error.message):
                return outcome("not built", f"its own inputs fail in its own library: {own}")
            late = time.monotonic() - began > timeout_s + 15
            if late:
                return outcome("crashed", words)
            reason = case.not_numeric() if case.not_numeric is not None else ""
            return outcome("not numeric", reason) if reason else outcome("refused", words)
        except Exception as error:
            return outcome("crashed", f"{type(error).__name__}: {error}")
        unknown = sum(graph.unknown_ops.values())
        said = "; ".join([*graph.notes, *(f"unknown {name}" for name in graph.unknown_ops)])
        known: dict[str, Any] = {
            "operators": len(graph.nodes),
            "unknown": unknown,
            "macs": graph.macs,
        }
        problem, checked = "", False
        expected = case.macs(graph.inputs) if case.macs is not None else None
        if expected is not None:
            known["expected_macs"] = expected
            checked = True
            if abs(graph.macs - expected) > case.tolerance * expected:
                problem = f"{graph.macs:,} MACs, {expected:,} expected"
        wanted = case.out_shapes() if case.out_shapes is not None else None
        if wanted is not None and not problem:
            shapes = tuple(tensor.shape for tensor in graph.outputs)
            checked = True
            if shapes != wanted:
                problem = f"results {shapes}, {wanted} expected"
        if problem:
            excused = graph.unknown_ops or not all(map(_is_of_inputs, graph.notes))
            return outcome("noted" if excused else "wrong", f"{problem}; {said}", **known)
        return outcome("right" if checked else "unchecked", said, **known)


def _read(case: Case, source: Any, timeout_s: float) -> ModelGraph:
    """Read a case's model, with its other inputs if those of the case are refused."""
    limits: dict[str, Any] = {"trust": case.trust, "timeout_s": timeout_s}
    try:
        return dippm.read_graph(source, input=case.input, **limits)
    except DippmError:
        other = case.then() if case.then is not None else None
        if other is None:
            raise
        return dippm.read_graph(source, input=other, **limits)


def _sizeless(words: str) -> str:
    """Return words without their numbers: the batch of the library's inputs is not ours."""
    return re.sub(r"\d+", "#", words)


def _is_of_inputs(note: str) -> bool:
    """Return whether a note only tells which inputs were taken: they are counted, too."""
    return note.endswith((ADDED, CHOSEN))
