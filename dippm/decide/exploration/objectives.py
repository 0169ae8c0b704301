"""Objectives, quantities and constraints of a search.

An `Objective` is optimised, a `Constraint` limits designs. Both refer to a `Quantity`, which every
design has, or to a function of the user; two zero-cost proxies are examples of such functions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from dippm.base.number_format import show
from dippm.base.written import is_finite
from dippm.decide.exploration.design import RESERVED, Design
from dippm.decide.exploration.errors import ContradictionError, ExploreError
from dippm.decide.exploration.space import Space
from dippm.errors import UnknownNameError
from dippm.estimate.place import slice_of
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
            given: function that makes each argument, by its name in `ARGUMENTS`.

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
        ExploreError: if no objective is given, or one occurs twice.
    """
    if isinstance(given, Mapping):
        found = [Objective(str(name), cast(Goal, goal)) for name, goal in given.items()]
    else:
        one = isinstance(given, str | Objective)
        listed: Iterable[Any] = [given] if one else list(given)
        found = [o if isinstance(o, Objective) else _objective_named(o) for o in listed]
    names = [objective.name for objective in found]
    if not found or len(set(names)) < len(names):
        raise ExploreError(
            f"the objectives are {', '.join(names) or 'none'}",
            f"Give each once, one at least: {', '.join(QUANTITIES)}, or an Objective.",
        )
    return tuple(found)


def _objective_named(name: Any) -> Objective:
    if isinstance(name, str):
        return Objective(name)
    raise ExploreError(
        f"a {type(name).__name__} is not an objective",
        'Give a name, or Objective("name", "max", of=function) for one of your own.',
    )


# Zero-cost proxies: examples of user-defined objectives, which need no training and no data.
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


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every design has unless its prediction gives a reason why it is absent.

    Attributes:
        label: label for people, with the unit.
        goal: default goal.
        target: target of the prediction that gives the reason if the number is absent; "" if it
            never is.
        of: function that computes the number from a prediction and the graph as converted.
    """

    label: str
    goal: Goal
    target: str
    of: Callable[[Prediction, ModelGraph], float | None]


def _upper_end(target: str) -> Callable[[Prediction, ModelGraph], float | None]:
    def of(prediction: Prediction, _: ModelGraph) -> float | None:
        interval = prediction.intervals.get(target)
        return interval.high if interval else None

    return of


def _estimate_value(name: str) -> Callable[[Prediction, ModelGraph], float | None]:
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
        "latency, upper end of its interval, ms", "min", "latency_ms", _upper_end("latency_ms")
    ),
    "samples_per_s": Quantity(
        "samples per second", "max", "latency_ms", _estimate_value("samples_per_s")
    ),
    "memory_mb": Quantity("memory, MB", "min", "memory_mb", lambda p, _: p.memory_mb),
    "memory_bound_mb": Quantity(
        "memory at 99 %, MB", "min", "memory_mb", lambda p, _: p.memory_bound_mb
    ),
    "energy_j": Quantity("energy of a batch, J", "min", "energy_j", lambda p, _: p.energy_j),
    "energy_j_per_sample": Quantity(
        "energy of a sample, J", "min", "energy_j", _estimate_value("energy_per_sample_j")
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


# Constraints: limits that designs have to meet, checked for contradictions.
#
# A constraint on memory applies to its 99 % bound, like the choice of a MIG slice. In addition to
# the user's constraints, every design has to fit the place that it is predicted for.

MEMORY = "memory_mb"
BOUND = "memory_bound_mb"
FITS = "fits its place"
FORMS = (
    "Give the most that is allowed, (least, most) with None for an open end, or for memory_mb the "
    'name of a MIG slice, such as "1g.5gb".'
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Limits of one quantity.

    Attributes:
        name: name as the user wrote it.
        quantity: quantity that is limited.
        low: smallest allowed value.
        high: largest allowed value.
    """

    name: str
    quantity: str
    low: float = -math.inf
    high: float = math.inf

    def violation(self, values: Mapping[str, float]) -> float:
        """Return the excess of a design over the limits, relative to them; 0 if it meets them.

        Raises:
            KeyError: if the quantity is not among the values.
        """
        value = values[self.quantity]
        return max(0.0, _relative_excess(value, self.high), _relative_excess(-value, -self.low))

    def __str__(self) -> str:
        what = self.quantity
        if math.isinf(self.low):
            return f"{what} ≤ {show(self.high)}"
        if math.isinf(self.high):
            return f"{what} ≥ {show(self.low)}"
        return f"{show(self.low)} ≤ {what} ≤ {show(self.high)}"


