"""Evaluation of designs within one process, and the records that workers exchange.

An `Evaluator` computes a `DesignOutcome` for each design of a `Task`; a `SearchQuestion` holds what
is common to all of them. Work that designs share is done once: libraries are imported and the
predictor is loaded before the fork; the graph of an architecture, or its error, is cached for other
batches, precisions and places.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from dippm.base import process
from dippm.decide.exploration.design import Architecture, Design, Label, is_built
from dippm.decide.exploration.objectives import (
    QUANTITIES,
    SHOWN,
    Constraint,
    Objective,
    place_of,
    why_absent,
)
from dippm.decide.exploration.space import Space
from dippm.errors import DippmError
from dippm.estimate.conditions import Conditions
from dippm.estimate.prediction import Prediction
from dippm.estimate.predictor import LoadedPredictor
from dippm.model import graph as graphs
from dippm.model.convert import read_graph
from dippm.model.frontends import named
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S
from dippm.model.frontends.registry import object_framework
from dippm.model.graph import ModelGraph

KEPT = 64
"""Maximum number of graphs in the cache of one process."""


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
        question: question of the search.
        own_process: whether a conversion may end this process. If so, modules are converted here
            under a time limit; otherwise they are exported here and converted in DIPPM's worker.

    Attributes:
        conversions: number of conversions so far.
    """

    def __init__(self, question: SearchQuestion, *, own_process: bool = False) -> None:
        self.question, self.conversions = question, 0
        self._own_process = own_process
        self._cache: OrderedDict[tuple[Any, ...], _CachedGraph] = OrderedDict()

    def evaluate(self, task: Task) -> dict[int, DesignOutcome]:
        """Return the outcome of each design, by its number."""
        space = self.question.space
        designs = {number: space.design(chosen) for number, chosen in task.chosen.items()}
        found: dict[int, DesignOutcome] = {}
        for number, design in designs.items():
            known = self._cache.get(design.built)
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
        """Return the outcome of a design with a graph.

        Constraints on quantities of the prediction are checked first: if one is missed, the user's
        functions, which may take long, need not be called.
        """
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
            lacking = self._call_functions(own, design, graph, prediction, values)
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

    def _call_functions(
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
        if key not in self._cache:
            try:
                self._cache[key] = _CachedGraph(self._convert(design))
            except Exception as error:
                self._cache[key] = _CachedGraph(None, _dippm_error(error))
            while len(self._cache) > KEPT:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _convert(self, design: Design) -> ModelGraph:
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

            with _time_limit(question.timeout_s):
                return graphs.build(pytorch.convert_module(model, InputSpec.parse(sizes)))
        return read_graph(
            model,
            input=sizes,
            trust=question.trust,
            timeout_s=question.timeout_s,
            memory_limit_mb=question.memory_limit_mb,
        )


def without_weights(architecture: Architecture, design: Design) -> Any:
    """Return the model of a design, built on the meta device if possible."""
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
    """Return a model as an object of its framework, with weights; a model by name is built."""
    if isinstance(model, str) and named.is_name(model):
        return named.build(model, "cpu").module
    return model


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
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


# Records: the question of a search, a task of a worker, and the outcome of a design.

State = Literal["ok", "infeasible", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """Arguments of a search that workers need.

    Attributes:
        space: design space.
        objectives: objectives of the search.
        constraints: constraints on designs.
        predictor: loaded predictor.
        prune: whether to skip the user's functions for designs that miss a constraint.
        trust: whether model files may run code, see `dippm.predict`.
        timeout_s: time limit of one conversion in s.
        memory_limit_mb: memory limit of one conversion in MiB.
    """

    space: Space
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    predictor: LoadedPredictor
    prune: bool = True
    trust: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB

    def describe(self) -> dict[str, Any]:
        """Return the identity of the search as JSON-ready data."""
        return {
            "space": self.space.describe(),
            "objectives": [f"{o.goal} {o.name}" for o in self.objectives],
            "constraints": sorted(map(str, self.constraints)),
        }


@dataclass(frozen=True, slots=True)
class Task:
    """Designs that share one graph and are evaluated together by one worker.

    Attributes:
        chosen: label of each axis, by number of the design.
    """

    chosen: Mapping[int, Mapping[str, Label]]


@dataclass(frozen=True, slots=True)
class DesignOutcome:
    """Outcome of one design.

    Attributes:
        state: "ok", "infeasible" if it misses a constraint, "pruned" if the user's functions were
            therefore not called, "failed" if it has no values.
        values: known values, by quantity and objective.
        violations: relative excess over the limit, by constraint that is missed.
        reason: reason why the state is not "ok"; "" if it is.
        warnings: warnings of the prediction.
        checkpoint: checkpoint of the prediction; "" without a prediction.
        convert_s: wall time in s of the conversion to a graph; 0 if the graph was cached.
        predict_s: wall time in s of the prediction and of the user's functions.
    """

    state: State
    values: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    warnings: tuple[str, ...] = ()
    checkpoint: str = ""
    convert_s: float = 0.0
    predict_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data, which `from_dict` reads."""
        return {**asdict(self), "warnings": list(self.warnings)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> DesignOutcome:
        """Return the outcome in a document that `to_dict` returned.

        Raises:
            ValueError: if it is not such a document.
        """
        try:
            found = cls(**{**document, "warnings": tuple(document["warnings"])})
            numbers = (*found.values.values(), *found.violations.values())
            are_numbers = all(map(_is_number, (*numbers, found.convert_s, found.predict_s)))
            texts = (found.reason, found.checkpoint, *found.warnings)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"an outcome that is none: {error}") from error
        if found.state not in get_args(State) or not are_numbers:
            raise ValueError("an outcome whose state or values are none")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("an outcome whose texts are none")
        return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
