"""`read`: raw graph → draft with canonical operator names and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dippm.base.progress import counted
from dippm.model.graph.dialects.call import RawCall
from dippm.model.graph.dialects.products import sums_products
from dippm.model.graph.dialects.readers import READERS
from dippm.model.graph.draft import Draft, Value
from dippm.model.graph.operators import IDENTITIES, Operator, canonical_name, operator, split_name
from dippm.model.relax.raw_graph import HELD_UNTIL, IN_PLACE, RawGraph, RawOperator, RawValue

_COPIES = frozenset({"clone", "contiguous"})


def read(raw: RawGraph, *, keep_static: bool = False) -> Draft:
    """Return the draft of a raw graph; operators without a canonical name keep their own.

    Args:
        raw: operators as a frontend read them.
        keep_static: whether all operators on parameters alone become nodes too; their results
            remain static.
    """
    draft = Draft(raw.batch)
    values = [Value(v.shape, v.dtype, name=v.name) for v in raw.values]
    for position, (value, source) in enumerate(zip(values, raw.values, strict=True)):
        value.scalar = source.scalar
        value.is_static = source.kind in ("parameter", "constant")
        if source.kind == "parameter" or (value.is_static and not _is_made_for_batch(source, raw)):
            value.roots = frozenset((position,))
            draft.parameters[position] = (source.shape, source.dtype)
    draft.inputs = [values[i] for i in raw.inputs]
    draft.outputs = [values[i] for i in raw.outputs]
    tables = (
        ParameterLayers(frozenset(), frozenset()) if keep_static else find_parameter_layers(raw)
    )
    cloned: dict[int, Value] = {}
    operators = counted(raw.operators, len(raw.operators), "naming operator")
    for position, one in enumerate(operators):
        call = RawCall(
            draft,
            one.name,
            [values[i] for i in one.inputs],
            [values[i] for i in one.outputs],
            one.attributes,
        )
        draft.path, draft.origin = one.path, position
        if not call.outputs:
            continue
        if position in tables.layers or position in tables.makers:
            _read_table(call, one, cloned, makes_weight=position in tables.makers)
        elif not fold_static(call) or keep_static:
            _read_call(call)
        if IN_PLACE in one.attributes and (maker := call.outputs[0].producer) is not None:
            maker.in_place = True
        until = one.attributes.get(HELD_UNTIL)
        if isinstance(until, int) and (maker := call.outputs[0].producer) is not None:
            maker.held_until = max(maker.held_until, until)
    draft.path, draft.origin = "", -1
    draft.unread.extend(values[i] for i in unread_results(raw) if values[i].producer is not None)
    return draft


def _read_table(
    call: RawCall, operator: RawOperator, cloned: dict[int, Value], *, makes_weight: bool
) -> None:
    """Read an operator on parameters alone as a node; see `find_parameter_layers`."""
    if makes_weight:
        fold_static(call)
        call.outputs = [Value(out.shape, out.dtype) for out in call.outputs]
        call.draft.unread.extend(call.outputs[:1])
    if all(value.is_static for value in call.inputs):
        for slot in data_slots(operator, [v.shape for v in call.inputs]):
            value = call.inputs[slot]
            call.inputs[slot] = cloned.setdefault(id(value), as_activation(value))
    _read_call(call)


def _is_made_for_batch(constant: RawValue, raw: RawGraph) -> bool:
    """Return whether a constant is one number or sized by the batch, thus no weight.

    Exporters fold initial states and masks for the batch of the export.
    """
    sized = raw.batch_is_symbolic and any(n and n % raw.batch == 0 for n in constant.shape)
    return sized or constant.scalar is not None


def is_read(name: str) -> bool:
    """Return whether operators of this name in a dialect ("aten.hardswish") have a meaning."""
    dialect, bare = split_name(name)
    known = canonical_name(dialect, bare) is not None or bare in IDENTITIES
    return known or not READERS.keys().isdisjoint((f"{dialect}.{bare}", bare))


def _read_call(call: RawCall) -> None:
    dialect, bare = split_name(call.name)
    name = canonical_name(dialect, bare)
    keys = (f"{dialect}.{bare}", bare, name or "")
    reader = next((READERS[key] for key in keys if key in READERS), None)
    if reader is not None and reader(call):
        return
    if bare in IDENTITIES and call.inputs:
        copied = {"copies": bare} if bare in _COPIES else {}
        order = call.text("memory_format", default="") if copied else ""
        call.emit("identity", call.inputs[:1], **copied, **({"order": order} if order else {}))
        return
    call.emit(name or call.name, call.inputs)


# R1: values that depend only on parameters and constants are not part of the graph.
#
# This happens while reading, because everything else needs weights and activations apart. Work that
# an eager framework repeats on every pass (a relative position bias, a standardised weight) is
# recorded on the resulting value.


_FREE_NAMES = """
    reshape view unsafeview flatten unflatten squeeze unsqueeze expanddims broadcastto expand
    permutedims transpose permute swapaxes split slice stridedslice select take narrow unbind
    cast astype to tocopy copy shapeof shapetotensor tensortoshape
