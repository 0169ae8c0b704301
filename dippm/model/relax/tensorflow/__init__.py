"""TensorFlow → Relax: functions flattened, shapes inferred, operators translated.

The functions here name the layer of an operation, from its name scopes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dippm.model.relax.raw_graph import RawGraph

_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")
_NUMBER = re.compile(r"L(\d+)\.(?:_\d+)?")


def path_of(operation: str) -> str:
    """Return the scopes in an operation's name, without those of mere function calls."""
    scopes = operation.split("/")[:-1]
    return "/".join(scope for scope in scopes if not _CALL.fullmatch(scope))


def numbered_name(position: int) -> str:
    """Return a layer name that stays unique with TensorFlow's own suffixes.

    TensorFlow numbers scopes ("lstm", "lstm_1"), so a scope could equal another layer's name.
    """
    return f"L{position}."


def restore_layer_names(graph: RawGraph, names: Sequence[str]) -> RawGraph:
    """Replace the scopes of numbered layers by the layers' names ("block/conv"), also in notes.

    Args:
        graph: graph of a model whose layers have names from `numbered_name`.
        names: original names by position; the first is the model itself, which paths omit.
    """

    def layers(path: str) -> str:
        found = (_NUMBER.fullmatch(scope) for scope in path.split("/"))
        positions = [int(number[1]) for number in found if number]
        return "/".join(names[i] for i in positions if i)

    operators = tuple(replace(one, path=layers(one.path)) for one in graph.operators)
    notes = tuple(_NUMBER.sub(lambda number: names[int(number[1])], note) for note in graph.notes)
    return replace(graph, operators=operators, notes=notes)
