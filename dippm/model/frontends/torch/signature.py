"""The signature of `forward`: names, shapes and types of a module's inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dippm.errors import ConversionError, InputShapeError
from dippm.model.frontends.frontend import FORMS, InputSpec
from dippm.model.frontends.torch.call import (
    ByParameter,
    Leaf,
    ModelCall,
    is_list_of_tensors,
    is_optional,
    is_tensor,
    plain_type,
    takes_parts,
)
from dippm.model.frontends.torch.input_shapes import with_full_masks
from dippm.model.frontends.torch.usual_inputs import last_inputs, own_inputs
from dippm.model.relax.raw_graph import InputValue

INTEGER_NAME = re.compile(
    r"(^|[_.])(ids?|idx|index|indices|tokens?|attention_mask|labels?|offsets?|lengths?)$"
)
EDGES = re.compile(r"(^|[_.])edge_index$")
"""Name of the edges of a graph, 2 × E, in PyTorch Geometric."""

MASK_NAME = re.compile(r"mask|valid")
_EMPTY = inspect.Parameter.empty
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_GRAPH_NOTE = (
    "the input holds the edges of a graph: all sizes were taken as complete, without a batch "
    "(N in an input's sizes names one)"
)

_NO_PADDING = (
    "the model reads its masks: one sample without padding was taken, whatever the batch; "
    'input="MASK=value:[[1,1,...,0]];..." gives another'
)

_ANNOTATIONS = {
    "Tensor": torch.Tensor,
    "List[Tensor]": list[torch.Tensor],
    "List[int]": list[int],
    "List[float]": list[float],
}
"""Python annotation of each type in a scripted signature."""

_LIST_NOTE = (
    "input {name} is a list with a tensor for each sample: one was taken, which is what batch 1 "
    "means; {name}.0=..., {name}.1=... give more"
)


@dataclass(slots=True)
class Candidate:
    """A call that a module may accept.

    Attributes:
        parameters: parameters of `forward`.
        inputs: sizes without the batch by parameter of `forward`.
        floating: element type of floating-point inputs.
        notes: assumptions, for the user.
        refusal: error of the attempt with this candidate, set by the caller; the next candidate
            depends on it.
    """

    parameters: list[inspect.Parameter]
    inputs: InputSpec
    floating: torch.dtype
    notes: tuple[str, ...] = ()
    refusal: InputShapeError | ConversionError | None = None

    def call(self) -> ModelCall:
        """Return the call with these inputs.

        Raises:
            InputShapeError: if names are unknown to the module or missing.
        """
        inputs, notes, parameters = self.inputs, self.notes, self.parameters
        inputs = inputs.in_order([p.name for p in parameters if p.kind not in _VARIABLE])
        if "" in inputs.shapes and parameters and is_list_of_tensors(parameters[0].annotation):
            notes = (*notes, _LIST_NOTE.format(name=parameters[0].name))
        inputs = _with_parameter_names(parameters, inputs)
        constants = _check_names(parameters, inputs)
        kinds = {"bool": torch.bool, "int": torch.int64, "float": self.floating}
        leaves = [_leaf(name, inputs, parameters, kinds) for name in inputs.shapes]
        if any(leaf.name for leaf in leaves if EDGES.search(leaf.name)):
            leaves = [leaf if leaf.named else _without_batch(leaf) for leaf in leaves]
            notes = (*notes, _GRAPH_NOTE)
        return ModelCall(tuple(leaves), ByParameter(parameters, constants), notes)


def candidate_calls(module: torch.nn.Module, inputs: InputSpec) -> Iterator[Candidate]:
    """Yield calls to try in turn until one works: with these inputs, or the module's own.

    After a failed attempt the caller stores the error in `refusal`; after the last candidate the
    first refusal is raised.

    Args:
        module: any module.
        inputs: shapes by parameter of `forward`; "" is the first one. Dotted names are paths into
            dictionaries, data classes and tuples: "batch.image", "state.0".

    Raises:
        InputShapeError: if the inputs of the module are unknown; the first refusal.
        ConversionError: the first refusal.
    """
    _check_forward(module)
    parameters, floating = forward_parameters(module), float_dtype(module)
    if inputs.shapes or inputs.values:
        given = Candidate(parameters, inputs, floating)
        yield given
        one = with_full_masks(inputs)
        if isinstance(given.refusal, ConversionError) and one is not None:
            yield Candidate(parameters, one, floating, (_NO_PADDING,))
        raise given.refusal or _silence(module, parameters)
    names, needed = [p.name for p in parameters], _needed(parameters)
    first: InputShapeError | ConversionError | None = None
    for own in own_inputs(module, names, needed):
        candidate = Candidate(parameters, own.spec, floating, own.notes)
        yield candidate
        first = first or candidate.refusal
        if isinstance(candidate.refusal, ConversionError):  # accepted, but not exportable
            break
    on_data = isinstance(first, ConversionError)
    for own in last_inputs(module, names, needed):
        if not on_data or own.values:
            yield Candidate(parameters, own.spec, floating, own.notes)
    raise first or _silence(module, parameters)


def _check_forward(module: torch.nn.Module) -> None:
    """Refuse a container without a `forward`, whose parts are called by other code.

    Raises:
        InputShapeError: naming its parts.
    """
    if not _lacks_forward(module):
        return
    parts = [name for name, part in module.named_children() if not _lacks_forward(part)]
    raise InputShapeError(
        f"{type(module).__name__} has no forward() of its own, so no input can be given to it",
        f"Predict its parts one by one: {', '.join(parts[:8]) or 'none of them has one either'}.",
    )


def _lacks_forward(module: torch.nn.Module) -> bool:
    own = getattr(type(module), "forward", None)
    return own is torch.nn.Module.forward and "forward" not in vars(module)


def forward_parameters(module: torch.nn.Module) -> list[inspect.Parameter]:
    """Return the parameters of `forward` without `self`; none if it has no signature."""
    if isinstance(module, torch.jit.ScriptModule):
        return _scripted_parameters(module)
    for evaluated in (True, False):  # annotations may be unevaluable text
        try:
            signature = inspect.signature(module.forward, eval_str=evaluated)
        except Exception:
            continue
        return list(signature.parameters.values())
    return []


def _scripted_parameters(module: torch.jit.ScriptModule) -> list[inspect.Parameter]:
    schema: Any = module.forward.schema  # type: ignore[attr-defined]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = []
    for argument in schema.arguments[1:]:
        default = argument.default_value if argument.has_default_value() else _EMPTY
        annotation = _ANNOTATIONS.get(str(argument.type), _EMPTY)
        found.append(inspect.Parameter(argument.name, kind, default=default, annotation=annotation))
    return found


def _silence(module: torch.nn.Module, parameters: list[inspect.Parameter]) -> InputShapeError:
    """Return the error for a model whose inputs are unknown."""
    names = _required(parameters) or [getattr(module, "main_input_name", "x")]
    text = "128" if INTEGER_NAME.search(names[0]) else "3,224,224"
    example = f'"{text}"' if len(names) == 1 else '"' + ";".join(f"{n}=..." for n in names) + '"'
    return InputShapeError(
        f"the model does not say its input shape (inputs: {', '.join(names)})",
        f"Give input={example}, without the batch.",
    )


def _needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [p.name for p in _without_default(parameters) if not is_optional(p.annotation)]


def _required(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [p.name for p in _without_default(parameters)]


def _without_default(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.default is _EMPTY and p.kind not in _VARIABLE]


def _with_parameter_names(parameters: list[inspect.Parameter], inputs: InputSpec) -> InputSpec:
    """Complete names to parameters: parts of the only structured one, unnamed tokens."""
    known = [p for p in parameters if p.kind not in _VARIABLE]
    names = {name.partition(".")[0] for name in (*inputs.shapes, *inputs.values)}
    required = _required(parameters)
    if (
        len(required) == 1
        and "" not in names
        and not names & {p.name for p in known}
        and takes_parts(known[0].annotation)
    ):
        return _rename(inputs, {name: f"{required[0]}.{name}" for name in _all_names(inputs)})
    if "" not in inputs.shapes or not known:
        return inputs
    first = known[0]
    if first.name in names:
        raise InputShapeError(f"input {first.name!r} is given twice", FORMS)
    if is_list_of_tensors(first.annotation):
        return _rename(inputs, {"": f"{first.name}.0"})
    if INTEGER_NAME.search(first.name):
        return _rename(inputs, {"": first.name})
    return inputs


def _all_names(inputs: InputSpec) -> list[str]:
    return [*inputs.shapes, *inputs.values]


def _rename(inputs: InputSpec, names: Mapping[str, str]) -> InputSpec:
    return InputSpec(
        shapes={names.get(n, n): shape for n, shape in inputs.shapes.items()},
        batch_axes={names.get(n, n): axis for n, axis in inputs.batch_axes.items()},
        values={names.get(n, n): value for n, value in inputs.values.items()},
        kinds={names.get(n, n): kind for n, kind in inputs.kinds.items()},
    )


def _check_names(parameters: list[inspect.Parameter], inputs: InputSpec) -> dict[str, Any]:
    """Check names against the parameters; return the non-tensor arguments.

    Raises:
        InputShapeError: if names are unknown or missing.
    """
    known = {p.name: p for p in parameters if p.kind not in _VARIABLE}
    given = {name.partition(".")[0] for name in _all_names(inputs) if name}
    kinds = {p.kind for p in parameters}
    for name in sorted(given - set(known)):
        by_place = name.isdigit() and inspect.Parameter.VAR_POSITIONAL in kinds
        if inspect.Parameter.VAR_KEYWORD not in kinds and not by_place and known:
            raise InputShapeError(
                f"the model has no input {name!r}", f"Its inputs: {', '.join(known)}. {FORMS}"
            )
    if "" in inputs.shapes and known:
        given |= {next(iter(known))}
    open_names = [name for name in _required(parameters) if name not in given]
    absent = {name: None for name in open_names if is_optional(known[name].annotation)}
    missing = [name for name in open_names if name not in absent]
    if missing:
        example = ";".join(f"{name}=..." for name in _required(parameters))
        raise InputShapeError(
            f"no shape for input {', '.join(missing)}",
            f'The model has several inputs: give input="{example}".',
        )
    return {**absent, **{n: _argument(v, known.get(n)) for n, v in inputs.values.items()}}


def _argument(value: InputValue, parameter: inspect.Parameter | None) -> Any:
    """Return a value as its parameter's type; several numbers without a type are a tuple."""
    annotation = parameter.annotation if parameter is not None else None
    if is_tensor(annotation):
        return torch.tensor(value)
    is_list = plain_type(annotation) is list
    return list(value) if is_list and isinstance(value, tuple) else value


