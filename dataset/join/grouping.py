"""Grouping keys for splits without leaks: family by name, architecture by graph.

Two keys decide which rows may be on both sides of a split. A family is a judgement, recorded in
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
"""Attributes that depend on image size or sequence length (as "same" padding does), or only name
axes."""
SIZE_ATTRIBUTES_OF = {
    "batch_matmul": frozenset({"k"}),
    "group_norm": frozenset({"normalized_size"}),
    "instance_norm": frozenset({"normalized_size"}),
    "avg_pool": frozenset({"kernel", "strides"}),
}
"""More such attributes, for operators in which they do not belong to weights."""
MOVES = frozenset({"pad", "roll", "transpose", "cast", "dynamic_slice"})
"""Operators whose presence depends on image size or precision."""


def family_of(model: str) -> str:
    """Return the family of a model name such as "timm:resnet50.a1_in1k@224".

    The name of our own models ("own:resnet(depth=18)@224x224") contains the family.

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
    """Return a model's name in lower case without zoo, size, weight tag and training prefix."""
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
    """Return the version of the family table, which split files contain."""
    return _table()[2]


def architecture_id(graph: ModelGraph) -> str:
    """Return an id of 16 letters, equal for graphs that differ only in input sizes.

    It covers compute operators in order, their data flow, and every attribute that belongs to
    weights or wiring (channels, kernels, strides, groups, heads). It ignores batch, image size,
    sequence length, precision, parameter values, and operators that only rearrange data.
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
    """Return the nearest compute producers of each node, numbered among compute nodes."""
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
