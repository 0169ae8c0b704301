"""`ModuleCost`: the cost of a module or layer, including everything below it.

Children always sum to their parent: operators that a module runs itself, besides those of its
submodules, are a child without a name, and the host's share of the latency is one of the root, as
are the weights that no module's operators read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, NamedTuple, Self

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.estimate.conditions import EIGHT_BITS, Precision
from dippm.estimate.models.targets import OperatorCost
from dippm.model.graph.float_type import weight_bytes, weights_by_node
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.graph.operators import operator

HEADER = ("module", "operators", "GMACs", "weights MB", "time ms", "share")
DEPTH = 3
MAX_DEPTH = 64
"""Levels that a path is split into; a name in a file could have any number."""
_KINDS = 3
HOST = "(host)"
OTHER_WEIGHTS = "(other weights)"
"""Biases, parameters of norms, and copies that autocast makes."""
LEAST_SHARE = 0.0005
LEAST_WEIGHTS = 0.01
"""Part of the model's weights from which on the other weights are listed."""
_NUMBER = re.compile(r"\d+")

Row = tuple[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """A module, with all operators below it.

    Attributes:
        name: name in its parent; "" for the operators that the parent runs itself.
        path: path from the model, as the framework spells it; "" for the model.
        operators: number of operators by canonical name.
        macs: multiply-accumulates of one pass at the batch of the graph.
        weight_bytes: weights of rank 2 and more that the operators read, in the format in which
            they are in memory; tied ones at their first reader. Of the model all that is in memory.
        time_ms: part of the predicted latency; None without a prediction by operator.
        share: time_ms / latency, 0 to 1; None without a prediction by operator.
        energy_j: part of the predicted energy; None if that is not known by operator.
        children: submodules, in the order in which they first run.
        count: number of alike modules that are summed here, see `collapsed`.
    """

    name: str
    path: str
    operators: Mapping[str, int]
    macs: int
    weight_bytes: int
    time_ms: float | None = None
    share: float | None = None
    energy_j: float | None = None
    children: tuple[ModuleCost, ...] = ()
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as JSON-ready data, every module on its own."""
        return {
            "name": self.name,
            "path": self.path,
            "operators": dict(self.operators),
            "macs": self.macs,
            "weight_bytes": self.weight_bytes,
            "time_ms": self.time_ms,
            "share": self.share,
            "energy_j": self.energy_j,
            "children": [child.to_dict() for child in self.children],
        }

    def collapsed(self) -> ModuleCost:
        """Return the tree with modules alike, numbered one after another, summed up in one.

        Thirty-two equal layers become "0–31", whose children are the sums of theirs.
        """
        children = [child.collapsed() for child in self.children]
        groups: list[list[ModuleCost]] = []
        for child in children:
            if groups and _follows(groups[-1][-1], child):
                groups[-1].append(child)
            else:
                groups.append([child])
        return replace(self, children=tuple(one for group in groups for one in _summed(group)))

    def rows(self, depth: int = DEPTH) -> Iterator[Row]:
        """Yield (level, cells under `HEADER`), alike modules summed up.

        What is next to nothing and has no name of its own (views, a host that waits) is left out.

        Args:
            depth: levels below the model; a level of modules that are summed up is not counted.
        """
        yield from self.collapsed()._rows(0, depth, LEAST_WEIGHTS * self.weight_bytes)

    def __str__(self) -> str:
        lines = [HEADER, *(("  " * level + cells[0], *cells[1:]) for level, cells in self.rows())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ([c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines)
        return "\n".join((" " + "   ".join(cells)).rstrip() for cells in padded)

    def _repr_html_(self, depth: int = DEPTH) -> str:
        head = "".join(f"<th>{name}</th>" for name in HEADER)
        body = "".join(
            f'<tr><td style="padding-left:{0.5 + 1.2 * level:.1f}rem">'
            + "</td><td>".join(escape(cell) for cell in cells)
            + "</td></tr>"
            for level, cells in self.rows(depth)
        )
        return f"<table><tr>{head}</tr>{body}</table>"

    def _rows(self, level: int, depth: int, least_bytes: float) -> Iterator[Row]:
        yield level, self._cells()
        deeper = depth + (self.count > 1)
        if level < deeper:
            for child in self.children:
                if child._counts(least_bytes):
                    yield from child._rows(level + 1, deeper, least_bytes)

    def _counts(self, least_bytes: float) -> bool:
        if self.name == OTHER_WEIGHTS:
            return abs(self.weight_bytes) >= least_bytes
        if self.name not in ("", HOST):
            return True
        return bool(self.macs or self.weight_bytes or (self.share or 0.0) >= LEAST_SHARE)

    def _cells(self) -> tuple[str, ...]:
        name = printable(self.name or "(itself)")
        return (
            f"{name} ×{self.count}" if self.count > 1 else name,
            _listed(self.operators),
            show(self.macs / 1e9) if self.macs else "",
            show(self.weight_bytes / 2**20) if self.weight_bytes else "",
            "" if self.time_ms is None else show(self.time_ms),
            "" if self.share is None else f"{self.share:.1%}",
        )


def module_tree(
    graph: ModelGraph,
    operators: Sequence[OperatorCost] = (),
    *,
    name: str = "model",
    weights: Weights | None = None,
) -> ModuleCost:
    """Return the modules of a model with their subtotals.

    Args:
        graph: graph at the batch in question.
        operators: costs of its operators, with the host; empty if not known.
        name: name of the model.
        weights: its weights in memory; None for those of the graph, as the file has them.
    """
    weights = weights or Weights.of(graph)
    root = _Module("")
    for position, node in enumerate(graph.nodes):
        _at(root, node.path).own.append(position)
    costs = _Costs(graph, operators, weights)
    children = costs.below(root)
    if operators:
        children += [costs.host(cost) for cost in operators if cost.node is None]
    other = round(weights.total_bytes) - sum(child.weight_bytes for child in children)
    if other:
        children.append(costs.other_weights(other))
    return _total(name, "", children)


class Weights(NamedTuple):
    """The weights of a model in memory.

    Attributes:
        by_node: bytes that each operator is the first to read, shape (N,).
        total_bytes: bytes of all weights, copies included.
    """

    by_node: Sequence[float]
    total_bytes: float

    @classmethod
    def of(
        cls, graph: ModelGraph, precision: Precision = "fp32", total_bytes: float | None = None
    ) -> Self:
        """Return the weights at a precision, as the memory model counts them.

        Half precision halves what `.half()` does; autocast keeps the weights in float32, and its
        copies are part of the total. Of 8 bits the memory model says how far all weights shrink;
        without a total they are those of the half precision that an engine starts from.

        Args:
            graph: the model in float32, or as the file has it for "fp32".
            precision: number format, see `Conditions`.
            total_bytes: bytes by the memory model; None for the weights alone.
        """
        in_half = precision in ("fp16", "bf16", *EIGHT_BITS)
        by_node = weights_by_node(graph, in_half=in_half)
        whole = weight_bytes(graph, in_half=in_half)
        if total_bytes is None:
            return cls(by_node, whole)
        if precision in EIGHT_BITS and whole:
            by_node = [total_bytes / whole * size for size in by_node]
        return cls(by_node, total_bytes)


@dataclass(slots=True)
class _Module:
    """A module while its operators are collected."""

    path: str
    own: list[int] = field(default_factory=list)
    below: dict[str, _Module] = field(default_factory=dict)


def _at(root: _Module, path: str) -> _Module:
    """Return the module at a path; it is made if it is not there."""
    between, module = separator(path), root
    for name in path.split(between, MAX_DEPTH) if path else ():
        if name not in module.below:
            module.below[name] = _Module(module.path + between + name if module.path else name)
        module = module.below[name]
    return module


def separator(path: str) -> str:
    """Return what stands between the names of a path."""
    return "/" if "/" in path else "."


class _Costs:
    def __init__(
        self, graph: ModelGraph, operators: Sequence[OperatorCost], weights: Weights
    ) -> None:
        self.nodes, self.weights = graph.nodes, weights.by_node
        self.total_ms = sum(cost.time_ms for cost in operators)
        self.energies: dict[int | None, float] = {}
        self.times: dict[int | None, float] | None = None
        if operators:
            self.times = {}
            for cost in operators:  # of a training step an operator has a row for each pass
                self.times[cost.node] = self.times.get(cost.node, 0.0) + cost.time_ms
                if cost.energy_j is not None:
                    energy_j = self.energies.get(cost.node, 0.0) + cost.energy_j
                    self.energies[cost.node] = energy_j

    def below(self, module: _Module) -> list[ModuleCost]:
        """Return what a module consists of: its submodules, and what it runs itself."""
        children = [self.of(name, child) for name, child in module.below.items()]
        return [*children, self.leaf("", module)] if module.own else children

    def of(self, name: str, module: _Module) -> ModuleCost:
        """Return a module; one that only holds another is one with it."""
        if not module.below:
            return self.leaf(name, module)
        children = self.below(module)
        if len(children) == 1:
            only = children[0]
            return replace(only, name=name + separator(only.path) + only.name)
        return _total(name, module.path, children)

    def leaf(self, name: str, module: _Module) -> ModuleCost:
        """Return the operators that a module runs itself."""
        nodes = [self.nodes[i] for i in module.own]
        time_ms = None
        if self.times is not None:
            time_ms = sum(self.times.get(i, 0.0) for i in module.own)
        return ModuleCost(
            name=name,
            path=module.path,
            operators=dict(Counter(node.op for node in nodes)),
            macs=sum(node.macs for node in nodes),
            weight_bytes=round(sum(self.weights[i] for i in module.own)),
            time_ms=time_ms,
            share=None if time_ms is None else time_ms / (self.total_ms or 1.0),
            energy_j=sum(self.energies.get(i, 0.0) for i in module.own) if self.energies else None,
        )

    def host(self, cost: OperatorCost) -> ModuleCost:
        """Return a part of the latency that no operator has: the host's, that of an update."""
        share = cost.time_ms / (self.total_ms or 1.0)
        return ModuleCost(f"({cost.op})", "", {}, 0, 0, cost.time_ms, share, cost.energy_j)

    def other_weights(self, size: int) -> ModuleCost:
        """Return the weights in memory that no operator is the first to read."""
        time_ms = None if self.times is None else 0.0
        energy_j = 0.0 if self.energies else None
        return ModuleCost(OTHER_WEIGHTS, "", {}, 0, size, time_ms, time_ms, energy_j)


def _total(name: str, path: str, children: Sequence[ModuleCost]) -> ModuleCost:
    operators: Counter[str] = Counter()
    for child in children:
        operators.update(child.operators)
    return ModuleCost(
        name=name,
        path=path,
        operators=dict(operators),
        macs=sum(child.macs for child in children),
        weight_bytes=sum(child.weight_bytes for child in children),
        time_ms=_sum(child.time_ms for child in children),
        share=_sum(child.share for child in children),
        energy_j=_sum(child.energy_j for child in children),
        children=tuple(children),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _follows(before: ModuleCost, after: ModuleCost) -> bool:
    """Tell whether two modules are alike, and the name of one is the other's counted on by one."""
    if _NUMBER.sub("#", before.name) != _NUMBER.sub("#", after.name):
        return False
    numbers = (_NUMBER.findall(module.name) for module in (before, after))
    steps = [int(b) - int(a) for a, b in zip(*numbers, strict=True) if a != b]
    return steps == [1] and _alike(before, after)


def _alike(left: ModuleCost, right: ModuleCost) -> bool:
    return (
        left.operators == right.operators
        and (left.macs, left.weight_bytes) == (right.macs, right.weight_bytes)
        and len(left.children) == len(right.children)
        and all(
            a.name == b.name and _alike(a, b)
            for a, b in zip(left.children, right.children, strict=True)
        )
    )


def _summed(group: Sequence[ModuleCost]) -> Sequence[ModuleCost]:
    """Return modules alike as one; two single layers stay two, for that saves nothing."""
    if len(group) < (2 if group[0].children else 3):
        return group
    name = f"{group[0].name}–{group[-1].name}"
    return [replace(_sum_of(group), name=name, count=len(group))]


def _sum_of(modules: Sequence[ModuleCost]) -> ModuleCost:
    """Return the sum of alike modules, and of their children pairwise."""
    columns = zip(*(module.children for module in modules), strict=True)
    return replace(
        _total(modules[0].name, modules[0].path, modules),
        children=tuple(_sum_of(column) for column in columns),
        count=modules[0].count,
    )


def _rank(op: str) -> int:
    category = operator(op).category
    return 0 if category in ("compute", "recurrent") else 2 if category in ("copy", "view") else 1


def _listed(operators: Mapping[str, int]) -> str:
    """Return "conv2d ×3, add, 2 more": kinds that compute first, views last."""
    kinds = sorted(operators.items(), key=lambda kind: (_rank(kind[0]), -kind[1]))
    texts = [f"{printable(op)} ×{n}" if n > 1 else printable(op) for op, n in kinds[:_KINDS]]
    more = [f"{len(kinds) - _KINDS} more"] if len(kinds) > _KINDS else []
    return ", ".join([*texts, *more])
