"""Traced problems of KernelBench → modules, which are converted like a user's model.

A trace lists the operators from `torch.export`, with shapes and settings but without source. The
module calls the same operators in the same order on parameters of the same shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PRECISION = "float32"


@lru_cache(maxsize=2)
def problems(folder: Path) -> dict[str, Any]:
    """Return all traces of the KernelBench tables in a folder by their id."""
    text = (folder / "problems.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def why_not(trace: Mapping[str, Any]) -> str:
    """Return why a graph cannot describe the timed work; empty if it can.

    Problems ran as modules in training mode. There a batch norm reads its input once more for the
    statistics, and a dropout draws random numbers; a graph of inference contains neither.
    """
    for node in trace["nodes"]:
        settings = node.get("attrs", {})
        if settings.get("training"):
            return "batch norm with the statistics of the batch"
        if settings.get("train"):
            return "dropout that drops"
    precisions = {spec.get("dtype", PRECISION) for spec in trace["model_inputs"]}
    if "float16" in precisions:
        return "runs in fp16"
    return ""


def batch_of(trace: Mapping[str, Any]) -> int:
    """Return the first size of the first input, which serves as the batch of a problem."""
    return int(next(s["shape"][0] for s in trace["model_inputs"] if s.get("shape")))


def inputs_of(trace: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the inputs of a trace's module, without memory."""
    return tuple(_empty(s["shape"], s["dtype"]) for s in trace["model_inputs"] if "shape" in s)


class TracedProblem(nn.Module):
    """The operators of a trace, on parameters without memory."""

    def __init__(self, trace: Mapping[str, Any]) -> None:
        super().__init__()
        self.trace = trace
        self.numbers: dict[str, Any] = {}
        self.tensors: list[str] = []
        for i, spec in enumerate(trace["model_inputs"]):
            if "shape" in spec:
                self.tensors.append(f"input:{i}")
            else:
                self.numbers[f"input:{i}"] = spec.get("value")
        self.weights = nn.ParameterDict(
            {_plain(name): _empty(shape, PRECISION) for name, shape in trace["parameters"].items()}
        )
        for name, shape in (trace["buffers"] | _constants(trace)).items():
            self.register_buffer(_plain(name), _empty(shape, PRECISION))

    def forward(self, *inputs: Tensor) -> Any:  # noqa: D102
        values: dict[str, Any] = {**self.numbers, **dict(zip(self.tensors, inputs, strict=True))}
        values |= {f"param:{n}": self.weights[_plain(n)] for n in self.trace["parameters"]}
        values |= {f"buffer:{n}": getattr(self, _plain(n)) for n in self.trace["buffers"]}
        values |= {n: getattr(self, _plain(n)) for n in _constants(self.trace)}
        for node in self.trace["nodes"]:
            values[node["name"]] = _result(node, [values[name] for name in node["inputs"]])
        return tuple(values[name] for name in self.trace["outputs"])


def _result(node: Mapping[str, Any], inputs: list[Any]) -> Any:
    settings = dict(node.get("attrs", {}))
    if node["op"] == "getitem":
        return getitem(inputs[0], settings["arg1"])
    _, name, overload = node["op"].split(".")
    operator = getattr(getattr(torch.ops.aten, name), overload)
    given: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if argument.name in settings:
            given[argument.name] = settings.pop(argument.name)
        elif kind.startswith("List[Tensor"):
            given[argument.name], inputs = inputs, []
        elif "Tensor" in kind and inputs:
            given[argument.name] = inputs.pop(0)
    if settings or inputs:
        raise ValueError(f"{node['name']}: {node['op']} takes no {[*settings, *inputs]}")
    arguments = [a for a in operator._schema.arguments if not a.kwarg_only]
    positional = [given.pop(a.name, None) for a in arguments if not a.has_default_value()]
    return operator(*positional, **given)


def _constants(trace: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the shapes of the constants that the nodes name."""
    return {
        name: shape
        for node in trace["nodes"]
        for name, shape in zip(node["inputs"], node["input_shapes"], strict=True)
        if name.startswith("const:")
    }


def _empty(shape: list[int], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _plain(name: str) -> str:
    """Return the name of a tensor as a valid attribute of a module."""
    return "traced_" + name.replace(".", "_").replace(":", "_")
