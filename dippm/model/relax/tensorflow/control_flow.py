"""Loops and branches of known course → the operations that they run.

A loop whose number of steps follows from shapes and constants is unrolled, so that its operations
count like all others. A known condition selects its branch; if data decide, the most expensive
branch is used, with a note. The rest are recurrent layers (see `recurrent`), and loops whose length
depends on data or is too large to unroll: these remain single operations, with a note that they
are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from dippm.errors import ConversionError
from dippm.model.relax.tensorflow import path_of
from dippm.model.relax.tensorflow.static import Nodes, Statics

LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
MAX_STEPS = 4200
"""Maximum steps of one loop; above four times the largest marker batch, for loops over samples."""
MAX_GROWING_STEPS = 300
"""Maximum steps of a loop whose states change size, so that each step is inferred separately."""
BRANCH_OPERATIONS = 20
"""Operations that an unrolled branch counts as, so that recursion terminates."""
MAX_OPERATIONS = 100_000
"""Maximum operations of all unrolled loops of a model."""

_UNCOUNTED = "it stands for one operator, and what it computes is not counted"
_ENDS = {"data": "runs as long as its data say", "long": f"has more than {MAX_STEPS:,} steps"}

_REST = "further loops and branches are not written out: what they compute is not counted"

Known = dict[int, np.ndarray[Any, Any]]


class BatchLoopError(Exception):
    """A loop runs once per sample, so the graph is valid for one batch only."""


@dataclass(frozen=True, slots=True)
class Unfolding:
    """Which loops and branches are unrolled.

    Attributes:
        keeps: whether a loop remains as it is, given the functions of the graph.
        batch: the marker batch; None for a fixed batch.
        costs: cost of branches by function and shapes, a cache.
    """

    keeps: Callable[[tf.Operation, Mapping[str, FunctionDef]], bool]
    batch: int | None = None
    costs: dict[tuple[Any, ...], int] = field(default_factory=dict)


class Body(Protocol):
    """A function with shapes, the result of `flatten_function`."""

    graph: tf.Graph
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]


class Flattener(Nodes, Protocol):
    """The methods of the flattener that are used here."""

    functions: Mapping[str, FunctionDef]
    nodes: dict[str, NodeDef]

    def call(self, name: str, inputs: list[str], prefix: str) -> list[str]:
        """Copy the body of a function; return its results."""
        ...

    def body(
        self,
        name: str,
        given: Sequence[tf.Tensor],
        shapes: Sequence[tuple[int | None, ...] | None],
        unfolding: Unfolding | None = None,
    ) -> Body:
        """Flatten a function separately, for arguments of these shapes."""
        ...


class Unfolder:
    """Unrolls the loops and branches of one graph, one level per round."""

    def __init__(self, flattener: Flattener, unfolding: Unfolding) -> None:
        self.flattener, self.unfolding = flattener, unfolding
        self.left = MAX_OPERATIONS
        self.notes: dict[str, str] = {}

    def round(self, graph: tf.Graph) -> dict[str, str]:
        """Unroll everything known so far; return the replacement of each result by its name."""
        statics = Statics()
        replaced: dict[str, str] = {}
        for operation in graph.get_operations():
            results: list[str] | None = None
            if operation.type in LOOPS:
                if not self.unfolding.keeps(operation, self.flattener.functions):
                    results = self._loop(operation, statics)
            elif operation.type in BRANCHES:
                results = self._branch(operation, statics)
            if results is not None:
                names = [t.name for t in operation.outputs]
                replaced.update(zip(names, results, strict=True))
                del self.flattener.nodes[operation.name]
        return replaced

    def _note(self, operation: tf.Operation, words: str) -> None:
        self.notes[operation.name] = words.format(path_of(operation.name + "/") or operation.name)

    def _loop(self, loop: tf.Operation, statics: Statics) -> list[str] | None:
        if self.left <= 0:
            self.notes[_REST] = _REST
            return None
        course = _Course(self.flattener, loop, statics)
        course.run()
        steps = course.steps
        if course.end != "known":
            if course.grows:
                raise ConversionError(
                    f"the sizes in the loop {loop.name} depend on data, or change too often",
                    "Export the model with loops that keep their sizes, or one step of the loop.",
                )
            self._note(loop, f"the loop {{}} {_ENDS[course.end]}: {_UNCOUNTED}")
            return None
        if self.unfolding.batch and steps and len(steps) % self.unfolding.batch == 0:
            raise BatchLoopError(path_of(loop.name + "/") or loop.name)
        size = len(steps) * max(1, len(_ancestors(course.body.outputs)))
        if size > self.left:
            words = f"of {len(steps):,} steps is too long to be written out: {_UNCOUNTED}"
            self._note(loop, "the loop {} " + words)
            self.left = 0  # so that a thousand similar loops take no time
            return None
        self.left -= size
        self.notes.pop(loop.name, None)
        if course.is_bound:
            words = f"may stop early: it was read with all its {len(steps):,} steps"
            self._note(loop, "the loop {} " + words)
        state, prefix = [t.name for t in loop.inputs], loop.name.rpartition("/")[0]
        for known in steps:
            given = [
                self._value(f"{loop.name}/known", known[k], loop.inputs[k]) if k in known else name
                for k, name in enumerate(state)
            ]
            state = self.flattener.call(course.body_name, given, prefix)
        return state

    def _value(self, name: str, value: np.ndarray[Any, Any], like: tf.Tensor) -> str:
        node = self.flattener.add(name, "Const", [], dtype=like.dtype.as_datatype_enum)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, like.dtype))
        return str(node.name) + ":0"

    def _branch(self, branch: tf.Operation, statics: Statics) -> list[str] | None:
        if self.left <= 0:
            self.notes[_REST] = _REST
            return None
        self.left -= BRANCH_OPERATIONS
        names = _branch_names(branch)
        chosen = _chosen(branch, statics.value(branch.inputs[0]), len(names))
        if chosen is None:
            costs = [self._cost(name, branch) for name in names]
            chosen = max(range(len(names)), key=lambda i: (costs[i], -i))
            self._note(
                branch,
                f"data decide which of {len(names)} branches of {{}} runs: the costliest was read",
            )
        given = [t.name for t in branch.inputs[1:]]
        return self.flattener.call(names[chosen], given, branch.name.rpartition("/")[0])

    def _cost(self, name: str, branch: tf.Operation) -> int:
        given = branch.inputs[1:]
        shapes = [shape_or_none(t) for t in given]
        key = (name, *shapes)
        if key not in self.unfolding.costs:
            self.unfolding.costs[key] = 0  # the cost of a recursive function
            unfolding = replace(self.unfolding, keeps=lambda *_: False)
            try:
                body = self.flattener.body(name, given, shapes, unfolding)
                cost = sum(_work(operation) for operation in _ancestors(body.outputs))
            except (ValueError, tf.errors.OpError):
                cost = -1
            self.unfolding.costs[key] = cost
        return self.unfolding.costs[key]


class _Course:
    """The course of a loop: its number of steps, and the known values of each.

    Attributes:
        steps: known arguments of each step.
        end: "known" if the loop ends after these steps, else the reason why that is unknown.
        is_bound: whether data may end it earlier.
        grows: whether a state changes its size.
    """

    def __init__(self, flattener: Flattener, loop: tf.Operation, statics: Statics) -> None:
        self.flattener, self.loop = flattener, loop
        self.steps: list[Known] = []
        self.end, self.is_bound = "data", False
        self.body_name, self.condition_name = (loop.get_attr(n).name for n in ("body", "cond"))
        self.first: Known = {}
        for i, tensor in enumerate(loop.inputs):
            value = statics.value(tensor) if _is_countable(tensor) else None
            if value is not None:
                self.first[i] = value
        self.shapes = [shape_or_none(t) for t in loop.inputs]
        self._flatten()
        self.grows = self._next_shapes() != self.shapes

    def run(self) -> None:
        """Evaluate steps until the loop ends, or its condition is unknown."""
        known, most = self.first, MAX_GROWING_STEPS if self.grows else MAX_STEPS
        while len(self.steps) <= most:
            goes_on = self._goes_on(known)
            if goes_on is None:
                return
            if not goes_on:
                self.end = "known"
                return
            self.steps.append(known)
            known = self._next(known)
            if self.grows:
                self.shapes = self._next_shapes()
                self._flatten()
        self.end = "long"

    def _flatten(self) -> None:
        inputs, shapes = self.loop.inputs, self.shapes
        self.body = self.flattener.body(self.body_name, inputs, shapes)
        self.condition = self.flattener.body(self.condition_name, inputs, shapes)

    def _next_shapes(self) -> list[tuple[int | None, ...] | None]:
        after = [shape_or_none(t) for t in self.body.outputs]
        plain = [t.dtype not in (tf.variant, tf.resource) for t in self.loop.inputs]
        return [
            _sharper(a, s) if is_plain else s
            for a, s, is_plain in zip(after, self.shapes, plain, strict=True)
        ]

    def _goes_on(self, known: Known) -> bool | None:
        statics = Statics(_seeds(self.condition.inputs, known))
        tensor = self.condition.outputs[0]
        value = statics.value(tensor)
        if value is None and tensor.op.type == "LogicalAnd":
            sides = [statics.value(t) for t in tensor.op.inputs]
            if any(side is not None for side in sides):
                self.is_bound = True
                return all(side is None or bool(side) for side in sides)
        return None if value is None else bool(value)

    def _next(self, known: Known) -> Known:
        statics = Statics(_seeds(self.body.inputs, known))
        after = {i: statics.value(self.body.outputs[i]) for i in known}
        return {i: value for i, value in after.items() if value is not None}


def _seeds(inputs: Sequence[tf.Tensor], known: Known) -> dict[str, np.ndarray[Any, Any]]:
    return {inputs[i].name: value for i, value in known.items()}


def _is_countable(tensor: tf.Tensor) -> bool:
    elements = tensor.shape.num_elements()
    whole = tensor.dtype.is_integer or tensor.dtype.is_bool
    return bool(elements is not None and elements <= 64 and (whole or tensor.shape.rank == 0))


def shape_or_none(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    """Return a tensor's shape, None if its rank is unknown."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _sharper(
    after: tuple[int | None, ...] | None, before: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """Return the shape after a step, with unknown sizes as before the step."""
    if after is None or before is None or len(after) != len(before):
        return before if after is None else after
    return tuple(b if a is None else a for a, b in zip(after, before, strict=True))


