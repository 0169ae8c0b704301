"""`read`: raw graph → draft with canonical operator names and attributes."""

from __future__ import annotations

from dippm.graph.dialects.call import Call
from dippm.graph.dialects.names import IDENTITIES, canonical_name, fold
from dippm.graph.dialects.readers import READERS
from dippm.graph.dialects.static import fold_static
from dippm.graph.draft import Draft, Value
from dippm.relax.raw_graph import RawGraph, RawValue


def read(raw: RawGraph) -> Draft:
    """Return a draft of a raw graph; operators without a canonical name keep their own."""
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
    for operator in raw.operators:
        call = Call(
            draft,
            operator.name,
            [values[i] for i in operator.inputs],
            [values[i] for i in operator.outputs],
            operator.attributes,
        )
        draft.path = operator.path
        if call.outputs and not fold_static(call):
            _read_call(call)
    draft.path = ""
    return draft


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
        call.emit("identity", call.inputs[:1])
        return
    call.emit(name or call.name, call.inputs)
