"""Layers on parameters alone: position tables through an MLP, rotary tables, learned queries.

An eager framework runs them on every pass, and so does a compiler that takes parameters as inputs,
as torch.compile does unless told to freeze them: they are nodes of the graph, with their MACs. What
leads to them and what follows them are nodes too. A product that only makes a weight (the norm of
a spectral norm, a merged adapter) is a node beside the graph, and the weight stays a weight.
Anything else that depends on parameters alone is no node, see `static`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dippm.model.graph.dialects.einsum import sums_products
from dippm.model.graph.dialects.names import IDENTITIES, canonical_name, fold
from dippm.model.graph.draft import Value
from dippm.model.graph.operators import Operator, operator
from dippm.model.relax.raw_graph import RawGraph, RawOperator

_LEFT = {"addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}
"""Where the left factor stands, if it is not the first argument."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Positions of raw operators that work on parameters alone and are counted.

    Attributes:
        layers: whose results are activations.
        makers: whose results are weights.
    """

    layers: frozenset[int]
    makers: frozenset[int]


def find_tables(raw: RawGraph) -> Tables:
    """Tell which operators on parameters alone are counted as layers."""
    static = [value.kind in ("parameter", "constant") for value in raw.values]
    alone = []
    for operator_ in raw.operators:
        depends = all(static[i] for i in operator_.inputs)
        alone.append(depends)
        for i in operator_.outputs:
            static[i] = depends
    heavy = {i for i, o in enumerate(raw.operators) if alone[i] and multiplies(o)}
    if not heavy:
        return Tables(frozenset(), frozenset())
    data = [False] * len(raw.values)  # whether anything reads the value other than as a weight
    wanted = [False] * len(raw.values)  # whether a layer that is kept reads it
    for i in raw.outputs:
        data[i] = True
    layers: set[int] = set()
    for position in range(len(raw.operators) - 1, -1, -1):
        call = raw.operators[position]
        row = _row(call)
        read = any(data[i] for i in call.outputs) or not alone[position]
        needed = any(wanted[i] for i in call.outputs)
        if alone[position] and (
            (position in heavy and read) or (needed and _works(call, row, raw))
        ):
            layers.add(position)
        kept = position in layers
        for slot, i in enumerate(call.inputs):
            if static[i]:
                as_weight = _is_weight(call, row, slot, len(raw.values[i].shape))
                data[i] = data[i] or (read and not as_weight)
                wanted[i] = wanted[i] or ((kept or needed) and not as_weight)
    return Tables(frozenset(layers), frozenset(heavy - layers))


def data_slots(call: RawOperator, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return which arguments of a layer on parameters stand for its activations."""
    row = _row(call)
    if row.kernel == "gather":
        return [1] if len(call.inputs) > 1 else [0]
    if row.name == "concat":
        return list(range(len(call.inputs)))
    if row.name == "einsum":
        return [0]
    if row.macs is not None:
        return [s for s in range(len(shapes)) if not _is_weight(call, row, s, len(shapes[s]))]
    return [0]


def as_data(value: Value) -> Value:
    """Return a static value as an activation that nothing in the graph makes."""
    data = Value(value.shape, value.dtype, name=value.name)
    data.static_work = value.static_work
    return data


def _row(call: RawOperator) -> Operator:
    dialect, bare = fold(call.name)
    return operator(canonical_name(dialect, bare) or "")


def multiplies(call: RawOperator) -> bool:
    """Return whether an operator does multiply-accumulates."""
    row = _row(call)
    if row.name == "einsum":
        return sums_products(str(call.attributes.get("equation", "")))
    return row.macs is not None


def _works(call: RawOperator, row: Operator, raw: RawGraph) -> bool:
    """Tell whether an operator before a layer launches something that is worth a node."""
    identity = fold(call.name)[1] in IDENTITIES
    free = row.category == "view" or row.kernel == "none" or identity
    out = raw.values[call.outputs[0]] if call.outputs else None
    if free or not call.inputs or out is None or "float" not in out.dtype:
        return False
    return any(size > 1 for size in out.shape)


def _is_weight(call: RawOperator, row: Operator, slot: int, rank: int) -> bool:
    """Tell whether an argument of a layer is its weight."""
    if row.category == "recurrent" or row.category == "norm":
        return slot > 0
    if row.macs is None or row.name == "attention":
        return False
    left = _LEFT.get(fold(call.name)[1], 0)
    return slot != left and (row.kernel == "convolution" or rank <= 2)