def _branch_names(branch: tf.Operation) -> list[str]:
    if branch.type in ("If", "StatelessIf"):
        return [branch.get_attr(f"{side}_branch").name for side in ("then", "else")]
    return [function.name for function in branch.get_attr("branches")]


def _chosen(branch: tf.Operation, value: np.ndarray[Any, Any] | None, count: int) -> int | None:
    if value is None or value.size != 1:
        return None
    if branch.type in ("If", "StatelessIf"):
        return 0 if bool(value.reshape(())) else 1
    index = int(value.reshape(()))
    return index if 0 <= index < count else count - 1


def _ancestors(tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
    found: dict[str, tf.Operation] = {}
    stack = [t.op for t in tensors]
    while stack:
        operation = stack.pop()
        if operation.name not in found:
            found[operation.name] = operation
            stack.extend(t.op for t in operation.inputs)
    return list(found.values())


def _work(operation: tf.Operation) -> int:
    """Estimate the arithmetic of an operation, only to compare branches."""
    if operation.type in ("Placeholder", "Const") or not operation.outputs:
        return 0
    written = prod(size or 1 for size in shape_or_none(operation.outputs[0]) or (1,))
    if len(operation.inputs) < 2:
        return written
    sizes = [size or 1 for size in shape_or_none(operation.inputs[1]) or ()]
    if "MatMul" in operation.type and len(sizes) >= 2:
        return written * max(sizes[-2:])
    if "Conv" in operation.type and len(sizes) >= 3:
        return written * prod(sizes[:-1])
    return written
