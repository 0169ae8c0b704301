"""`nn.Module` → exported program at the marker batch, without touching a weight.

The module is copied to the meta device first. Should its forward pass not work there, it is
exported as it is, with fake inputs: `torch.export` then fakes the weights itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from dippm.errors import ConversionError, InputShapeError
from dippm.frontends.frontend import InputSpec, marker_batch
from dippm.frontends.torch_inputs import bind, dtype_choices, float_dtype, shape_hint
from dippm.frontends.torch_paths import note_paths
from dippm.frontends.torch_recurrent import whole_recurrent_layers
from dippm.frontends.torch_weights import evaluating, on_meta, unwrapped, without_weights

_Arguments = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported program and the batch it was made at."""

    program: ExportedProgram
    batch: int
    batch_is_symbolic: bool


def export(
    module: torch.nn.Module,
    inputs: InputSpec,
    *,
    fixed_batch: int = 1,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Exported:
    """Export a module at a marker batch; at `fixed_batch` if it accepts no other.

    Args:
        module: any module; neither it nor its training flags are changed.
        inputs: shapes without the batch, of the parameters of `forward`.
        fixed_batch: what to try if the marker batch does not pass through the model.
        dtypes: of the inputs, where they are known.

    Raises:
        InputShapeError: if the inputs do not fit the model.
        ConversionError: if `torch.export` cannot follow the model.
    """
    module = unwrapped(module)
    shapes = bind(module, inputs)
    marker = marker_batch(_sizes(module, shapes))
    copied = on_meta(module)
    subject = copied if copied is not None else module
    with evaluating(subject), torch.no_grad():
        attempt = _Attempt(subject, shapes, dtypes or {}, on_meta=copied is not None)
        for batch in (marker, fixed_batch):
            program = attempt.at(batch)
            if program is not None:
                return Exported(program, batch, batch == marker)
    if copied is not None and not attempt.refused_inputs:
        with evaluating(module), torch.no_grad():
            program = _Attempt(module, shapes, dtypes or {}, on_meta=False).at(marker)
            if program is not None:
                return Exported(without_weights(program), marker, True)
    raise attempt.error(inputs)


def accepted_inputs(
    module: torch.nn.Module, inputs: InputSpec, batch: int
) -> dict[str, torch.Tensor]:
    """Return inputs without data that the module accepts, by parameter of `forward`.

    Args:
        module: any module; it is run on tensors without data, if it can be copied to them.
        inputs: shapes without the batch; the module's own if empty.
        batch: samples.

    Returns:
        Tensors on the meta device in the order of `forward`; "" is the first parameter.

    Raises:
        InputShapeError: if no choice of types makes them fit.
    """
    module = unwrapped(module)
    shapes = bind(module, inputs)
    copied = on_meta(module)
    subject = copied if copied is not None else module
    with evaluating(subject), torch.no_grad():
        attempt = _Attempt(subject, shapes, {}, on_meta=copied is not None)
        fitting = [choice for choice in attempt.choices if attempt._runs(batch, choice)]
        if not fitting and attempt.refused_inputs:
            raise attempt.error(inputs)
    dtypes = (fitting or attempt.choices)[0]  # if it cannot run without data, the likeliest types
    return {
        name: torch.empty((batch, *shape), dtype=dtypes[name], device="meta")
        for name, shape in shapes.items()
    }


def re_export(program: ExportedProgram, inputs: InputSpec) -> Exported:
    """Export a saved program again at a marker batch, or at its own batch if that is baked in.

    Args:
        program: loaded from a file.
        inputs: shapes without the batch; the program's own if empty.

    Raises:
        InputShapeError: if the inputs do not fit the program.
        ConversionError: if it cannot be traced again.
    """
    examples = _example_tensors(program)
    if not examples:
        raise ConversionError(
            "the exported program has no tensor inputs", "Export the model with its inputs."
        )
    if any(not tensor.shape for tensor in examples.values()):
        raise ConversionError(
            "the exported program has an input without a batch dimension",
            "Export it with the batch as first dimension of every input.",
        )
    module = program.module(check_guards=False)
    module._forward_pre_hooks.clear()  # they compare sizes with those of the first export
    own = InputSpec({name: tuple(map(int, t.shape[1:])) for name, t in examples.items()})
    given = {next(iter(examples)) if n == "" else n: s for n, s in inputs.shapes.items()}
    batch = int(next(iter(examples.values())).shape[0])
    dtypes = {name: tensor.dtype for name, tensor in examples.items()}
    spec = InputSpec({**own.shapes, **given})
    return export(module, spec, fixed_batch=batch, dtypes=dtypes)


def _example_tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the user inputs by parameter name, with the sizes of the first export."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    values = {name: nodes[name].meta["val"] for name in program.graph_signature.user_inputs}
    return {
        name: torch.empty(
            [getattr(getattr(s, "node", None), "hint", s) for s in value.shape],
            dtype=value.dtype,
            device="meta",
        )
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def slimmed(program: ExportedProgram) -> ExportedProgram:
    """Drop what the importer does not read, in place: weights, examples and source positions."""
    without_weights(program)
    program._example_inputs = None
    for node in program.graph.nodes:
        for key in ("stack_trace", "source_fn_stack", "torch_fn", "from_node"):
            node.meta.pop(key, None)
    return program


class _Attempt:
    """Exports of one module, with every sensible choice of input types."""

    def __init__(
        self,
        module: torch.nn.Module,
        shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, torch.dtype],
        *,
        on_meta: bool,
    ) -> None:
        self.module, self.shapes, self.on_meta = module, shapes, on_meta
        known = {name: dtypes[name] for name in shapes if name in dtypes}
        unknown = {name: shape for name, shape in shapes.items() if name not in dtypes}
        self.choices = [
            {**known, **choice} for choice in dtype_choices(unknown, float_dtype(module))
        ]
        self.first_error: Exception | None = None
        self.forward_error: Exception | None = None

    def at(self, batch: int) -> ExportedProgram | None:
        """Return the program, None if the module does not pass at this batch."""
        program = self._export(batch, self.choices[0])
        if program is not None:
            return program
        for dtypes in self.choices:
            if self._runs(batch, dtypes):
                return self._export(batch, dtypes) if dtypes != self.choices[0] else None
        return None

    @property
    def refused_inputs(self) -> bool:
        """Whether the model's own code refuses these inputs, and not our weightless tensors."""
        error = self.forward_error
        words = str(error)
        ours = isinstance(error, NotImplementedError) or any(
            word in words for word in ("meta", "same device", "data-dependent", "DataDependent")
        )
        return error is not None and not ours and not words.rstrip().endswith("RuntimeError:")

    def error(self, inputs: InputSpec) -> Exception:
        """Return what to raise when every attempt failed."""
        if self.refused_inputs:
            error: Exception = InputShapeError(
                f"the model does not accept input {str(inputs) or 'as given'}: "
                f"{_first_line(self.forward_error)}",
                shape_hint(self.module, self.shapes),
            )
            error.__cause__ = self.forward_error
            return error
        scripted = isinstance(self.module, torch.jit.ScriptModule)
        reasons = "Data-dependent control flow and tensors on other devices are the usual reasons"
        error = ConversionError(
            f"torch.export cannot follow this model: {_first_line(self.first_error)}",
            f"{reasons}{', or sizes that a trace fixed' if scripted else ''}; "
            "check the input shape, export the model to ONNX, or simplify its forward().",
        )
        error.__cause__ = self.first_error
        return error

    def _export(self, batch: int, dtypes: Mapping[str, torch.dtype]) -> ExportedProgram | None:
        args, kwargs = self._arguments(batch, dtypes)
        try:
            with whole_recurrent_layers():
                program = torch.export.export(_Flat(self.module), args, kwargs, strict=False)
            return note_paths(program, self.module, "module")
        except MemoryError:
            raise
        except Exception as error:
            self.first_error = self.first_error or error
            return None

    def _runs(self, batch: int, dtypes: Mapping[str, torch.dtype]) -> bool:
        args, kwargs = self._arguments(batch, dtypes)
        try:
            if self.on_meta:
                self.module(*args, **kwargs)
            else:
                with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    fake = [mode.from_tensor(a) for a in args]
                    self.module(*fake, **{k: mode.from_tensor(v) for k, v in kwargs.items()})
        except Exception as error:
            self.forward_error = self.forward_error or error
            return False
        return True

    def _arguments(self, batch: int, dtypes: Mapping[str, torch.dtype]) -> _Arguments:
        if self.on_meta:
            context: Any = torch.device("meta")
        else:
            context = FakeTensorMode(allow_non_fake_inputs=True)
        with context:
            tensors = {
                name: torch.empty((batch, *shape), dtype=dtypes[name])
                for name, shape in self.shapes.items()
            }
        first = tensors.pop("", None)
        return (() if first is None else (first,)), tensors


class _Flat(torch.nn.Module):
    """Returns the tensors of whatever a module returns, so that its output classes do not matter.

    A scripted module is hidden from `torch.export`, which refuses it by type but follows the
    operators that it runs.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        if isinstance(module, torch.jit.ScriptModule):
            object.__setattr__(self, "module", module)
        else:
            self.module = module

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_tensors(self.module(*args, **kwargs)))


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


def _sizes(module: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> set[int]:
    sizes = {size for shape in shapes.values() for size in shape}
    for tensor in (*module.parameters(), *module.buffers()):
        sizes.update(tensor.shape)
    return sizes


def _first_line(error: Exception | None) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return lines[-1 if "TorchScript interpreter" in lines[0] else 0][:400]
