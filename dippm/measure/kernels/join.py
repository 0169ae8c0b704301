"""Join kernels with the calls and operators of our graph.

Both lists are in execution order and have module paths, so the calls of a module in a profile are
aligned with the calls of the same module in the graph: the largest number in the same order, by
canonical name. A call of the framework that the graph does not have (fused attention, a layer in
several parts) is replaced by the calls inside it. A backward kernel belongs to the operator whose
gradient it computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dippm.measure.kernels import TracedKernel
from dippm.model.graph.calls import CallSequence, OperatorCall
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.graph.operators import canonical_name, fold_name, operator

How = Literal["call", "module"]
VIEW_WEIGHT = 0.1
"""Weight of a view: matching it must not prevent the match of an operator that does work."""
WRAPPER = "module."
"""Prefix of paths in the wrapper that passes a model's inputs by position."""
ALIKE: Mapping[str, str] = {
    **dict.fromkeys(("matmul", "dense", "batch_matmul", "einsum"), "product"),
    **dict.fromkeys(("avg_pool", "global_avg_pool", "reduce_mean"), "mean"),
    **dict.fromkeys(("max_pool", "global_max_pool"), "maximum of windows"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "convolution"),
    **dict.fromkeys(("clip", "relu6"), "clip"),
    **dict.fromkeys(("slice", "gather", "dynamic_slice", "split"), "part"),
    **dict.fromkeys(("reshape", "transpose", "broadcast"), "view"),
}
"""Canonical names that frameworks and exporters do not distinguish in the same way."""
SPELT: Mapping[str, str] = {
    **dict.fromkeys("linear addmm mm bmm baddbmm matmul mv addmv dot einsum".split(), "product"),
    **dict.fromkeys(
        "conv1d conv2d conv3d convolution _convolution cudnn_convolution".split(), "convolution"
    ),
    **dict.fromkeys("adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool3d".split(), "mean"),
    **dict.fromkeys("hardtanh relu6 clamp clip".split(), "clip"),
    **dict.fromkeys("select narrow slice chunk unbind index split index_select".split(), "part"),
    **dict.fromkeys(
        "view reshape permute transpose t expand unsqueeze squeeze flatten unflatten expand_as "
        "view_as movedim swapaxes".split(),
        "view",
    ),
}
"""Our names of torch's calls, in addition to the operator table."""


@dataclass(frozen=True, slots=True)
class KernelOwner:
    """The part of a graph that a kernel belongs to.

    Attributes:
        node: position in `ModelGraph.nodes`; None if nothing in the graph launched it.
        call: position in the graph's `CallSequence.calls`; None if only the module is known.
        how: "call" if it was launched by that call, "module" if only its module and neighbouring
            calls are known; None without a node.
    """

    node: int | None = None
    call: int | None = None
    how: How | None = None


NO_OWNER = KernelOwner()


@dataclass(slots=True)
class _Unit:
    """A call of the framework in a profile, with its nested calls."""

    name: str
    path: str | None
    instance: int
    inside: dict[int, _Unit] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return kind_of(self.name)


def join_kernels(kernels: Sequence[TracedKernel], graph: ModelGraph) -> list[KernelOwner]:
    """Return the owner of each kernel.

    Args:
        kernels: kernels of one step.
        graph: graph of the same model; its batch does not matter.
    """
    if graph.calls is None:
        return [NO_OWNER] * len(kernels)
    calls = _by_path(graph, graph.calls)
    units = _units(kernels, calls)
    owners = _owners(units, calls, graph.calls)
    known = {instance: owners[unit.instance] for unit in units for instance in _all(unit)}
    for kernel in kernels:  # split calls launch kernels of their own, too
        _give_to_wrappers(kernel.instances, known)
    return [_owner(kernel, known) for kernel in kernels]


def kind_of(name: str) -> str:
    """Return our name of a framework's call, "" if the graph has none for it."""
    bare = name.rpartition("::")[2].rstrip("_") if not name.endswith("__") else name
    if bare in SPELT:
        return SPELT[bare]
    found = canonical_name("aten", fold_name(bare))
    return ALIKE.get(found, found) if found else ""


def _give_to_wrappers(instances: Sequence[int], known: dict[int, KernelOwner]) -> None:
    """Give a split call the owner of the first of its parts that has one."""
    owner = next((known[i] for i in instances if i in known), NO_OWNER)
    if owner.node is not None:
        for instance in instances:
            known.setdefault(instance, KernelOwner(owner.node, None, "module"))


