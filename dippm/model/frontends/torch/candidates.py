"""Attempts to export a module at a batch, with every plausible choice of input types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.export import ExportedProgram

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.torch.batch_check import (
    BatchMissedError,
    BatchWatch,
    ScriptWatch,
    watch_sequences,
)
from dippm.model.frontends.torch.call import ModelCall
from dippm.model.frontends.torch.constant_folding import (
    ConstantFolding,
    ConstantTensors,
    settings_of,
)
from dippm.model.frontends.torch.data_dependent_sizes import UpperBoundSizes, with_positions
from dippm.model.frontends.torch.experts import Experts
from dippm.model.frontends.torch.gradients import GradientRequests, trace_with_gradients
from dippm.model.frontends.torch.higher_order_operators import (
    autocast_without_data,
    inline_regions,
    unfold_control_flow,
    with_plain_attention,
)
from dippm.model.frontends.torch.lifetimes import annotate_lifetimes, watch_lifetimes
from dippm.model.frontends.torch.paths import note_paths, place_of
from dippm.model.frontends.torch.prepare import keeping_attributes
from dippm.model.frontends.torch.recurrent import PACKED, PaddedSequences, whole_recurrent_layers
from dippm.model.frontends.torch.script import has_scripts, run_script, script_place
from dippm.model.frontends.torch.signature import (
    EDGES,
    MASK_NAME,
    dtype_choices,
    float_dtype,
    forward_parameters,
    shape_hint,
)
from dippm.model.relax.torch_programs import with_whole_batches, without_source

TRUTH = (
    "input {name} was taken for truth values that select rows (its sizes fit what it indexes); "
    'input="{given}int:{sizes}" says that it holds positions'
)
_ON_DATA = (NotImplementedError, DynamicOutputShapeException, DataDependentOutputException)
_DEVICE = re.compile(r"same device|expected device")
_SELECTS = re.compile(r"nonzero|masked_select")
_READS_DATA = ("data-dependent", "depends on data", "Tensor.item()", "on meta tensors")
_ERROR_OF_SCRIPT = re.compile(r"[\w.]*(Error|Exception): ")
_OUR_WORDS = (
    "meta",
    "same device",
    "data-dependent",
    "DataDependent",
    "view size is not compatible",
    "combine_mode='pointwise'",
)
"""Parts of errors that only tensors without data cause: attention returns other strides there."""


_MANY_FACTORS = 2880
"""A batch that most numbers of frames or patches divide: all to 6, 8, 9, 10, 12, 15, 16, 32, 64."""


@dataclass(frozen=True, slots=True)
class Folding:
    """Extent of constant folding while a module runs, see `constant_folding`.

    Attributes:
        known: constant tensors of the module.
        everywhere: whether constants stay known on another device.
    """

    known: ConstantTensors
    everywhere: bool = False


class Attempt:
    """Attempts to export one module with one call.

    Attributes:
        module: the module in evaluation mode.
        call: its arguments.
        on_meta: whether the module, and thus its inputs, is on the meta device.
        kept: its constant tensors from before it lost its data, see `constant_folding`.
        choices: element types of the inputs, most likely first.
        watch: use of the batch during the last export.
        gradients: record of the module's requests for gradients.
        notes: remarks on the last export, for the user.
        first_error: first error of an export.
        forward_error: first error of the module itself on tensors without data.
        last_error: error of its last run; None if that succeeded.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: ModelCall,
        *,
        on_meta: bool,
        kept: ConstantTensors | None = None,
    ) -> None:
        self.module, self.call, self.on_meta = module, call, on_meta
        self._kept = kept or {}
        known = {leaf.name: leaf.dtype for leaf in call.leaves if leaf.dtype is not None}
        unknown = [leaf.name for leaf in call.leaves if leaf.dtype is None]
        self.choices = [
            {**known, **choice} for choice in dtype_choices(unknown, float_dtype(module))
        ]
        self.watch = BatchWatch(0)
        self.notes: tuple[str, ...] = ()
        self.first_error: Exception | None = None
        self.forward_error: Exception | None = None
        self.last_error: Exception | None = None
        self.gradient_error: Exception | None = None
        self._makes_meta, self._works_at = False, ""
        self._is_script = isinstance(module, torch.jit.ScriptModule)
        self._has_scripts = has_scripts(module)
        self._sizes = UpperBoundSizes()
        self._noted: dict[str, None] = {}
        self.gradients, self._padded = GradientRequests(), PaddedSequences()
        self._folding: Folding | None = None
        self.forget()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Assumptions of all exports, for the user."""
        return (*((PACKED,) if self._padded.seen else ()), *self._noted)

    def with_call(self, call: ModelCall) -> Attempt:
        """Return attempts to export the same module with another call."""
        return Attempt(self.module, call, on_meta=self.on_meta, kept=self._kept)

    def export_at(self, batch: int, *, watched: bool = False) -> ExportedProgram | None:
        """Return the program at a batch, None if the module cannot be exported there.

        Args:
            batch: number of samples, or a marker.
            watched: whether the batch is a marker whose use is observed; see `watch`.
        """
        self.notes = ()
        program = self._export(batch, self.choices[0], watched=watched)
        if program is not None or self.watch.is_cut or self.watch.misplaced:
            return program
        reads: list[tuple[dict[str, torch.dtype], Exception | None]] = []
        for dtypes in self.choices:
            on_mask = not self.runs(batch, dtypes) and self._fails_on_mask(dtypes, not reads)
            if on_mask or self.last_error is None:
                return self._export_first(batch, dtypes, self.last_error, watched=watched)
            if _is_on_data(self.last_error):
                reads.append((dtypes, self.last_error))
        if reads and reads[0][0] is not self.choices[0]:  # right, but it reads data
            return self._export_first(batch, *reads[0], watched=watched)
        return None

    def _export_first(
        self, batch: int, dtypes: dict[str, torch.dtype], error: Exception | None, *, watched: bool
    ) -> ExportedProgram | None:
        """Export with a choice, moved to the front; `error` is that of its run without data."""
        if error is not None:  # earlier choices had wrong types
            self.first_error, self.forward_error = None, error
        self.choices.remove(dtypes)
        self.choices.insert(0, dtypes)
        return self._export(batch, dtypes, watched=watched)

    def _fails_on_mask(self, dtypes: Mapping[str, torch.dtype], is_first: bool) -> bool:
        """Return whether the last run had the right types, but failed on a selection by a mask.

        If other types got as far before, only inputs named as masks count as masks.
        """
        masks = [n for n, d in dtypes.items() if d is torch.bool and not EDGES.search(n)]
        if any(MASK_NAME.search(name) for name in masks):
            return isinstance(self.last_error, _ON_DATA)
        return is_first and bool(masks) and self._selects()

    def _selects(self) -> bool:
        """Return whether the last run failed on rows that truth values select."""
        on_data = isinstance(self.last_error, _ON_DATA) or self._is_script  # its errors are text
        return on_data and bool(_SELECTS.search(str(self.last_error)))

    def export_selecting_all(self, batch: int) -> ExportedProgram | None:
        """Return the program if boolean inputs select rows, and keep all rows.

        A model that accepts positions may also accept one truth value per row. If the sizes fit
        those, they are meant: as positions, each would select a whole row again.
        """
        stated = {leaf.name for leaf in self.call.leaves if leaf.dtype is not None}
        first = self.choices[0]
        whole = [n for n, d in first.items() if d is torch.int64 and n not in stated]
        whole = [n for n in whole if not EDGES.search(n)]
        for names in ([], *([name] for name in whole), whole if len(whole) > 1 else []):
            dtypes = {**first, **dict.fromkeys(names, torch.bool)}
            errors = self.first_error, self.forward_error
            has_truth = torch.bool in dtypes.values()
            fails = has_truth and not self.runs(batch, dtypes)
            selects = fails and (self._has_scripts or self._selects())  # scripts give no reason
            program = self._export(batch, dtypes, sizes=UpperBoundSizes()) if selects else None
            if program is not None and self._sizes.is_of_inputs:
                self.choices.insert(0, dtypes)
                self.notes = (*map(self._taken_for_truth, names), *self._sizes.notes)
                return program
            self.first_error, self.forward_error = errors
        return None

    def _taken_for_truth(self, name: str) -> str:
        leaf = next(leaf for leaf in self.call.leaves if leaf.name == name)
        sizes = ("fixed:" if leaf.batch_axis is None else "") + ",".join(map(str, leaf.shape))
        return TRUTH.format(name=name or "the input", given=f"{name}=" if name else "", sizes=sizes)

    def export_with_folding(self, batch: int, *, watched: bool = False) -> ExportedProgram | None:
        """Return the program with constant folding of all that depends on numbers alone.

        None if the earlier exports failed for another reason.
        """
        if not _is_on_data(self.first_error):
            return None
        settings = settings_of(self._kept)
        ways = [Folding(settings), Folding(settings, True), Folding(self._kept, True)]
        first = 1 if self.call.has_numbers else 0
        last = 3 if watched or not self.call.has_batch else 2  # tables are for markers
        for folding in ways[first:last]:
            self._folding = folding
            if watched and not self.runs(batch, self.choices[0]):  # cheaper than an export
                continue
            if (program := self.export_at(batch, watched=watched)) is not None:
                return program
        self.forget()
        return None

    def forget(self) -> None:
        """Fold only given numbers in later exports; see `export_with_folding`."""
        self._folding = Folding(settings_of(self._kept)) if self.call.has_numbers else None

    def export_with_bounds(self, batch: int) -> ExportedProgram | None:
        """Return the program with an upper bound for each data-dependent size.

        None unless such sizes concern boxes that a detector selects, edges of a graph, or
        operators after the last layer.
        """
        has_edges = any(EDGES.search(leaf.name) for leaf in self.call.leaves)
        for dtypes in self.choices:
            program = self._export(batch, dtypes, sizes=UpperBoundSizes())
            sizes = self._sizes
            ends_early = sizes.is_cut and self._works_beyond(batch, dtypes)
            if program is not None and (sizes.is_sound or has_edges) and not ends_early:
                self.notes = sizes.notes
                return program
            if sizes.has_run:
                self._works_at = self._works_at or sizes.stated_at or sizes.read_at
                return None
        return None

    def _works_beyond(self, batch: int, dtypes: Mapping[str, torch.dtype]) -> bool:
        """Return whether layers run after the first read of data, with either value read."""
        for answer in (False, True):
            sizes = UpperBoundSizes(answer)
            with suppress(Exception):
                self._run(batch, dtypes, partial(sizes.run, self.module, tensors=_tensors))
            if sizes.works_at:
                self._works_at = f"{sizes.read_at} -> {sizes.works_at}"
                return True
        return False

    def export_with_even_experts(
        self, batch: int, *, is_marker: bool = False
    ) -> ExportedProgram | None:
        """Return the program of a mixture of experts with an even share of tokens per expert.

        None if anything else depends on data.

        Args:
            batch: number of samples, or a marker.
            is_marker: whether `batch` is a marker.
        """
        if not _is_on_data(self.first_error):
            return None
        for dtypes in self.choices:
            seen = Experts(batch, is_marker=is_marker)
            with suppress(Exception):
                self._run(batch, dtypes, partial(_call_under, seen, self.module))
                if seen.is_sound:
                    share = Experts(batch, is_marker=is_marker, counts=seen.counts)
                    program = self._export(batch, dtypes, mode=share)
                    if program is not None and share.counts == seen.counts:
                        self.notes = share.notes
                        return program
        return None

    def export_with_gradients(self, batch: int) -> ExportedProgram | None:
        """Return the program of a module that computes gradients; None if it cannot be traced."""

        def called(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
            args, kwargs = self.call.arrange(tensors)
            with self.device(), keeping_attributes(self.module):
                return tuple(_tensors(self.module(*args, **kwargs)))

        for dtypes in self.choices if self.on_meta else ():
            try:
                program = trace_with_gradients(self.module, called, self._tensors(batch, dtypes))
                _check_sizes(program)
                return note_paths(program, self.module, "module")
            except Exception as error:
                self.first_error = self.gradient_error = self.gradient_error or error
        return None

    @property
    def refused_inputs(self) -> bool:
        """Whether the model's own code refuses these inputs, rather than tensors without data."""
        error = self.forward_error
        if self.gradients.asked:  # gradients are disabled unless needed
            return False
        words = str(error)
        ours = isinstance(error, NotImplementedError) or any(word in words for word in _OUR_WORDS)
        return error is not None and not ours and not words.rstrip().endswith("RuntimeError:")

    def error(self, inputs: str) -> Exception:
        """Return the error to raise after all attempts failed."""
        for found in (self.forward_error, self.first_error):
            if _is_too_deep(found):
                return self._nests_too_deeply(found)
        if self.refused_inputs:
            error: Exception = InputShapeError(
                f"the model does not accept input {inputs or 'as given'}: "
                f"{_first_line(self.forward_error)}",
                self._batch_hint() or shape_hint(self.module, self.call.first_shape),
            )
            error.__cause__ = self.forward_error
            return error
        if _lacks_input(self.first_error):
            names = ", ".join(p.name for p in forward_parameters(self.module))
            words = _first_line(self.first_error)
            error = InputShapeError(
                f"the model asks for an input that it was not given: {words}",
                f"Give it as well; {type(self.module).__name__} takes {names or 'no named ones'}.",
            )
            error.__cause__ = self.first_error
            return error
        if self.gradients.asked:
            error = ConversionError(
                "this model differentiates in its forward pass, and its gradients cannot be "
                f"traced: {_first_line(self.first_error)}"
                f"{_in_brackets(place_of(self.first_error, self.module))}",
                "Predict the part that is differentiated, and its training step (phase='train') "
                "for what the gradients cost.",
            )
            error.__cause__ = self.first_error
            return error
        place = self._works_at or (
            script_place(str(self.first_error)) or script_place(str(self.forward_error))
            if self._is_script
            else place_of(self.first_error, self.module)
        )
        reasons = "Data-dependent control flow and tensors on other devices are the usual reasons"
        if "nested_tensor" in f"{self.first_error} {place}":
            reasons = (
                "The sizes of a nested tensor are data: give the model a padded tensor and a mask "
                "there"
            )
        elif "combine_mode='pointwise'" in str(self.first_error):
            reasons = (
                'A scan in the mode "pointwise" runs as compiled code of a GPU alone: '
                'combine_mode="generic" computes the same anywhere'
            )
        elif self._works_at or _is_on_data(self.first_error):
            reasons = "What it computes depends on values that it reads out of a tensor there"
        script = ", or sizes that a trace fixed" if self._is_script else ""
        module = "give the module that was scripted or traced, " if self._is_script else ""
        error = ConversionError(
            f"torch.export cannot follow this model: {_first_line(self.first_error)}"
            f"{_in_brackets(place)}",
            f"{reasons}{script}; check the input shape, {module}export the model to ONNX, or "
            "simplify its forward().",
        )
        error.__cause__ = self.first_error
        return error

    def _batch_hint(self) -> str:
        """Return the next step for a model that takes only multiples of a batch; "" for others."""
        if not self.call.has_batch or not self._accepts(_MANY_FACTORS):
            return ""
        factors = (n for n in range(2, _MANY_FACTORS) if _MANY_FACTORS % n == 0)
        multiple = next((n for n in factors if self._accepts(n)), _MANY_FACTORS)
        first = self.call.leaves[0]
        sizes = ",".join(map(str, first.full_shape(multiple)))
        return (
            f"Its batch must be a multiple of {multiple}: frames or patches may lie in it. Give "
            f'the complete input: input="{first.name and first.name + "="}fixed:{sizes}"'
        )

    def _accepts(self, batch: int) -> bool:
        return any(self.runs(batch, dtypes) for dtypes in self.choices)

    def _nests_too_deeply(self, cause: BaseException | None) -> ConversionError:
        deepest = max((name.count(".") + 1 for name, _ in self.module.named_modules()), default=0)
        error = ConversionError(
            "the code of the model nests too deeply for Python: calls exceed the recursion limit"
            f" (its modules lie up to {deepest:,} within each other)",
            "Flatten modules that only hold one other, as nn.Sequential in nn.Sequential, end"
            " functions that call themselves earlier, or export the model to ONNX.",
        )
        error.__cause__ = cause
        return error

    def _export(
        self,
        batch: int,
        dtypes: Mapping[str, torch.dtype],
        *,
        watched: bool = False,
        sizes: UpperBoundSizes | None = None,
        mode: Experts | None = None,
    ) -> ExportedProgram | None:
        knows_batch_axis = all(leaf.named for leaf in self.call.leaves)
        self.watch = BatchWatch(batch if watched else 0, knows_batch_axis=knows_batch_axis)
        tensors = self._tensors(batch, dtypes)
        first = tensors.pop("", None)
        names = {_identifier(name): name for name in tensors}
        named = {key: tensors[name] for key, name in names.items()}
        self._sizes = sizes or self._sizes
        wrapped = _Flat(self, names, sizes, mode)
        end = watch_sequences(self.module, self.watch) if watched else None
        try:
            args = () if first is None else (first,)
            with (
                whole_recurrent_layers(),
                self._padded.instead_of_packed(),
                keeping_attributes(self.module),
                autocast_without_data(),
                without_source(),
                watch_lifetimes(self.module) as lifetimes,
                self.gradients.watched(),
            ):
                program = torch.export.export(wrapped, args, named, strict=False)
            inline_regions(program)
            self._noted.update(dict.fromkeys(with_plain_attention(program)))
            self._noted.update(dict.fromkeys(unfold_control_flow(program)))
            if sizes is not None and sizes.in_scripts:
                with_positions(program)
            program = with_whole_batches(annotate_lifetimes(program, lifetimes))
            _check_sizes(program)
            return note_paths(program, self.module, "module")
        except MemoryError:
            raise
        except Exception as error:
            self.gradients.explain(error)
            if not isinstance(error, BatchMissedError):  # raised by `BatchWatch`, not a fault
                self.first_error = self.first_error or error
            if not self.on_meta or self._makes_meta or not _DEVICE.search(str(error)):
                return None
            self._makes_meta = True
        finally:
            if end is not None:
                end()
        sizes = sizes and UpperBoundSizes()
        return self._export(batch, dtypes, watched=watched, sizes=sizes, mode=mode and mode.fresh())

    def runs(self, batch: int, dtypes: Mapping[str, torch.dtype]) -> bool:
        """Return whether the module accepts inputs of these types."""
        try:
            with self.gradients.watched(), self._padded.instead_of_packed():
                self._run(batch, dtypes, lambda args, kwargs: self.module(*args, **kwargs))
        except Exception as error:
            self.gradients.explain(error)
            self.forward_error, self.last_error = self.forward_error or error, error
            if not self.on_meta or self._makes_meta or not _DEVICE.search(str(error)):
                return False
            # These types got further than earlier ones: to a tensor created without a device.
            self.first_error = self.forward_error = error
            self._makes_meta = True
            return self.runs(batch, dtypes)
        self.last_error = None
        return True

    def _run(
        self,
        batch: int,
        dtypes: Mapping[str, torch.dtype],
        use: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        """Call `use` with inputs without data, as the arguments of the module."""
        tensors = self._tensors(batch, dtypes)
        if self.on_meta:
            args, kwargs = self.call.arrange(tensors)
            with (
                self.device(),
                self.folding_mode(),
                keeping_attributes(self.module),
                autocast_without_data(),
            ):
                use(args, kwargs)
        else:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake = {name: mode.from_tensor(t) for name, t in tensors.items()}
                args, kwargs = self.call.arrange(fake)
                with self.folding_mode(), keeping_attributes(self.module):
                    use(args, kwargs)

    def device(self) -> AbstractContextManager[Any]:
        """Return the default device for tensors that the module creates."""
        return torch.device("meta") if self._makes_meta else nullcontext()

    def folding_mode(self) -> AbstractContextManager[Any]:
        """Return the mode of constant folding, or a null context if there is none."""
        if self._folding is None:
            return nullcontext()
        known, everywhere = self._folding.known, self._folding.everywhere
        return ConstantFolding(self.module, known, everywhere=everywhere)

    def _tensors(self, batch: int, dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
        if self.on_meta:
            context: Any = torch.device("meta")
        else:
            context = FakeTensorMode(allow_non_fake_inputs=True)
        with context:
            return {
                leaf.name: torch.empty(leaf.full_shape(batch), dtype=dtypes[leaf.name])
                for leaf in self.call.leaves
            }


class _Flat(torch.nn.Module):
    """Takes and returns plain tensors, so that a module may use its own input and output classes.

    A scripted module is hidden from `torch.export`, which refuses its type but can trace its
    operators.
    """

    def __init__(
        self,
        attempt: Attempt,
        names: Mapping[str, str],
        sizes: UpperBoundSizes | None,
        mode: Experts | None,
    ) -> None:
        super().__init__()
        self._mode = mode
        self._arrange, self._names, self._sizes = attempt.call.arrange, dict(names), sizes
        self._watch = attempt.watch
        self._is_script = isinstance(attempt.module, torch.jit.ScriptModule)
        self._device, self._numbers = attempt.device(), attempt.folding_mode()
        if self._is_script:
            object.__setattr__(self, "module", attempt.module)
        else:
            self.module = attempt.module

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = {self._names[key]: value for key, value in kwargs.items()}
        if args:
            tensors = {"": args[0], **tensors}
        given, named = self._arrange(tensors)
        with ExitStack() as modes:
            modes.enter_context(self._device)
            if self._sizes is not None:
                masks = [t for t in tensors.values() if t.dtype is torch.bool]
                return tuple(self._sizes.run(self.module, given, named, _tensors, masks))
            for mode in self._modes():
                modes.enter_context(mode)
            modes.enter_context(self._numbers)
            if self._is_script:
                return tuple(_tensors(run_script(self.module, *given, **named)))
            return tuple(_tensors(self.module(*given, **named)))

    def _modes(self) -> Iterator[AbstractContextManager[Any]]:
        if self._mode is not None:
            yield self._mode
        if self._watch.batch:
            yield ScriptWatch(self._watch) if self._is_script else self._watch


def _call_under(
    mode: Experts, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with mode:
        module(*args, **kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    items: Sequence[Any] = ()
    if isinstance(value, Mapping):
        items = list(value.values())
    elif isinstance(value, list | tuple):
        items = value
    elif is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, item.name) for item in fields(value)]
    for item in items:
        yield from _tensors(item)


def _is_too_deep(error: BaseException | None) -> bool:
    """Return whether an error or a cause of it says that calls nest too deeply."""
    for _ in range(20):
        if error is None or isinstance(error, RecursionError):
            return error is not None
        error = error.__cause__ or error.__context__
    return False


def _is_on_data(error: Exception | None) -> bool:
    """Return whether an export failed because the module reads data from a tensor."""
    return isinstance(error, _ON_DATA) or any(word in str(error) for word in _READS_DATA)


def _lacks_input(error: Exception | None) -> bool:
    """Return whether an export failed on an argument whose default is None."""
    return isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)


def _check_sizes(program: ExportedProgram) -> None:
    """Raise if a program has results with data-dependent sizes.

    Raises:
        ValueError: if it has one.
    """
    for node in program.graph.nodes:
        for tensor in _tensors(node.meta.get("val")):
            if any(isinstance(size, torch.SymInt) for size in tensor.shape):
                raise ValueError(f"the size of {node.target}'s result depends on data")


def _identifier(name: str) -> str:
    text = name.replace(".", "_")
    return text if text.isidentifier() else f"input_{text}"


def _in_brackets(place: str) -> str:
    return place and f" ({place})"


def _first_line(error: Exception | None) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if "TorchScript interpreter" not in lines[0]:
        return lines[0][:400]
    return next((line for line in lines if _ERROR_OF_SCRIPT.match(line)), lines[-1])[:400]
