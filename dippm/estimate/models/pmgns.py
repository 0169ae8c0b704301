"""Predictor kind "pmgns": D3.5's method, answering only for what it was trained on.

It is the reference point. A pooled embedding cannot carry over to another GPU, precision or
execution mode, so those are refused, not extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from dippm.errors import CheckpointError, ConditionsError
from dippm.estimate.conditions import Conditions
from dippm.estimate.features import FEATURE_VERSION, GraphTensors, collate, encode
from dippm.estimate.features.encode import FIRST_SHAPE, SHAPE_COLUMNS
from dippm.estimate.models.checkpoint_schemas import PmgnsSchema, check
from dippm.estimate.models.pmgns_network import Pmgns, PmgnsConfig
from dippm.estimate.models.predictor import predictor, refuse_phase, refuse_runtime
from dippm.estimate.models.targets import NOTHING_RUNS, TARGETS, Estimate, Estimates, Interval
from dippm.model.graph.model_graph import ModelGraph, OpNode

KIND = "pmgns"
WITHOUT_AUTOGRAD = (False,)
NODES_AT_ONCE = 1 << 12
"""Nodes that `estimate_many` sends through the network together. What a layer of width 128 gives
for them is 2 MiB and stays in a core's cache; sixteen times as many take over twice the time."""


