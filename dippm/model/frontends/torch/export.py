"""`nn.Module` → exported program at the marker batch, without touching weights.

The module is copied to the meta device first. If its forward pass fails there, the original is
exported with fake inputs, and `torch.export` makes fake weights itself. A model whose work does not
scale with its batch is exported at a fixed batch, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.export import ExportedProgram

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.frontend import FORMS, InputSpec, marker_batch
from dippm.model.frontends.torch.batch_check import (
    BatchWatch,
    has_sequence_first,
    loses_batch,
    repeats_per_sample,
    same_work,
    watch_sequences,
)
from dippm.model.frontends.torch.call import Leaf, ModelCall, call_of_program, is_static
from dippm.model.frontends.torch.candidates import Attempt
from dippm.model.frontends.torch.constant_folding import constant_tensors
from dippm.model.frontends.torch.prepare import (
    evaluating,
    on_meta,
    quantization_notes,
    unwrapped,
    with_float_layers,
    without_weights,
)
from dippm.model.frontends.torch.script import check_not_rewritten, with_hidden_scripts
from dippm.model.frontends.torch.signature import candidate_calls

CHECK_BATCH = 13
"""A second batch, for exports whose first one does not show whether they scale."""

NO_BATCH = (
    "no input has a batch: the sizes were taken as those of one pass, which is what batch 1 means"
)
SEQUENCE_FIRST = (
    "layer {layer} takes its sequence before its batch (batch_first=False): the batch was taken "
    "as dimension 1 of {inputs}"
)
FIXED = (
    "the work of this model does not scale with its batch (it loops over samples, or sizes are "
    "fixed): fixed batch {batch}. For more samples give the complete input, such as {example}"
)


GRADIENTS = (
    "the model differentiates in its forward pass: the operators of its gradients are in the "
    "graph, and belong to no module"
)
FIXED_BY_GRADIENTS = (
    "the work of this model, with its gradients, does not scale with its batch: fixed batch {batch}"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported program and its batch.

    Attributes:
        program: the exported program.
        batch: batch of its inputs.
        batch_is_symbolic: whether the batch is a marker that stands for every batch.
        notes: assumptions, for the user.
    """

    program: ExportedProgram
    batch: int
    batch_is_symbolic: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AcceptedInputs:
    """Inputs without data that a module accepts.

    Attributes:
        tensors: meta tensors by input name, in the order of `forward`; "" is the first.
        call: function from tensors of these names to arguments.
    """

    tensors: Mapping[str, torch.Tensor]
    call: ModelCall


def export(module: torch.nn.Module, inputs: InputSpec) -> Exported:
    """Export a module at a marker batch, or a fixed one if its work does not scale with the batch.

    Args:
        module: any module; neither it nor its training flags are changed.
        inputs: shapes without the batch by parameter of `forward`; the module's own if empty.

    Raises:
        InputShapeError: if the inputs do not fit the model.
        ConversionError: if `torch.export` cannot trace the model.
    """
    module, notes = with_float_layers(with_hidden_scripts(unwrapped(module)))
    # A trace contains sizes of its example, and any scripted module may be a trace.
    is_trace = isinstance(module, torch.jit.ScriptModule)
    if isinstance(module, torch.jit.ScriptModule):
        check_not_rewritten(module)
    for candidate in candidate_calls(module, inputs):
        try:
            exported = _export(module, candidate.call(), inputs, is_trace=is_trace)
            break
        except (InputShapeError, ConversionError) as error:
            candidate.refusal = error
    if not exported.program.graph.output_node().all_input_nodes:
        raise ConversionError(
            f"{type(module).__name__} returns no tensor",
            "Predict the part of the model whose forward() returns one.",
        )
    return replace(exported, notes=(*quantization_notes(module), *notes, *exported.notes))


def accepted_inputs(module: torch.nn.Module, inputs: InputSpec, batch: int) -> AcceptedInputs:
    """Return inputs without data that the module accepts.

    Args:
        module: any module; it runs on tensors without data if it can be copied to them.
        inputs: shapes without the batch; the module's own if empty.
        batch: number of samples.

    Raises:
        InputShapeError: if the inputs fit with no choice of types.
    """
    module = unwrapped(module)
    copied = on_meta(module)
    subject = module if copied is None else copied

    for candidate in candidate_calls(module, inputs):
        try:
            found = _find_accepted(
                subject, candidate.call(), inputs, batch, on_meta=copied is not None
            )
            break
        except (InputShapeError, ConversionError) as error:
            candidate.refusal = error
    return found


