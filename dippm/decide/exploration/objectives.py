"""`Objective`: what is optimised; `Quantity`: what every design has."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from dippm.decide.exploration.design import RESERVED
from dippm.decide.exploration.errors import ExploreError
from dippm.errors import UnknownNameError
from dippm.estimate.prediction import Prediction
from dippm.model.graph import ModelGraph

ARGUMENTS = ("module", "graph", "prediction", "parameters", "design")
"""Names of the parameters that a user's function may have: the built model with weights; its
`ModelGraph`; its `Prediction`; the arguments it was built with; the `Design`."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A number to be minimised or maximised.

    Attributes:
        name: name of a quantity, see `QUANTITIES`, or any other name for a function.
        goal: "min" or "max"; None takes the goal of the quantity, or "max" for a function.
        of: function that returns the number; it is called in a worker process with the arguments
            that it names, see `ARGUMENTS`. None for a quantity.
        note: remark on the number for readers of the answer.

    Raises:
        UnknownNameError: if there is no such quantity and no function.
        ExploreError: if the goal is not valid, or the function has other parameters.
    """

    name: str
    goal: Goal | None = None
    of: Callable[..., Any] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        name = canonical_name(self.name) if self.of is None else self.name
        if self.of is None and name not in QUANTITIES:
            hint = f"Quantities: {', '.join(QUANTITIES)}. "
            raise UnknownNameError.of(
                "objective",
                self.name,
                (*QUANTITIES, *ALIASES),
                hint + 'For one of your own: Objective("name", of=function).',
            )
        if self.of is not None and (name in QUANTITIES or name in RESERVED):
            raise ExploreError(f"{name} is not free for a function", "Call it something else.")
        object.__setattr__(self, "name", name)
        goal = self.goal or (QUANTITIES[name].goal if self.of is None else "max")
        if goal not in get_args(Goal):
            raise ExploreError(f"the goal of {name} is {goal!r}", 'Give "min" or "max".')
        object.__setattr__(self, "goal", goal)
        for argument in self.asks_for:
            if argument not in ARGUMENTS:
                raise ExploreError(
                    f"the function of {name} asks for {argument!r}",
                    f"It gets any of {', '.join(ARGUMENTS)}, by the names of its parameters.",
                )

    @property
    def sign(self) -> int:
        """1 if the number is minimised, -1 if it is maximised."""
        return 1 if self.goal == "min" else -1

    @property
    def label(self) -> str:
        """Label for people."""
        return QUANTITIES[self.name].label if self.of is None else self.name

    @property
    def asks_for(self) -> tuple[str, ...]:
        """Names of the function's parameters that are required or among `ARGUMENTS`."""
        if self.of is None:
            return ()
        try:
            parameters = inspect.signature(self.of).parameters.values()
        except (TypeError, ValueError):
            return (ARGUMENTS[0],)
        plain = (p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        return tuple(p.name for p in plain if p.default is p.empty or p.name in ARGUMENTS)

    def __call__(self, given: Mapping[str, Callable[[], Any]]) -> float:
        """Return the number of the user's function.

        Args:
            given: for each argument a function that makes it.

        Raises:
            Exception: whatever the function raises.
        """
        assert self.of is not None
        return float(self.of(**{name: given[name]() for name in self.asks_for}))


def objectives_of(given: Any) -> tuple[Objective, ...]:
    """Return the objectives that a user specified.

    Args:
        given: a name, an `Objective` or several; or a mapping from names to "min" or "max".

    Raises:
        UnknownNameError: if there is no such quantity.
        ExploreError: if there is none, or one occurs twice.
    """
    if isinstance(given, Mapping):
        found = [Objective(str(name), cast(Goal, goal)) for name, goal in given.items()]
    else:
        one = isinstance(given, str | Objective)
        listed: Iterable[Any] = [given] if one else list(given)
        found = [o if isinstance(o, Objective) else _named(o) for o in listed]
    names = [objective.name for objective in found]
    if not found or len(set(names)) < len(names):
        raise ExploreError(
            f"the objectives are {', '.join(names) or 'none'}",
            f"Give each once, one at least: {', '.join(QUANTITIES)}, or an Objective.",
        )
    return tuple(found)


def _named(name: Any) -> Objective:
    if isinstance(name, str):
        return Objective(name)
    raise ExploreError(
        f"a {type(name).__name__} is not an objective",
        'Give a name, or Objective("name", "max", of=function) for one of your own.',
    )


# Zero-cost proxies: examples of an objective of one's own, which need no training and no data.
#
# They rank designs by how much they could hold or compute. **None of them is an accuracy**, nor a
# prediction of one: within one family larger networks are usually more accurate, across families
# and tasks that breaks. They are the baselines that proxies of trained accuracy have to beat
# (Abdelfattah et al. 2021, "Zero-cost proxies for lightweight NAS"; Ning et al. 2021, "Evaluating
# efficient performance estimators of neural architectures"). Use your own function where accuracy
# matters.


NOTE = "a zero-cost proxy, no accuracy and no prediction of one"


def weights_proxy() -> Objective:
    """Return an example: log10 of the bytes of weights, to be maximised."""
    return Objective("weights_proxy", "max", of=_log_weights, note=f"log10 of weight bytes: {NOTE}")


def macs_proxy() -> Objective:
    """Return an example: log10 of the multiply-accumulates of a sample, to be maximised."""
    return Objective("macs_proxy", "max", of=_log_macs, note=f"log10 of MACs: {NOTE}")


def _log_weights(graph: ModelGraph) -> float:
    return math.log10(max(graph.param_bytes, 1))


def _log_macs(graph: ModelGraph) -> float:
    one = graph.at_batch(1) if graph.batch_is_symbolic else graph
    return math.log10(max(one.macs / one.batch, 1))


# Quantities that every design has: those of its prediction and of its graph.
#
# To add one: a row in `QUANTITIES`.

Goal = Literal["min", "max"]
MEMORY = "memory_mb"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every design has unless its prediction gives a reason why it is absent.

    Attributes:
        label: label for people, with the unit.
        goal: default goal.
        target: target of the prediction whose reason holds if the number is absent.
        of: function from a prediction and its graph, at the batch of the conversion, to the number.
    """

    label: str
    goal: Goal
    target: str
    of: Callable[[Prediction, ModelGraph], float | None]


def _high(target: str) -> Callable[[Prediction, ModelGraph], float | None]:
    def of(prediction: Prediction, _: ModelGraph) -> float | None:
        interval = prediction.intervals.get(target)
        return interval.high if interval else None

    return of


def _value(name: str) -> Callable[[Prediction, ModelGraph], float | None]:
    def of(prediction: Prediction, _: ModelGraph) -> float | None:
        found = prediction.estimate(name)
        return found.value if found else None

    return of


def _gmacs(_: Prediction, graph: ModelGraph) -> float:
    if graph.batch_is_symbolic:
        return graph.at_batch(1).macs / 1e9
    return graph.macs / graph.batch / 1e9


QUANTITIES: dict[str, Quantity] = {
    "latency_ms": Quantity("latency, ms", "min", "latency_ms", lambda p, _: p.latency_ms),
    "latency_ms_high": Quantity(
        "latency, upper end of its interval, ms", "min", "latency_ms", _high("latency_ms")
    ),
    "samples_per_s": Quantity("samples per second", "max", "latency_ms", _value("samples_per_s")),
    "memory_mb": Quantity("memory, MB", "min", "memory_mb", lambda p, _: p.memory_mb),
    "memory_bound_mb": Quantity(
        "memory at 99 %, MB", "min", "memory_mb", lambda p, _: p.memory_bound_mb
    ),
    "energy_j": Quantity("energy of a batch, J", "min", "energy_j", lambda p, _: p.energy_j),
    "energy_j_per_sample": Quantity(
        "energy of a sample, J", "min", "energy_j", _value("energy_per_sample_j")
    ),
    "power_w": Quantity("power, W", "min", "power_w", lambda p, _: p.power_w),
    "weights_mb": Quantity("weights, MB", "min", "", lambda _, g: g.param_bytes / 2**20),
    "gmacs": Quantity("GMACs of a sample", "min", "", _gmacs),
}
ALIASES = {
    "latency": "latency_ms",
    "throughput": "samples_per_s",
    "memory": "memory_mb",
    "energy": "energy_j",
    "power": "power_w",
}
SHOWN = ("latency_ms", "samples_per_s", "memory_mb", "memory_bound_mb", "energy_j", "power_w")
"""Quantities of every design, requested or not."""


def canonical_name(name: str) -> str:
    """Return the name of a quantity, resolving aliases."""
    folded = name.strip().casefold()
    return ALIASES.get(folded, folded if folded in QUANTITIES else name.strip())


def why_absent(name: str, prediction: Prediction) -> str:
    """Return why a prediction lacks a quantity."""
    target = QUANTITIES[name].target
    return f"{name} is absent: {prediction.absent.get(target, 'no number was predicted')}"
