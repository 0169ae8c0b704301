"""What `forward` takes: names, shapes and types of the inputs of a module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch

from dippm.errors import InputShapeError
from dippm.frontends.frontend import FORMS, InputSpec

INTEGER_NAME = re.compile(
    r"(^|_)(ids?|idx|index|indices|tokens?|attention_mask|labels?|offsets?|lengths?)$"
)


def bind(module: torch.nn.Module, inputs: InputSpec) -> dict[str, tuple[int, ...]]:
    """Return shapes by parameter of `forward`; "" is the first one, passed by position."""
    parameters = _forward_parameters(module)
    shapes = dict(inputs.shapes) or _own_shapes(module, parameters)
    by_name = {name for name in shapes if name}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for name in sorted(by_name - set(known)):
        if not takes_any and known:
            raise InputShapeError(
                f"the model has no input {name!r}", f"Its inputs: {', '.join(known)}. {FORMS}"
            )
    required = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if "" in shapes and known and known[0] in by_name:
        raise InputShapeError(f"input {known[0]!r} is given twice", FORMS)
    covered = by_name | ({known[0]} if "" in shapes and known else set())
    missing = [name for name in required if name not in covered]
    if missing:
        example = ";".join(f"{name}={'...'}" for name in required)
        raise InputShapeError(
            f"no shape for input {', '.join(missing)}",
            f'The model has several inputs: give input="{example}".',
        )
    first = known[0] if known else ""
    if "" in shapes and INTEGER_NAME.search(first):
        shapes = {first if name == "" else name: shape for name, shape in shapes.items()}
    return shapes


def _forward_parameters(module: torch.nn.Module) -> list[inspect.Parameter]:
    if isinstance(module, torch.jit.ScriptModule):
        schema: Any = module.forward.schema  # type: ignore[attr-defined]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [
            inspect.Parameter(
                a.name, kind, default=a.default_value if a.has_default_value() else _EMPTY
            )
            for a in schema.arguments[1:]
        ]
    try:
        return list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return []


_EMPTY = inspect.Parameter.empty


def _own_shapes(
    module: torch.nn.Module, parameters: list[inspect.Parameter]
) -> dict[str, tuple[int, ...]]:
    """Return the input shape that a model states about itself."""
    for attribute in ("pretrained_cfg", "default_cfg"):
        settings = getattr(module, attribute, None)
        if isinstance(settings, Mapping) and settings.get("input_size"):
            return {"": tuple(settings["input_size"])}
    config = getattr(module, "config", None)
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if isinstance(size, int) and isinstance(channels, int):
        return {"": (channels, size, size)}
    main = getattr(module, "main_input_name", "x")
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = (p for p in parameters if p.default is _EMPTY and p.kind not in variable)
    names = [p.name for p in required] or [main]
    text = "128" if INTEGER_NAME.search(names[0]) else "3,224,224"
    example = f'"{text}"' if len(names) == 1 else '"' + ";".join(f"{n}=..." for n in names) + '"'
    raise InputShapeError(
        f"the model does not say its input shape (inputs: {', '.join(names)})",
        f"Give input={example}, without the batch.",
    )


def float_dtype(module: torch.nn.Module) -> torch.dtype:
    """Return the type of the first weight; inputs usually share it."""
    dtypes = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(dtypes, torch.float32)


def dtype_choices(
    shapes: Mapping[str, tuple[int, ...]], floating: torch.dtype
) -> list[dict[str, torch.dtype]]:
    """Return types for all inputs, the likeliest first, without repetition."""
    names = list(shapes)
    guess = {n: torch.int64 if INTEGER_NAME.search(n) else floating for n in names}
    choices = [guess]
    for name in names:
        other = floating if guess[name] is torch.int64 else torch.int64
        choices.append({**guess, name: other})
    choices += [dict.fromkeys(names, torch.int64), dict.fromkeys(names, floating)]
    return [c for i, c in enumerate(choices) if c not in choices[:i]]


def shape_hint(module: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Say what the first layer with weights expects."""
    shape = next(iter(shapes.values()), ())
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if re.fullmatch(r"Conv[123]d", kind):
            channels, rank = int(layer.in_channels), int(kind[4])
            sizes = ",".join("DHW"[3 - rank :])
            text = f"The first layer ({name or kind}) is {kind}: input={channels},{sizes}."
            if len(shape) == rank + 1 and shape[-1] == channels != shape[0]:
                moved = ",".join(map(str, (shape[-1], *shape[:-1])))
                text += f" The shape looks channels-last: try {moved}."
            return text
        if kind == "Linear":
            return f"The first layer ({name or kind}) is Linear: last size {layer.in_features}."
        if kind == "Embedding":
            return f"The first layer ({name or kind}) is Embedding: input=TOKENS."
    return FORMS