def _owner(kernel: TracedKernel, known: Mapping[int, KernelOwner]) -> KernelOwner:
    if kernel.part == "forward":
        return known.get(kernel.instances[-1], NO_OWNER) if kernel.instances else NO_OWNER
    return known.get(-1 if kernel.forward_instance is None else kernel.forward_instance, NO_OWNER)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A call of the graph that may appear in a profile."""

    position: int
    kinds: frozenset[str]
    weight: float


def _by_path(graph: ModelGraph, sequence: CallSequence) -> dict[str, list[_Candidate]]:
    found: dict[str, list[_Candidate]] = defaultdict(list)
    for position, call in enumerate(sequence.calls):
        node = graph.nodes[call.node].op if call.node < len(graph.nodes) else call.op
        if _is_bias(call, node, sequence):
            continue
        kinds = frozenset(ALIKE.get(name, name) for name in (call.op, node))
        works = operator(call.op).category != "view"
        found[call.path].append(_Candidate(position, kinds, 1.0 if works else VIEW_WEIGHT))
    return found


def _is_bias(call: OperatorCall, node: str, sequence: CallSequence) -> bool:
    """Return whether a call adds a layer's bias: torch does that inside the layer."""
    parameter = any(sequence.tensors[t].is_parameter for t in call.inputs)
    return call.op == "add" and node != "add" and parameter


def _units(
    kernels: Iterable[TracedKernel], calls: Mapping[str, Sequence[_Candidate]]
) -> list[_Unit]:
    """Return the calls of the forward pass, nested as deep as the graph has names for them."""
    roots: dict[int, _Unit] = {}
    for kernel in kernels:
        if kernel.part != "forward":
            continue
        level = roots
        for name, instance in zip(kernel.operators, kernel.instances, strict=True):
            unit = level.setdefault(instance, _Unit(name, kernel.path, instance))
            level = unit.inside
    everything = frozenset(k for group in calls.values() for c in group for k in c.kinds)
    words = {path: frozenset(k for c in group for k in c.kinds) for path, group in calls.items()}

    def split(unit: _Unit) -> list[_Unit]:
        path = _graph_path(unit.path, calls)
        known = everything if path is None else words.get(path, frozenset())
        if unit.kind in known or not unit.inside:
            return [unit]
        return [part for inner in _ordered(unit.inside) for part in split(inner)]

    return [part for root in _ordered(roots) for part in split(root)]


def _ordered(units: Mapping[int, _Unit]) -> list[_Unit]:
    return [units[instance] for instance in sorted(units)]


def _all(unit: _Unit) -> Iterable[int]:
    yield unit.instance
    for inner in unit.inside.values():
        yield from _all(inner)


def _graph_path(path: str | None, calls: Mapping[str, Sequence[_Candidate]]) -> str | None:
    """Return a module's path in the graph's notation."""
    if path is None or path in calls:
        return path
    bare = path.removeprefix(WRAPPER)
    return bare if bare in calls else path


def _owners(
    units: Sequence[_Unit], calls: Mapping[str, Sequence[_Candidate]], sequence: CallSequence
) -> dict[int, KernelOwner]:
    """Return the owner of each unit by its instance."""
    groups: dict[str | None, list[_Unit]] = defaultdict(list)
    for unit in units:
        groups[_graph_path(unit.path, calls)].append(unit)
    everything = sorted((c for group in calls.values() for c in group), key=lambda c: c.position)
    owners: dict[int, KernelOwner] = {}
    for path, group in groups.items():
        candidates = everything if path is None else calls.get(path, ())
        pairs = align(
            [unit.kind for unit in group],
            [candidate.kinds for candidate in candidates],
            [candidate.weight for candidate in candidates],
        )
        found = [None if j is None else candidates[j].position for j in pairs]
        owners |= _with_neighbours(group, found, sequence, has_module=path is not None)
    return owners


def _with_neighbours(
    group: Sequence[_Unit], found: Sequence[int | None], sequence: CallSequence, *, has_module: bool
) -> dict[int, KernelOwner]:
    """Return the owners of a module's calls; an unmatched call gets that of its predecessor."""
    nodes = [None if position is None else sequence.calls[position].node for position in found]
    first = next((node for node in nodes if node is not None), None)
    owners, before = {}, first if has_module else None
    for unit, position, node in zip(group, found, nodes, strict=True):
        if node is not None:
            owners[unit.instance] = KernelOwner(node, position, "call")
            before = node if has_module else None
        else:
            owners[unit.instance] = (
                KernelOwner(before, None, "module") if before is not None else NO_OWNER
            )
    return owners


# Alignment: a weighted longest common subsequence.


def align(
    names: Sequence[str], kinds: Sequence[Collection[str]], weights: Sequence[float]
) -> list[int | None]:
    """Return for each name the position of its match, in order and without crossings.

    The sum of the weights of matched entries is maximal; a longest common subsequence (Wagner and
    Fischer 1974), computed row by row.

    Args:
        names: names in the first list.
        kinds: possible names of each entry of the second list.
        weights: weight of each entry of the second list, positive.
    """
    like = np.array([[name in known for known in kinds] for name in names], dtype=bool)
    like = like.reshape(len(names), len(kinds))
    gains = np.where(like, np.asarray(weights, dtype=np.float64).reshape(1, -1), 0.0)
    # best[i, j]: largest weight of matches between the first i names and the first j entries.
    best = np.zeros((len(names) + 1, len(kinds) + 1))
    for i in range(len(names)):
        taken = np.where(like[i], best[i, :-1] + gains[i], 0.0)
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], taken))
    found: list[int | None] = [None] * len(names)
    i, j = len(names), len(kinds)  # trace the matches back from the full lists
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found[i] = j
    return found