def _leaf(
    name: str,
    inputs: InputSpec,
    parameters: list[inspect.Parameter],
    kinds: Mapping[str, torch.dtype],
) -> Leaf:
    axis, named = inputs.batch_axes.get(name, 0), name in inputs.batch_axes
    top, dot, _ = name.partition(".")
    one_per_sample = bool(dot) and any(
        p.name == top and is_list_of_tensors(p.annotation) for p in parameters
    )
    if one_per_sample and not named:
        axis = None
    dtype = kinds.get(inputs.kinds.get(name, ""))
    return Leaf(name, tuple(inputs.shapes[name]), axis, named, dtype)


def _without_batch(leaf: Leaf) -> Leaf:
    return Leaf(leaf.name, leaf.shape, None, leaf.named, leaf.dtype)


def float_dtype(module: torch.nn.Module) -> torch.dtype:
    """Return the element type of the first weight, which inputs usually share."""
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(dtypes, torch.float32)


def dtype_choices(names: Iterable[str], floating: torch.dtype) -> list[dict[str, torch.dtype]]:
    """Return element types for all inputs, most likely first, without duplicates."""
    names = list(names)
    whole = {n for n in names if INTEGER_NAME.search(n)}
    if any(EDGES.search(n) for n in names):
        whole |= {"batch"}  # the graph of each node
    guess = {n: torch.int64 if n in whole else floating for n in names}
    choices = [guess]
    masks = {n: torch.bool for n in names if MASK_NAME.search(n)}
    choices.append({**guess, **masks})
    for name in names:
        other = floating if guess[name] is torch.int64 else torch.int64
        choices += [{**guess, name: other}, {**guess, **masks, name: other}]
    choices += [dict.fromkeys(names, torch.int64), dict.fromkeys(names, floating)]
    choices += [{**guess, name: torch.bool} for name in names]
    return [c for i, c in enumerate(choices) if c not in choices[:i]]


def shape_hint(module: torch.nn.Module, shape: tuple[int, ...]) -> str:
    """Return a hint on the input of the first layer with weights."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if re.fullmatch(r"Conv[123]d", kind) and isinstance(_size(layer, "in_channels"), int):
            channels, rank = int(layer.in_channels), int(kind[4])
            sizes = ",".join("DHW"[3 - rank :])
            text = f"The first layer ({name or kind}) is {kind}: input={channels},{sizes}."
            if len(shape) == rank + 1 and shape[-1] == channels != shape[0]:
                moved = ",".join(map(str, (shape[-1], *shape[:-1])))
                text += f" The shape looks channels-last: try {moved}."
            return text
        if kind == "Linear" and (width := _size(layer, "in_features", "in_channels")):
            return f"The first layer ({name or kind}) is Linear: last size {width}."
        if kind == "Embedding":
            return f"The first layer ({name or kind}) is Embedding: input=TOKENS."
    return FORMS


def _size(layer: torch.nn.Module, *names: str) -> int | None:
    sizes = (getattr(layer, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int)), None)
