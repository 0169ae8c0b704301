"""The layer of a TensorFlow operation, from its scopes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dippm.model.relax.raw_graph import RawGraph

_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")
_NUMBER = re.compile(r"L(\d+)\.(?:_\d+)?")


def path_of(operation: str) -> str:
    """Return the scopes of an operation's name, without those that only say that one was called."""
    scopes = operation.split("/")[:-1]
    return "/".join(scope for scope in scopes if not _CALL.fullmatch(scope))


def numbered_name(position: int) -> str:
    """Return a name for a layer that TensorFlow's own suffixes leave unmistakable.

    Scopes are counted ("lstm", "lstm_1"), so that one layer's scope looks like another's name.
    """
    return f"L{position}."


def restore_layer_names(graph: RawGraph, names: Sequence[str]) -> RawGraph:
    """Replace scopes of numbered layers by the names of the layers: "block/conv"; in notes as well.

    Args:
        graph: of a model whose layers are called `numbered_name`.
        names: true names by position; the outermost model is first and is left out of paths.
    """

    def layers(path: str) -> str:
        found = (_NUMBER.fullmatch(scope) for scope in path.split("/"))
        positions = [int(number[1]) for number in found if number]
        return "/".join(names[i] for i in positions if i)

    operators = tuple(replace(one, path=layers(one.path)) for one in graph.operators)
    notes = tuple(_NUMBER.sub(lambda number: names[int(number[1])], note) for note in graph.notes)
    return replace(graph, operators=operators, notes=notes)