def _find_accepted(
    module: torch.nn.Module, call: ModelCall, inputs: InputSpec, batch: int, *, on_meta: bool
) -> AcceptedInputs:
    """Return the accepted inputs of one call, with the errors of `accepted_inputs`."""
    with evaluating(module), torch.no_grad():
        attempt = Attempt(module, call, on_meta=on_meta)
        if has_sequence_first(module) and _misplaces_batch(attempt):
            call = replace(call, leaves=tuple(map(_with_batch_second, call.leaves)))
            attempt = Attempt(module, call, on_meta=on_meta)
        fitting = [choice for choice in attempt.choices if attempt.runs(batch, choice)]
        if not fitting and attempt.refused_inputs:
            raise attempt.error(str(inputs))
    dtypes = (fitting or attempt.choices)[0]  # the most likely ones if it cannot run without data
    tensors = {
        leaf.name: torch.empty(leaf.full_shape(batch), dtype=dtypes[leaf.name], device="meta")
        for leaf in call.leaves
    }
    return AcceptedInputs(tensors, call)


def re_export(program: ExportedProgram, inputs: InputSpec) -> Exported:
    """Export a saved program again at a marker batch, or at its own batch if that is fixed.

    Args:
        program: program loaded from a file.
        inputs: shapes without the batch; the program's own if empty.

    Raises:
        InputShapeError: if the inputs do not fit the program.
        ConversionError: if it cannot be traced again.
    """
    call, batch = call_of_program(program, inputs)
    module = program.module(check_guards=False)
    module._forward_pre_hooks.clear()  # hooks that check the sizes of the first export
    return _export(module, call, inputs, fixed_batch=batch, is_trace=is_static(program))


def strip_program(program: ExportedProgram) -> ExportedProgram:
    """Drop unread parts of a program in place: weights, examples and source positions.

    So are reads of numbers out of constant tensors: they were done while exporting, and a program
    with them cannot be loaded.
    """
    without_weights(program)
    program._example_inputs = None
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.item.default and node.meta.get("val") is None:
            program.graph.erase_node(node)
            continue
        for key in ("stack_trace", "source_fn_stack", "torch_fn", "from_node"):
            node.meta.pop(key, None)
    return program


def _export(
    module: torch.nn.Module,
    call: ModelCall,
    inputs: InputSpec,
    *,
    fixed_batch: int = 1,
    is_trace: bool = False,
) -> Exported:
    copied = on_meta(module)
    subject = copied if copied is not None else module
    kept = constant_tensors(module)
    attempt = Attempt(subject, call, on_meta=copied is not None, kept=kept)
    with evaluating(subject), torch.no_grad():
        exported = _at_some_batch(attempt, fixed_batch, is_trace=is_trace)
    if exported is None and copied is not None and not attempt.refused_inputs:
        with evaluating(module), torch.no_grad():
            second = Attempt(module, call, on_meta=False, kept=kept)
            exported = _at_some_batch(second, fixed_batch, is_trace=is_trace)
            attempt = second if exported is not None else attempt
            if exported is not None:
                without_weights(exported.program)
    if exported is None:
        raise attempt.error(str(inputs))
    return replace(exported, notes=(*call.notes, *attempt.remarks, *exported.notes))


def _at_some_batch(attempt: Attempt, fixed_batch: int, *, is_trace: bool) -> Exported | None:
    """Export at a marker batch if it stands for every batch, else at the fixed one."""
    if not attempt.call.has_batch:
        program = attempt.export_at(1)
        if attempt.gradients.asked:
            return _export_with_gradients(attempt, 1, 1)
        program = (
            attempt.export_selecting_all(1)
            or program
            or attempt.export_with_bounds(1)
            or attempt.export_with_folding(1)
        )
        program = program or attempt.export_with_even_experts(1)
        if program is None:
            return None
        assumed = () if attempt.call.notes else (NO_BATCH,)
        return Exported(program, 1, False, (*assumed, *attempt.notes))
    marker = marker_batch(_sizes(attempt))
    program = attempt.export_at(marker, watched=True)
    if attempt.gradients.asked:
        return _export_with_gradients(attempt, marker, fixed_batch)
    watch = attempt.watch
    if not watch.is_cut and (watch.misplaced or program is None):
        other = _sequence_first(attempt, marker)
        if other is not None:
            return other
    program = attempt.export_selecting_all(marker) or program
    if program is None and not watch.is_cut:
        program = attempt.export_with_folding(marker, watched=True)
    notes = attempt.notes
    if program is not None and _scales(attempt, program, marker, is_trace=is_trace):
        return Exported(program, marker, True, notes)
    attempt.forget()
    if program is None and not watch.is_cut:
        program = attempt.export_with_even_experts(marker, is_marker=True)
        if program is not None and not loses_batch(program, marker):
            return Exported(program, marker, True, attempt.notes)
    if is_trace:  # its fixed sizes refuse a marker, which proves nothing
        attempt.first_error = attempt.forward_error = None
    program = attempt.export_at(fixed_batch)
    program = attempt.export_selecting_all(fixed_batch) or program
    ways = (
        attempt.export_with_bounds,
        attempt.export_with_folding,
        attempt.export_with_even_experts,
    )
    program = program or next((p for way in ways if (p := way(fixed_batch)) is not None), None)
    if program is None:
        return None
    first = attempt.call.leaves[0]
    example = ",".join(map(str, first.full_shape(8)))
    note = FIXED.format(batch=fixed_batch, example=f'input="{first.name and "..."}fixed:{example}"')
    return Exported(program, fixed_batch, False, (note, *attempt.notes))