@predictor(KIND)
class PmgnsPredictor:
    """A trained network with the conditions and the residuals of its training.

    Args:
        network: weights and scales.
        config: configuration of the checkpoint; the keys read here are "graph_version",
            "conditions" (of the measurements: lists under "devices", "precision", "mode", "timer",
            "channels_last", and "autograd", which is [False] where it is not given),
            "residuals" (per target the quantiles of log(measured / predicted) on held-out data:
            "coverage", "low", "high", "upper_99"), "seen" ("operators", "batch", "nodes") and,
            where given, "absent" (reason by target that was not trained).
    """

    feature_version = FEATURE_VERSION

    def __init__(self, network: Pmgns, config: Mapping[str, Any]) -> None:
        self.network = network.eval().requires_grad_(False)
        self.config = config

    @classmethod
    def from_checkpoint(
        cls, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]
    ) -> Self:
        """Build the predictor.

        Raises:
            CheckpointError: if the checkpoint is for another feature layout or its tensors do not
                fit its configuration.
        """
        if config.get("feature_version") != FEATURE_VERSION:
            raise CheckpointError(
                f"the checkpoint is for feature version {config.get('feature_version')}, "
                f"this is {FEATURE_VERSION}",
                "Take a checkpoint of this version of DIPPM (`dippm models`), or train again.",
            )
        check(config, PmgnsSchema, "the configuration")
        switches = PmgnsConfig.from_dict(config["network"])
        with torch.device("meta"):  # shapes without memory: the configuration may ask for any size
            wanted = {name: t.shape for name, t in Pmgns(switches).state_dict().items()}
        if wanted != {name: tensor.shape for name, tensor in tensors.items()}:
            raise CheckpointError(
                "the checkpoint's tensors do not fit its configuration",
                "Its files are damaged or mixed; fetch the checkpoint again.",
            )
        network = Pmgns(switches)
        network.load_state_dict(dict(tensors))
        return cls(network, config)

    def predict(self, graph: ModelGraph, conditions: Conditions) -> Estimates:
        """Predict one point.

        Raises:
            ConditionsError: if the checkpoint was not trained for these conditions.
            CheckpointError: if the graph follows other canonical rules than its training graphs.
        """
        return self.predict_many(graph, [conditions])[0]

    def predict_many(self, graph: ModelGraph, conditions: Sequence[Conditions]) -> list[Estimates]:
        """Predict many points of one model; points that look alike are computed once."""
        if graph.version != self.config["graph_version"]:
            raise CheckpointError(
                f"the checkpoint is for graph version {self.config['graph_version']}, "
                f"the graph has {graph.version}",
                "Take a checkpoint of this version of DIPPM (`dippm models`), or train again.",
            )
        for point in conditions:
            self.refuse_untrained(point)
        if not conditions:
            return []
        if graph.runs_nothing:
            return [Estimates({}, dict.fromkeys(TARGETS, NOTHING_RUNS))] * len(conditions)
        batches = {point.batch for point in conditions}
        graphs = {b: graph if graph.batch == b else graph.at_batch(b) for b in sorted(batches)}
        keys = list(dict.fromkeys(map(_key, conditions)))
        tensors = [
            network_inputs(graphs[b], self.network.config, precision=precision, channels_last=last)
            for b, precision, last in keys
        ]
        with torch.inference_mode():
            rows = self.network.decode(self.network(collate(tensors))).tolist()
        answers = {
            key: self._estimates(row, graphs[key[0]]) for key, row in zip(keys, rows, strict=True)
        }
        return [answers[_key(point)] for point in conditions]

    def estimate(self, graphs: GraphTensors) -> torch.Tensor:
        """Return (G, T) in physical units, T as `targets` of the network's configuration.

        Nothing is checked: the tensors are those of `network_inputs` under the conditions of the
        training. Gradients reach `x` and `static` if they ask for them.
        """
        return self.network.decode(self.network(graphs))

    def estimate_many(
        self, graphs: Sequence[GraphTensors], *, nodes_at_once: int = NODES_AT_ONCE
    ) -> torch.Tensor:
        """Return `estimate` of any number of graphs, (G, T), in pieces that memory holds.

        Args:
            graphs: of one model each, or of several.
            nodes_at_once: a piece has at most that many nodes, or one of `graphs`.
        """
        if not graphs:
            return torch.zeros(0, len(self.network.config.targets))
        pieces: list[list[GraphTensors]] = [[]]
        nodes = 0
        for graph in graphs:
            nodes += graph.x.shape[0]
            if pieces[-1] and nodes > nodes_at_once:
                pieces.append([])
                nodes = graph.x.shape[0]
            pieces[-1].append(graph)
        return torch.cat([self.estimate(collate(piece)) for piece in pieces])

    def refuse_untrained(self, conditions: Conditions) -> None:
        """Refuse conditions that were not trained for.

        Raises:
            ConditionsError: that names the first of them.
        """
        refuse_phase(self.config, conditions)
        refuse_runtime(conditions)
        trained = self.config["conditions"]
        if conditions.device.name not in trained["devices"]:
            raise ConditionsError(
                f"this checkpoint does not support {conditions.device.name}",
                f"It was trained on {', '.join(trained['devices'])}; the kind `hybrid` predicts "
                "other GPUs, no other CPUs.",
            )
        if conditions.mig is not None:
            raise ConditionsError(
                f"this checkpoint was trained on whole devices, not on slice {conditions.mig}",
                "Leave the slice out, or use the kind `hybrid`.",
            )
        if conditions.host is not None:
            raise ConditionsError(
                "this checkpoint supports only the host that it was trained on",
                "Leave the host out, or use the kind `hybrid`.",
            )
        if conditions.context_mb is not None:
            raise ConditionsError(
                "this checkpoint predicts the memory as one number, without a context_mb",
                "Leave context_mb out, or use the kind `hybrid`.",
            )
        if conditions.autograd not in trained.get("autograd", WITHOUT_AUTOGRAD):
            other = "without" if conditions.autograd else "with"
            remedy = "Leave autograd out" if conditions.autograd else "Ask for autograd=True"
            raise ConditionsError(
                f"this checkpoint was trained on passes {other} autograd",
                f"{remedy}, or use the kind `hybrid`.",
            )
        if conditions.attention != "fused":
            raise ConditionsError(
                "this checkpoint supports only the attention of its training, not "
                f"{conditions.attention}",
                "Use attention=fused, or use the kind `hybrid`.",
            )
        for name in ("precision", "mode", "timer", "channels_last"):
            value = getattr(conditions, name)
            if value not in trained[name]:
                known = ", ".join(map(str, trained[name]))
                raise ConditionsError(
                    f"this checkpoint was not trained for {name}={value}",
                    f"Use {name}={known}, or use the kind `hybrid`.",
                )

    def _estimates(self, row: Sequence[float], graph: ModelGraph) -> Estimates:
        residuals = self.config["residuals"]
        points = dict(zip(self.network.config.targets, row, strict=True))
        values = {
            target: _estimate(points[target], residuals[target])
            for target in TARGETS
            if target in points and target in residuals
        }
        absent = {target: self._why_absent(target) for target in TARGETS if target not in values}
        bound = None
        if "memory_mb" in values:
            bound = points["memory_mb"] * math.exp(residuals["memory_mb"]["upper_99"])
        return Estimates(
            values=values, absent=absent, memory_bound_mb=bound, warnings=self._warnings(graph)
        )

    def _why_absent(self, target: str) -> str:
        if target in self.config.get("absent", {}):
            return str(self.config["absent"][target])
        if target not in self.network.config.targets:
            return "this network has no output for it"
        return "its training data has no measurement of it"

    def _warnings(self, graph: ModelGraph) -> tuple[str, ...]:
        seen, warnings = self.config["seen"], []
        unseen = sorted({node.op for node in graph.nodes} - set(seen["operators"]))
        if unseen:
            warnings.append(f"operators never seen in training: {', '.join(unseen)}")
        for name, value in (("batch", graph.batch), ("nodes", len(graph.nodes))):
            low, high = seen[name]
            if not low <= value <= high:
                warnings.append(f"{name} is {value}, training had {low} to {high}")
        return tuple(warnings)


