"""`read`: raw graph → draft with canonical operator names and attributes."""

from __future__ import annotations

from dippm.graph.dialects.call import Call
from dippm.graph.dialects.names import IDENTITIES, canonical_name, fold
from dippm.graph.dialects.readers import READERS
from dippm.graph.dialects.static import fold_static
from dippm.graph.draft import Draft, Value
from dippm.relax.raw_graph import RawGraph


def read(raw: RawGraph) -> Draft:
    """Return a draft of a raw graph; operators without a canonical name keep their own."""
    draft = Draft(raw.batch)
    values = [Value(v.shape, v.dtype, name=v.name) for v in raw.values]
    for position, (value, source) in enumerate(zip(values, raw.values, strict=True)):
        value.scalar = source.scalar
        if source.kind == "parameter" or (source.kind == "constant" and source.scalar is None):
            value.is_static = True
            value.roots = frozenset((position,))
            draft.parameters[position] = (source.shape, source.dtype)
        elif source.kind == "constant":
            value.is_static = True
    draft.inputs = [values[i] for i in raw.inputs]
    draft.outputs = [values[i] for i in raw.outputs]
    for operator in raw.operators:
        call = Call(
            draft,
            operator.name,
            [values[i] for i in operator.inputs],
            [values[i] for i in operator.outputs],
            operator.attributes,
        )
        if call.outputs and not fold_static(call):
            _read_call(call)
    return draft


def _read_call(call: Call) -> None:
    dialect, bare = fold(call.name)
    reader = READERS.get(f"{dialect}.{bare}") or READERS.get(bare)
    if reader is not None and reader(call):
        return
    if bare in IDENTITIES and call.inputs:
        call.emit("identity", call.inputs[:1])
        return
    name = canonical_name(dialect, bare)
    call.emit(name or call.name, call.inputs)
