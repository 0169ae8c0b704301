"""`Evaluator`: designs → outcomes, within one process.

Work that designs share is done once: libraries are imported and the predictor is loaded before the
fork; the graph of an architecture, or its error, is cached for other batches, precisions, places.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dippm.base import process
from dippm.decide.exploration.constraints import Constraint, place_of
from dippm.decide.exploration.design import Architecture, Design, is_built
from dippm.decide.exploration.objectives import QUANTITIES, SHOWN, Objective, why_absent
from dippm.decide.exploration.question import DesignOutcome, SearchQuestion, Task
from dippm.errors import DippmError
from dippm.estimate.conditions import Conditions
from dippm.estimate.prediction import Prediction
from dippm.model import graph as graphs
from dippm.model.convert import read_graph
from dippm.model.frontends import named
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.registry import object_framework
from dippm.model.graph import ModelGraph

KEPT = 64
"""Graphs that one process keeps."""


class NotBuiltError(DippmError, RuntimeError):
    """The user's function did not return a model."""


@dataclass(frozen=True, slots=True)
class _CachedGraph:
    """A graph, or the error of its conversion."""

    graph: ModelGraph | None
    error: DippmError | None = None


class Evaluator:
    """Evaluates designs, one task after the other.

    Args:
        question: the question of the search.
        own_process: whether a conversion may end this process: modules are then converted here
            under a time limit. Otherwise they are exported here and converted in DIPPM's worker.

    Attributes:
        conversions: number of conversions so far.
    """

    def __init__(self, question: SearchQuestion, *, own_process: bool = False) -> None:
        self.question, self.conversions = question, 0
        self._own_process = own_process
        self._kept: OrderedDict[tuple[Any, ...], _CachedGraph] = OrderedDict()

    def evaluate(self, task: Task) -> dict[int, DesignOutcome]:
        """Return the outcome of each design, by its number."""
        space = self.question.space
        designs = {number: space.design(chosen) for number, chosen in task.chosen.items()}
        found: dict[int, DesignOutcome] = {}
        for number, design in designs.items():
            known = self._kept.get(design.built)
            start = time.perf_counter()
            kept = self._graph(design)
            convert_s = 0.0 if known else time.perf_counter() - start
            if kept.graph is None:
                assert kept.error is not None
                found[number] = _failed(kept.error, convert_s)
                continue
            start = time.perf_counter()
            try:
                found[number] = self._outcome(design, kept.graph, convert_s, start)
            except Exception as error:  # of the user's function, or a fault of DIPPM
                found[number] = _failed(error, convert_s)
        return found

    def _outcome(
        self, design: Design, graph: ModelGraph, convert_s: float, start: float
    ) -> DesignOutcome:
        question = self.question
        prediction = self._predict(design, graph, question.space.conditions(design))
        values, absent = self._values(prediction, graph)
        constraints = [c for c in question.constraints if c.quantity in QUANTITIES]
        if QUANTITIES["memory_bound_mb"].of(prediction, graph) is not None:
            constraints.append(place_of(design, question.space))
        wanted = [o.name for o in question.objectives if o.of is None]
        wanted += [c.quantity for c in constraints]
        lacking = next((absent[name] for name in wanted if name in absent), "")
        missed = {} if lacking else _violations(constraints, values)
        state = "failed" if lacking else "infeasible" if missed else "ok"
        own = [objective for objective in question.objectives if objective.of is not None]
        if own and state == "infeasible" and question.prune:
            state = "pruned"
        elif own and state != "failed":
            lacking = self._ask(own, design, graph, prediction, values)
            constraints += [c for c in question.constraints if c.quantity not in QUANTITIES]
            missed = {} if lacking else _violations(constraints, values)
            state = "failed" if lacking else "infeasible" if missed else "ok"
        reasons = (_violation_text(c, values) for c in constraints if str(c) in missed)
        reason = lacking or "; ".join(dict.fromkeys(reasons))
        return DesignOutcome(
            state,  # type: ignore[arg-type]
            values,
            missed,
            reason,
            prediction.warnings,
            prediction.provenance.checkpoint,
            convert_s,
            time.perf_counter() - start,
        )

    def _predict(self, design: Design, graph: ModelGraph, conditions: Conditions) -> Prediction:
        name = design.architecture
        return next(iter(self.question.predictor.predict_points(graph, [conditions], name)))

    def _values(
        self, prediction: Prediction, graph: ModelGraph
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the quantities that are shown or requested, and why others are absent."""
        asked = [o.name for o in self.question.objectives if o.of is None]
        asked += [c.quantity for c in self.question.constraints if c.quantity in QUANTITIES]
        values: dict[str, float] = {}
        absent: dict[str, str] = {}
        for name in dict.fromkeys((*SHOWN, *asked)):
            value = QUANTITIES[name].of(prediction, graph)
            if value is None:
                absent[name] = why_absent(name, prediction)
            else:
                values[name] = float(value)
        return values, absent

    def _ask(
        self,
        own: list[Objective],
        design: Design,
        graph: ModelGraph,
        prediction: Prediction,
        values: dict[str, float],
    ) -> str:
        """Add the results of the user's functions; return why one did not return a number."""
        given = self._arguments(design, graph, prediction)
        for objective in own:
            try:
                values[objective.name] = _finite(objective(given))
            except Exception as error:
                return f"{objective.name}: {_dippm_error(error).message}"
        return ""

    def _arguments(
        self, design: Design, graph: ModelGraph, prediction: Prediction
    ) -> Mapping[str, Callable[[], Any]]:
        architecture = self.question.space.architectures[design.architecture]
        return {
            "module": lambda: module_of(architecture.build(design)),
            "graph": lambda: graph,
            "prediction": lambda: prediction,
            "parameters": lambda: dict(design.parameters),
            "design": lambda: design,
        }

    def _graph(self, design: Design) -> _CachedGraph:
        key = design.built
        if key not in self._kept:
            try:
                self._kept[key] = _CachedGraph(self._converted(design))
            except Exception as error:
                self._kept[key] = _CachedGraph(None, _dippm_error(error))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _converted(self, design: Design) -> ModelGraph:
        question = self.question
        architecture = question.space.architectures[design.architecture]
        try:
            model = without_weights(architecture, design)
            sizes = question.space.input_of(design)
        except DippmError:
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"[:300]
            raise NotBuiltError(
                f"it cannot be built: {words}",
                "Call the function with these parameters to see why.",
            ) from error
        self.conversions += 1
        if self._own_process and object_framework(model) == "pytorch":
            from dippm.model.frontends import pytorch

            with _ended_after(question.timeout_s):
                return graphs.build(pytorch.convert_module(model, InputSpec.parse(sizes)))
        return read_graph(
            model,
            input=sizes,
            trust=question.trust,
            timeout_s=question.timeout_s,
            memory_limit_mb=question.memory_limit_mb,
        )


def without_weights(architecture: Architecture, design: Design) -> Any:
    """Return the model of a design, built on the meta device where that works."""
    if not is_built(architecture.make):
        return architecture.make
    import torch

    from dippm.model.frontends.torch.constant_folding import KeepIntegerData

    try:
        with torch.device("meta"), KeepIntegerData():
            return architecture.build(design)
    except Exception:  # the constructor needs data; any other error recurs below
        return architecture.build(design)


def module_of(model: Any) -> Any:
    """Return a model with weights, as an object of its framework; a model by name is built."""
    if isinstance(model, str) and named.is_name(model):
        return named.build(model, "cpu").module
    return model


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Let the kernel end this process if a conversion takes longer."""
    process.end_after(seconds if math.isfinite(seconds) else None)
    try:
        yield
    finally:
        process.end_after(None)


def _violations(constraints: list[Constraint], values: Mapping[str, float]) -> dict[str, float]:
    found = {str(c): c.violation(values) for c in constraints}
    return {name: violation for name, violation in found.items() if violation > 0}


def _violation_text(constraint: Constraint, values: Mapping[str, float]) -> str:
    value = values[constraint.quantity]
    return f"{constraint.quantity} is {value:.4g}, not {constraint}"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"the function returned {value}")
    return value


def _failed(error: Exception, convert_s: float = 0.0) -> DesignOutcome:
    return DesignOutcome("failed", reason=_dippm_error(error).message, convert_s=convert_s)


def _dippm_error(error: Exception) -> DippmError:
    if isinstance(error, DippmError):
        return error
    return DippmError(
        f"{type(error).__name__}: {error}"[:300], "Predict this design alone, with workers=0."
    )
