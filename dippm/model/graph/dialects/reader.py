"""`read`: raw graph → draft with canonical operator names and attributes."""

from __future__ import annotations

from dippm.base.progress import counted
from dippm.model.graph.dialects.call import Call
from dippm.model.graph.dialects.names import IDENTITIES, canonical_name, fold
from dippm.model.graph.dialects.readers import READERS
from dippm.model.graph.dialects.reader import Tables, as_data, data_slots, find_tables, multiplies
from dippm.model.graph.draft import Draft, Value
from dippm.model.graph.operators import operator
from dippm.model.relax.raw_graph import HELD_UNTIL, IN_PLACE, RawGraph, RawOperator, RawValue

_COPIES = frozenset({"clone", "contiguous"})


def read(raw: RawGraph, *, keep_static: bool = False) -> Draft:
    """Return a draft of a raw graph; operators without a canonical name keep their own.

    Args:
        raw: what a frontend read.
        keep_static: whether operators on parameters alone are nodes too, all of them; their results
            are static still.
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
    tables = Tables(frozenset(), frozenset()) if keep_static else find_tables(raw)
    cloned: dict[int, Value] = {}
    operators = counted(raw.operators, len(raw.operators), "naming operator")
    for position, one in enumerate(operators):
        call = Call(
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
    draft.beside.extend(values[i] for i in unread_results(raw) if values[i].producer is not None)
    return draft


def _read_table(
    call: Call, operator: RawOperator, cloned: dict[int, Value], *, makes_weight: bool
) -> None:
    """Read an operator on parameters alone as a node; see `tables`."""
    if makes_weight:
        fold_static(call)
        call.outputs = [Value(out.shape, out.dtype) for out in call.outputs]
        call.draft.beside.extend(call.outputs[:1])
    if all(value.is_static for value in call.inputs):
        for slot in data_slots(operator, [v.shape for v in call.inputs]):
            value = call.inputs[slot]
            call.inputs[slot] = cloned.setdefault(id(value), as_data(value))
    _read_call(call)


def _is_made_for_batch(constant: RawValue, raw: RawGraph) -> bool:
    """Tell whether a constant is a number or sized by the batch, thus no part of the model.

    Exporters fold initial states and masks for the batch that they were given.
    """
    sized = raw.batch_is_symbolic and any(n and n % raw.batch == 0 for n in constant.shape)
    return sized or constant.scalar is not None


def _read_call(call: Call) -> None:
    dialect, bare = fold(call.name)
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


# R1: whatever depends only on parameters and constants is no part of the graph.
#
# It happens while reading, because weights must be told from activations before anything else.
# What an eager framework computes from parameters on every pass (a relative position bias, a
# standardised weight) is remembered on the value that results.


_FREE_NAMES = """
    reshape view unsafeview flatten unflatten squeeze unsqueeze expanddims broadcastto expand
    permutedims transpose permute swapaxes split slice stridedslice select take narrow unbind
    cast astype to tocopy copy shapeof shapetotensor tensortoshape
"""
_FREE = frozenset(_FREE_NAMES.split())


def fold_static(call: Call) -> bool:
    """Mark the results of a call static if all its arguments are; return whether they are."""
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
    """Return the canonical name of the kernel that a static operator launches, "" if none."""
    dialect, bare = fold(raw_name)
    if bare in _FREE or bare in IDENTITIES:
        return ""
    name = canonical_name(dialect, bare) or bare
    return "" if operator(name).category == "view" else name


# Layers whose result nobody reads: the text branch of a last block, a head that is not returned.
#
# Eager PyTorch runs what is written, so they are nodes beside the graph, with what follows them.
# What is dead without a layer (a mask, a shape) is no node: it costs next to nothing. Other
# frameworks prune before they run.


def unread_results(raw: RawGraph) -> tuple[int, ...]:
    """Return the positions of the values that unread layers end in; empty unless they are run."""
    if not raw.runs_unread:
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