def constraints_of(
    given: Mapping[str, Any] | None, space: Space, objectives: Sequence[Objective]
) -> tuple[Constraint, ...]:
    """Return the constraints that a user specified.

    Args:
        given: limits by name of a quantity or of an objective: a number is the largest allowed
            value, a pair the smallest and the largest.
        space: the design space.
        objectives: objectives of the search.

    Raises:
        UnknownNameError: if there is no such quantity, or no device of the space has the slice.
        ExploreError: if a limit is not valid.
        ContradictionError: if no design of any space can meet them.
    """
    own = [o.name for o in objectives if o.of is not None]
    found = []
    for name, limits in (given or {}).items():
        quantity = name if name in own else canonical_name(str(name))
        if quantity not in QUANTITIES and quantity not in own:
            raise UnknownNameError.of(
                "constraint",
                str(name),
                (*QUANTITIES, *ALIASES, *own),
                f"Known: {', '.join((*QUANTITIES, *own))}.",
            )
        low, high = _limits(str(name), quantity, limits, space)
        held = BOUND if quantity == MEMORY else quantity
        found.append(Constraint(str(name), held, low, high))
    check_consistent(found, space)
    return tuple(found)


def place_of(design: Design, space: Space) -> Constraint:
    """Return the constraint that a design fits the place that it is predicted for."""
    return Constraint(FITS, BOUND, high=space.places[design.place].capacity_mb)


def check_consistent(constraints: Iterable[Constraint], space: Space) -> None:
    """Check that no limits exclude every design, alone or together.

    Limits of related quantities are compared by interval arithmetic: samples per second are
    1000 · batch / latency_ms, energy_j is power_w · latency_ms / 1000, and all of them are above 0.

    Raises:
        ContradictionError: if limits exclude every design; the message names them.
    """
    allowed = dict.fromkeys(QUANTITIES, (0.0, math.inf))
    said: dict[str, list[str]] = {}
    for one in constraints:
        low, high = allowed.get(one.quantity, (-math.inf, math.inf))
        allowed[one.quantity] = low, high = max(low, one.low), min(high, one.high)
        said.setdefault(one.quantity, []).append(str(one))
        if low > high or (one.quantity in QUANTITIES and high <= 0):
            why = "" if low > high and low > 0 else ": it is above 0"
            raise _contradiction(f"nothing has {' and '.join(said[one.quantity])}{why}")
    # The latency limits and the batches of the space bound the throughput.
    least, most = space.batches
    latency = allowed["latency_ms"]
    fewest, highest = _quotient(1e3 * least, latency[1]), _quotient(1e3 * most, latency[0])
    speed = allowed["samples_per_s"]
    if speed[1] < fewest or speed[0] > highest:
        raise _contradiction(
            f"{_join_statements(said, 'latency_ms', 'samples_per_s')} cannot both hold at batch "
            f"{least if speed[1] < fewest else most}"
        )
    # Power times latency, at the lower and at the upper limits, bounds the energy.
    power, energy = allowed["power_w"], allowed["energy_j"]
    if energy[1] < power[0] * latency[0] / 1e3 or energy[0] > power[1] * latency[1] / 1e3:
        raise _contradiction(
            f"{_join_statements(said, 'energy_j', 'power_w', 'latency_ms')} cannot all hold: "
            "energy is power times latency"
        )


def _limits(name: str, quantity: str, given: Any, space: Space) -> tuple[float, float]:
    """Return the lower and upper limit that a user specified, infinite for an open end."""
    if isinstance(given, str):
        if quantity not in (MEMORY, BOUND):
            raise ExploreError(f"{name} cannot be {given!r}", FORMS)
        return -math.inf, _slice_mb(given, space)
    if isinstance(given, tuple | list) and len(given) == 2:
        low, high = given
        if low is None and high is None:
            raise ExploreError(f"{name} has no limit", FORMS)
        return (
            -math.inf if low is None else _finite_limit(name, low),
            math.inf if high is None else _finite_limit(name, high),
        )
    return -math.inf, _finite_limit(name, given)


def _slice_mb(name: str, space: Space) -> float:
    """Return the usable memory of a slice in MiB, the smallest over the devices of the space."""
    devices = {place.device.name: place.device for place in space.places.values()}
    found, error = [], None
    for device in devices.values():
        try:
            profile = slice_of(device, name)
        except UnknownNameError as unknown:
            error = error or unknown
        else:
            assert profile is not None
            found.append(profile.memory_mb)
    if not found:
        assert error is not None
        raise error
    return min(found)


def _finite_limit(name: str, given: Any) -> float:
    if not is_finite(given):
        raise ExploreError(f"the limit of {name} is {given!r}", FORMS)
    return float(given)


def _relative_excess(value: float, most: float) -> float:
    """Return the excess of a value over its limit, relative to the limit unless that is 0."""
    return 0.0 if math.isinf(most) else (value - most) / (abs(most) or 1.0)


def _quotient(number: float, by: float) -> float:
    """Return number / by, with the limits 0 and infinity for `by` infinite and 0."""
    if math.isinf(by):
        return 0.0
    return number / by if by > 0 else math.inf


def _join_statements(said: Mapping[str, list[str]], *quantities: str) -> str:
    return ", ".join(text for quantity in quantities for text in said.get(quantity, ()))


def _contradiction(what: str) -> ContradictionError:
    return ContradictionError(f"the constraints contradict each other: {what}", "Loosen one.")
