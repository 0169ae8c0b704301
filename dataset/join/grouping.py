"""What keeps a split free of leaks: the curated family of a name, the architecture of a graph.

Two keys decide what may stand on both sides of a split. A family is a judgement, written down in
`families.toml`. An architecture is a fact: the graph without batch, spatial sizes, precision and
parameter values.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from dataset.families.family import Workload
from dataset.join import model_files
from dippm.errors import UnknownNameError
from dippm.model.graph.model_graph import ModelGraph, OpNode
from dippm.model.graph.operators import operator

TABLE = Path(__file__).with_name("families.toml")
SIZE_ATTRIBUTES = frozenset(
    {
        "m",
        "n",
        "query_length",
        "key_length",
        "steps",
        "permutation",
        "copies",
        "equation",
        "padding",
    }
)
"""Attributes that follow the image size or sequence length ("same" padding does), or only say
how axes are named."""
SIZE_ATTRIBUTES_OF = {
    "batch_matmul": frozenset({"k"}),
    "group_norm": frozenset({"normalized_size"}),
    "instance_norm": frozenset({"normalized_size"}),
    "avg_pool": frozenset({"kernel", "strides"}),
}
"""More of them, for operators where they are no weight."""
MOVES = frozenset({"pad", "roll", "transpose", "cast", "dynamic_slice"})
"""Operators that come and go with the image size or the precision."""


def family_of(model: str) -> str:
    """Return the family of a model name such as "timm:resnet50.a1_in1k@224".

    A model of our own generators ("own:resnet(depth=18)@224x224") says its family itself.

    Raises:
        UnknownNameError: if no pattern of `families.toml` fits.
    """
    if model.startswith("own:"):
        return Workload.parse(model).family
    if model_files.is_file(model):
        return model_files.family_of_file(model)
    name = bare_name(model)
    patterns, _, _ = _table()
    fitting = [(len(p.replace("*", "")), family) for p, family in patterns if fnmatchcase(name, p)]
    if not fitting:
        known = {family for _, family in patterns}
        raise UnknownNameError.of(
            "family of", model, known, f"Add a pattern for {name!r} to {TABLE.name}."
        )
    return max(fitting)[1]


def bare_name(model: str) -> str:
    """Return a model's name without zoo, size, weight tag and re-training prefix, lower case."""
    zoo, _, rest = model.rpartition(":")
    name = (zoo if zoo == "hwgpt" else rest).split("@")[0].split(".")[0].casefold()
    _, prefixes, _ = _table()
    changed = True
    while changed:
        changed = False
        for prefix in prefixes:
            if name.startswith(prefix):
                name, changed = name.removeprefix(prefix), True
    return name


def family_version() -> str:
    """Return the version of the table, which split files carry."""
    return _table()[2]


def architecture_id(graph: ModelGraph) -> str:
    """Return the same 16 letters for graphs that differ in sizes of the input only.

    Kept: compute operators in order, their data flow, and every attribute that is part of the
    weights or the wiring (channels, kernels, strides, groups, heads). Left out: batch, image
    size, sequence length, precision, parameter values, and operators that only rearrange data.
    """
    readers = _flow(graph)
    document = [
        [node.op, _kept(node), readers[i]]
        for i, node in enumerate(graph.nodes)
        if not _is_move(node)
    ]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept(node: OpNode) -> dict[str, object]:
    left_out = SIZE_ATTRIBUTES | SIZE_ATTRIBUTES_OF.get(node.op, frozenset())
    return {k: v for k, v in sorted(node.attributes.items()) if k not in left_out}


def _is_move(node: OpNode) -> bool:
    return node.op in MOVES or operator(node.op).category == "view"


def _flow(graph: ModelGraph) -> list[list[int]]:
    """Return, for each node, the nearest producers that compute, counted among those alone."""
    count, number = 0, {}
    for i, node in enumerate(graph.nodes):
        if not _is_move(node):
            number[i], count = count, count + 1
    reached: list[set[int]] = [set() for _ in graph.nodes]
    for producer, consumer in sorted(graph.edges, key=lambda edge: edge[1]):
        reached[consumer] |= {number[producer]} if producer in number else reached[producer]
    return [sorted(producers) for producers in reached]


@cache
def _table() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...], str]:
    document = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    patterns = tuple(
        (pattern, family) for family, row in document["families"].items() for pattern in row
    )
    return patterns, tuple(document["prefixes"]), document["version"]