def _key(point: Conditions) -> tuple[int, str, bool]:
    return point.batch, point.precision, point.channels_last


def _estimate(value: float, residual: Mapping[str, float]) -> Estimate:
    low, high = value * math.exp(residual["low"]), value * math.exp(residual["high"])
    return Estimate(value, Interval(low, high, residual["coverage"]))


# `network_inputs`: what a PMGNS network sees of a graph, as D3.5 says or as its code does.
#
# The released code of D3.5 keeps an operator only if it reads a weight or a model input, joins the
# kept operators to a chain, and puts the weight's shape where the report says output shape. These
# are switches of `PmgnsConfig`, so that the difference can be measured.


def network_inputs(
    graph: ModelGraph, config: PmgnsConfig, *, precision: str = "fp32", channels_last: bool = False
) -> GraphTensors:
    """Return the tensors of a graph under the switches `nodes`, `edges` and `shape`.

    Precision and layout enter as static inputs if the network tells precisions apart.
    """
    tensors = encode(graph)
    if config.precisions:
        regime = [float(precision == known) for known in config.precisions] + [float(channels_last)]
        static = torch.cat([tensors.static, torch.tensor([regime])], dim=1)
        tensors = replace(tensors, static=static)
    if config.shape == "weight":
        tensors = replace(tensors, x=_with_weight_shapes(graph, tensors.x))
    if config.nodes == "var_only":
        tensors = _only(tensors, _reads_variable(graph))
    if config.edges == "chain":
        order = torch.arange(tensors.x.shape[0])
        tensors = replace(tensors, edge_index=torch.stack([order[:-1], order[1:]]))
    return tensors


def _reads_variable(graph: ModelGraph) -> list[bool]:
    fed = {consumer for _, consumer in graph.edges}
    return [node.param_bytes > 0 or i not in fed for i, node in enumerate(graph.nodes)]


def _only(tensors: GraphTensors, kept: list[bool]) -> GraphTensors:
    """Drop operators; data flow through a dropped one joins its neighbours."""
    position, count = {}, 0
    for node, keep in enumerate(kept):
        if keep:
            position[node] = count
            count += 1
    origins: list[set[int]] = [set() for _ in kept]
    edges: set[tuple[int, int]] = set()
    for producer, consumer in sorted(map(tuple, tensors.edge_index.T.tolist()), key=lambda e: e[1]):
        sources = {position[producer]} if kept[producer] else origins[producer]
        if kept[consumer]:
            edges |= {(source, position[consumer]) for source in sources}
        else:
            origins[consumer] |= sources
    index = torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2).T.contiguous()
    mask = torch.tensor(kept, dtype=torch.bool)
    return replace(tensors, x=tensors.x[mask], edge_index=index, batch=tensors.batch[mask])


def _with_weight_shapes(graph: ModelGraph, x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    sizes = torch.tensor([_weight_shape(node) for node in graph.nodes], dtype=torch.float64)
    x[:, FIRST_SHAPE : FIRST_SHAPE + 4] = sizes.reshape(-1, 4).log1p().float()
    x[:, FIRST_SHAPE + 4 : FIRST_SHAPE + len(SHAPE_COLUMNS)] = 0.0
    return x


def _weight_shape(node: OpNode) -> tuple[int, int, int, int]:
    """Return the weight's shape, cut or padded with zeros to four sizes."""

    def number(name: str, default: int = 0) -> int:
        value = node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    if node.op == "dense":
        shape: tuple[int, ...] = (number("out_features"), number("in_features"))
    elif "out_channels" in node.attributes:
        kernel = node.attributes.get("kernel", ())
        inputs = number("in_channels") // max(number("groups", 1), 1)
        shape = (number("out_channels"), inputs, *(kernel if isinstance(kernel, tuple) else ()))
    else:
        shape = ()
    a, b, c, d = (*shape, 0, 0, 0, 0)[:4]
    return a, b, c, d