def _export_with_gradients(attempt: Attempt, marker: int, fixed_batch: int) -> Exported | None:
    """Export a model that computes gradients, at the marker if it stands for every batch."""
    program = attempt.export_with_gradients(marker) if attempt.call.has_batch else None
    if program is not None:
        second = (
            attempt.export_with_gradients(CHECK_BATCH) if loses_batch(program, marker) else None
        )
        if second is None or same_work(program, marker, second, CHECK_BATCH):
            return Exported(program, marker, True, (GRADIENTS,))
    program = attempt.export_with_gradients(fixed_batch)
    note = NO_BATCH if not attempt.call.has_batch else FIXED_BY_GRADIENTS.format(batch=fixed_batch)
    return None if program is None else Exported(program, fixed_batch, False, (GRADIENTS, note))


def _scales(attempt: Attempt, program: ExportedProgram, marker: int, *, is_trace: bool) -> bool:
    loses = loses_batch(program, marker)
    if not loses and not repeats_per_sample(program, marker):
        return True
    if loses and is_trace:  # a second export would have the same fixed sizes
        return False
    second = attempt.export_at(CHECK_BATCH)
    return second is not None and same_work(program, marker, second, CHECK_BATCH)


def _sequence_first(attempt: Attempt, marker: int) -> Exported | None:
    """Export with the batch as dimension 1, if sequence-first layers expect it there.

    Raises:
        InputShapeError: if they mix the samples of a batch at either axis.
    """
    misplaced = attempt.watch.misplaced
    open_leaves = [leaf for leaf in attempt.call.leaves if not leaf.named]
    if not open_leaves or not (misplaced or has_sequence_first(attempt.module)):
        return None
    leaves = tuple(map(_with_batch_second, attempt.call.leaves))
    other = attempt.with_call(replace(attempt.call, leaves=leaves))
    program = other.export_at(marker, watched=True) or other.export_with_folding(
        marker, watched=True
    )
    if program is not None and other.watch.placed and not other.watch.misplaced:
        moved = [
            x.name or "the input"
            for x, y in zip(leaves, attempt.call.leaves, strict=True)
            if x is not y
        ]
        note = SEQUENCE_FIRST.format(layer=other.watch.placed[0], inputs=", ".join(moved))
        return Exported(program, marker, True, (note,))
    if not misplaced:
        return None
    sizes = attempt.call.first_shape
    first, second = (",".join(map(str, (*sizes[:place], "N", *sizes[place:]))) for place in (0, 1))
    raise InputShapeError(
        f"layer {misplaced[0]} takes its sequence before its batch (batch_first=False), and would "
        "get the batch as its sequence",
        f'Say where the batch is: input="{second}" if it comes second, input="{first}" if it is '
        f"meant so. {FORMS}",
    )


def _misplaces_batch(attempt: Attempt) -> bool:
    """Return whether a sequence-first layer receives the batch as its sequence."""
    watch = BatchWatch(marker_batch(_sizes(attempt)))
    end = watch_sequences(attempt.module, watch)
    try:
        Attempt(attempt.module, attempt.call, on_meta=attempt.on_meta).runs(
            watch.batch, attempt.choices[0]
        )
    finally:
        end()
    return bool(watch.misplaced)


def _with_batch_second(leaf: Leaf) -> Leaf:
    if leaf.named or leaf.batch_axis != 0 or not leaf.shape:
        return leaf
    return replace(leaf, batch_axis=1)


def _sizes(attempt: Attempt) -> set[int]:
    sizes = {size for leaf in attempt.call.leaves for size in leaf.shape}
    for tensor in (*attempt.module.parameters(), *attempt.module.buffers()):
        sizes.update(tensor.shape)
    return sizes