"""
_FREE = frozenset(_FREE_NAMES.split())


def fold_static(call: RawCall) -> bool:
    """Mark the results of a call static if all its arguments are; return whether that is so."""
    if not all(value.is_static for value in call.inputs):
        return False
    roots = frozenset(root for value in call.inputs for root in value.roots)
    work = tuple(dict.fromkeys(w for value in call.inputs for w in value.static_work))
    name = _work(call.name)
    for out in call.outputs:
        out.is_static = True
        out.roots = roots
        out.static_work = (*work, name) if name else work
    only = call.inputs[0] if len(call.inputs) == 1 else None
    if only is not None and only.scalar is not None and not name and call.outputs[0].size == 1:
        call.outputs[0].scalar = only.scalar
    return True


def _work(raw_name: str) -> str:
    """Return the canonical name of a static operator that launches a kernel, else ""."""
    dialect, bare = split_name(raw_name)
    if bare in _FREE or bare in IDENTITIES:
        return ""
    name = canonical_name(dialect, bare) or bare
    return "" if operator(name).category == "view" else name


# Layers with an unread result: the text branch of a last block, a head that is not returned.
#
# Eager PyTorch runs them, so they and their successors are nodes that lead to no output. Dead code
# without a layer (a mask, a shape) is dropped: it costs next to nothing. Other frameworks prune
# before they run.


def unread_results(raw: RawGraph) -> tuple[int, ...]:
    """Return the positions of the last values after unread layers; empty if they do not run."""
    if not raw.is_of_pytorch:
        return ()
    needed = set(raw.outputs)
    dead = []
    for one in reversed(raw.operators):
        if needed.isdisjoint(one.outputs):
            dead.append(one)
        else:
            needed.update(one.inputs)
    depends = set(raw.inputs)
    if any(multiplies(one) for one in dead):
        for one in raw.operators:
            if not depends.isdisjoint(one.inputs):
                depends.update(one.outputs)
    worked: set[int] = set()
    read: set[int] = set()
    for one in reversed(dead):
        layer = multiplies(one) and not depends.isdisjoint(one.inputs)
        if layer or not worked.isdisjoint(one.inputs):
            worked.update(one.outputs)
            read.update(one.inputs)
    return tuple(sorted(worked - read))


# Layers on parameters alone: position tables through an MLP, rotary tables, learned queries.
#
# An eager framework runs them on every pass, and so does a compiler that takes parameters as
# inputs, as torch.compile does unless it freezes them. So they are nodes of the graph with their
# MACs, and so are the operators before and after them. A product that only computes a weight (the
# norm of a spectral norm, a merged adapter) is a node that leads to no output, and the weight
# remains a weight. No other operator on parameters alone is a node.


_LEFT = {"addmm": 1, "baddbmm": 1, "addmv": 1, "addbmm": 1}
"""Position of the left factor by operator, if it is not the first argument."""


@dataclass(frozen=True, slots=True)
class ParameterLayers:
    """Positions of the raw operators on parameters alone that become nodes.

    Attributes:
        layers: operators whose results are activations.
        makers: operators whose results are weights.
    """

    layers: frozenset[int]
    makers: frozenset[int]


def find_parameter_layers(raw: RawGraph) -> ParameterLayers:
    """Return the operators on parameters alone that become nodes."""
    static = [value.kind in ("parameter", "constant") for value in raw.values]
    alone = []
    for operator_ in raw.operators:
        depends = all(static[i] for i in operator_.inputs)
        alone.append(depends)
        for i in operator_.outputs:
            static[i] = depends
    heavy = {i for i, o in enumerate(raw.operators) if alone[i] and multiplies(o)}
    if not heavy:
        return ParameterLayers(frozenset(), frozenset())
    data = [False] * len(raw.values)  # whether the value is read other than as a weight
    wanted = [False] * len(raw.values)  # whether a kept layer reads the value
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
    return ParameterLayers(frozenset(layers), frozenset(heavy - layers))


def data_slots(call: RawOperator, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the positions of the arguments that play the role of a layer's activations."""
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


def as_activation(value: Value) -> Value:
    """Return a static value as an activation without a producer in the graph."""
    data = Value(value.shape, value.dtype, name=value.name)
    data.static_work = value.static_work
    return data


def _row(call: RawOperator) -> Operator:
    dialect, bare = split_name(call.name)
    return operator(canonical_name(dialect, bare) or "")


def multiplies(call: RawOperator) -> bool:
    """Return whether an operator does multiply-accumulates."""
    row = _row(call)
    if row.name == "einsum":
        return sums_products(str(call.attributes.get("equation", "")))
    return row.macs is not None


def _works(call: RawOperator, row: Operator, raw: RawGraph) -> bool:
    """Return whether an operator before a layer launches a kernel that is worth a node."""
    identity = split_name(call.name)[1] in IDENTITIES
    free = row.category == "view" or row.kernel == "none" or identity
    out = raw.values[call.outputs[0]] if call.outputs else None
    if free or not call.inputs or out is None or "float" not in out.dtype:
        return False
    return any(size > 1 for size in out.shape)


def _is_weight(call: RawOperator, row: Operator, slot: int, rank: int) -> bool:
    """Return whether an argument of a layer is its weight."""
    if row.category == "recurrent" or row.category == "norm":
        return slot > 0
    if row.macs is None or row.name == "attention":
        return False
    left = _LEFT.get(split_name(call.name)[1], 0)
    return slot != left and (row.kernel == "convolution" or rank <= 2)
