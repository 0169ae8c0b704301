"""Single operators as families of kind "operator"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dataset.families.family import Family, InputTensor, Parameters, Sizes
from dataset.families.operator_cases import Case, calibration_cases, ceiling_cases, more_cases

if TYPE_CHECKING:
    import torch


def _cases_of(name: str) -> list[Case]:
    every = (*calibration_cases(), *more_cases(), *ceiling_cases())
    return [case for case in every if case.family == name]


def _distinct(cases: Iterable[Case]) -> list[Parameters]:
    found: list[Parameters] = []
    for case in cases:
        if case.parameters not in found:
            found.append(case.parameters)
    return found


def _sizes_of(name: str, parameters: Parameters) -> list[Sizes]:
    sizes = (case.sizes for case in _cases_of(name) if case.parameters == parameters)
    return list(dict.fromkeys(sizes))


def _same(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    return (InputTensor("x", sizes),)


def _pair(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    """Return two inputs for operators that join two, else one."""
    two = p["name"] in ("add", "multiply", "maximum", "concat")
    return tuple(InputTensor(name, sizes) for name in ("x", "y")[: 1 + two])


def _matmul_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    return (InputTensor("x", sizes), InputTensor("y", (int(p["k"]), int(p["n"]))))


def _convolution_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    return (InputTensor("x", (int(p["channels"]), *sizes)),)


def _attention_inputs(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    heads, size, (queries, keys) = int(p["heads"]), int(p["size"]), sizes
    return (
        InputTensor("query", (heads, queries, size)),
        InputTensor("key", (heads, keys, size)),
        InputTensor("value", (heads, keys, size)),
    )


def _ids(p: Parameters, sizes: Sizes) -> tuple[InputTensor, ...]:
    return (InputTensor("ids", sizes, high=int(p["vocabulary"])),)


def _build_dense(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from torch import nn

    return nn.Linear(int(p["k"]), int(p["n"]), bias=bool(p["bias"]))


def _build_matmul(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    import torch

    from dataset.families.networks.operators import FunctionModule

    return FunctionModule(torch.bmm)


def _build_convolution(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from torch import nn

    kernel, dilation = int(p["kernel"]), int(p["dilation"])
    if p["transposed"]:
        return nn.ConvTranspose2d(
            int(p["channels"]),
            int(p["width"]),
            kernel,
            stride=int(p["stride"]),
            padding=(kernel - 2) // 2,
            bias=False,
        )
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[int(p["dimensions"])]
    return kind(
        int(p["channels"]),
        int(p["width"]),
        kernel,
        stride=int(p["stride"]),
        padding=dilation * (kernel // 2),
        groups=int(p["groups"]),
        dilation=dilation,
        bias=False,
    )


def _build_attention(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from dataset.families.networks import operators

    return operators.attention(causal=bool(p["causal"]))


def _build_norm(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from dataset.families.networks import layers

    name = str(p["name"])
    if name in ("layer", "rms"):
        return layers.token_norm(name, sizes[-1])
    return layers.norm(name, sizes[0], dimensions=len(sizes) - 1)


def _build_pool(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from torch import nn

    kernel, stride = int(p["kernel"]), int(p["stride"])
    if p["name"] == "global":
        return nn.AdaptiveAvgPool2d(1)
    kind = nn.MaxPool2d if p["name"] == "max" else nn.AvgPool2d
    return kind(kernel, stride, padding=kernel // 2 if kernel % 2 else 0)


def _build_softmax(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from torch import nn

    return nn.Softmax(-1)


def _build_embedding(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from torch import nn

    return nn.Embedding(int(p["vocabulary"]), int(p["width"]))


def _build_recurrent(p: Parameters, sizes: Sizes) -> torch.nn.Module:
    from dataset.families.networks.operators import RecurrentLayers

    return RecurrentLayers(
        str(p["cell"]),
        sizes[1],
        int(p["width"]),
        int(p["depth"]),
        bidirectional=bool(p["bidirectional"]),
    )


def _build_named(p: Parameters, sizes: Sizes, kind: str) -> torch.nn.Module:
    from dataset.families.networks import operators

    if kind == "resize":
        return operators.resize(str(p["name"]), float(p["factor"]))
    make = {
        "elementwise": operators.elementwise,
        "move": operators.move,
        "reduction": operators.reduction,
    }
    return make[kind](str(p["name"]))


def _builder_of(kind: str) -> Callable[[Parameters, Sizes], torch.nn.Module]:
    return lambda p, sizes: _build_named(p, sizes, kind)


def _family(
    name: str,
    about: str,
    build: Callable[[Parameters, Sizes], torch.nn.Module],
    inputs: Callable[[Parameters, Sizes], tuple[InputTensor, ...]] = _same,
) -> Family:
    return Family(
        name=name,
        kind="operator",
        about=about,
        grid=lambda: _distinct(_cases_of(name)),
        sizes=lambda parameters: _sizes_of(name, parameters),
        build=build,
        inputs=inputs,
        images=name == "convolution",
        largest_batch=32768,
    )


ALL = (
    _family("dense", "linear layer: matrix product with weights", _build_dense),
    _family("batch_matmul", "batch of matrix products", _build_matmul, _matmul_inputs),
    _family(
        "convolution", "convolution in 1 to 3 dimensions", _build_convolution, _convolution_inputs
    ),
    _family("attention", "scaled dot-product attention", _build_attention, _attention_inputs),
    _family("elementwise", "activation or arithmetic", _builder_of("elementwise"), _pair),
    _family("norm", "normalisation", _build_norm),
    _family("softmax", "softmax over the last axis", _build_softmax),
    _family("pool", "pooling", _build_pool),
    _family("move", "copies, transposes, joins and slices", _builder_of("move"), _pair),
    _family("reduction", "sums, means, maxima", _builder_of("reduction")),
    _family("resize", "interpolation", _builder_of("resize")),
    _family("embedding", "rows of a table", _build_embedding, _ids),
    _family("recurrent", "LSTM and GRU layers", _build_recurrent),
)
