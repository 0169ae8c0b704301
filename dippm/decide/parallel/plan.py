"""Layout of a model over GPUs, and the time of their collective communication.

`plan_of` checks a question and returns a `ParallelPlan`, whose groups of GPUs are `Group`s: these
compute the time of all-reduce, all-gather, broadcast and send.
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.devices import Device
from dippm.devices.links import DEFAULT_NETWORK, Link, link_of, network_of
from dippm.errors import ConditionsError, UnknownNameError

STRATEGIES = ("data", "tensor", "pipeline")
MOST_GPUS = 65_536
"""Largest number of GPUs, nodes or micro-batches."""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Replicas of a model, each over the GPUs of its stages.

    Ranks are ordered by tensor parallelism first, then by pipeline stage, then by replica.

    Attributes:
        data: number of replicas, each with a batch of its own.
        tensor: number of GPUs that share every product.
        pipeline: number of stages.
        per_node: number of GPUs per node.
        link: link within a node.
        network: link between nodes; None for one node.
        micro_batches: number of micro-batches of a pipeline.
        one_process: whether one process drives all GPUs like torch.nn.DataParallel.
    """

    data: int
    tensor: int
    pipeline: int
    per_node: int
    link: Link
    network: Link | None
    micro_batches: int
    one_process: bool = False

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return self.data * self.tensor * self.pipeline

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.gpus // self.per_node

    @property
    def tensor_group(self) -> Group:
        """Tensor-parallel group: GPUs that share every product."""
        return self._group(self.tensor, 1)

    @property
    def data_group(self) -> Group:
        """Data-parallel group: GPUs with the same shard of the model."""
        return self._group(self.data, self.tensor * self.pipeline)

    @property
    def stage_group(self) -> Group:
        """Pipeline group: GPUs of successive stages of one replica."""
        return self._group(self.pipeline, self.tensor)

    def _group(self, gpus: int, stride: int) -> Group:
        """Return a group of GPUs whose ranks differ by a stride."""
        per_node = max(1, min(gpus, self.per_node // stride))
        return Group(gpus, per_node, self.link, self.network if per_node < gpus else None)


def plan_of(
    device: Device,
    *,
    gpus: int | None,
    strategy: str | None,
    data: int | None = None,
    tensor: int | None = None,
    pipeline: int | None = None,
    nodes: int = 1,
    link: str | None = None,
    network: str = DEFAULT_NETWORK,
    micro_batches: int | None = None,
    batch: int = 1,
    is_slice: bool = False,
    one_process: bool = False,
) -> ParallelPlan:
    """Check a question and return its plan.

    Args:
        device: device of all GPUs.
        gpus: total number of GPUs; None takes the product of the three degrees.
        strategy: one of `STRATEGIES` over all GPUs; "data" if no degree is given.
        data: data-parallel degree, instead of a strategy.
        tensor: tensor-parallel degree, instead of a strategy.
        pipeline: number of pipeline stages, instead of a strategy.
        nodes: number of nodes, with the same number of GPUs on each.
        link: "nvlink" or "pcie" within a node, see `dippm.devices.links.link_of`.
        network: network between nodes.
        micro_batches: number of micro-batches of a pipeline; None takes the largest divisor of the
            batch up to four per stage.
        batch: batch of one replica.
        is_slice: whether a MIG slice was requested.
        one_process: see `ParallelPlan`.

    Raises:
        ConditionsError: if the arguments contradict each other.
        UnknownNameError: if strategy, link or network is not known.
        DeviceError: if the links of the device are not known.
    """
    if is_slice:
        raise ConditionsError(
            "MIG slices are not joined to each other: they have no peer-to-peer access",
            "Use whole GPUs: mig=None.",
        )
    degrees = _degrees(gpus, strategy, data=data, tensor=tensor, pipeline=pipeline)
    total = degrees["data"] * degrees["tensor"] * degrees["pipeline"]
    _check_count("nodes", nodes)
    if total % nodes:
        raise ConditionsError(
            f"{total} GPUs are not the same number on each of {nodes} nodes",
            f"Give gpus={nodes * max(1, round(total / nodes))}, or another number of nodes.",
        )
    if one_process and (degrees["data"] != total or nodes > 1):
        raise ConditionsError(
            "one process drives copies of a model on one node, and nothing else",
            "Leave one_process out, or give strategy=data and nodes=1.",
        )
    per_node = total // nodes
    joined = link_of(device, link)
    if joined.joins is not None and per_node > joined.joins:
        raise ConditionsError(
            f"{joined.name} of {device.name} joins at most {joined.joins} GPUs of a node, not "
            f"{per_node}",
            f'Give nodes={-(-total // joined.joins)}, or use PCIe: link="pcie".',
        )
    if max(per_node, degrees["tensor"]) % min(per_node, degrees["tensor"]):
        raise ConditionsError(
            f"products over {degrees['tensor']} GPUs do not fit nodes of {per_node}",
            "Let one number divide the other.",
        )
    between = network_of(network, per_node) if nodes > 1 else None
    parts = _micro_batch_count(micro_batches, batch, degrees["pipeline"])
    return ParallelPlan(
        **degrees,
        per_node=per_node,
        link=joined,
        network=between,
        micro_batches=parts,
        one_process=one_process,
    )


def _degrees(gpus: int | None, strategy: str | None, **asked: int | None) -> dict[str, int]:
    given = {name: degree for name, degree in asked.items() if degree is not None}
    for name, degree in {**given, **({} if gpus is None else {"gpus": gpus})}.items():
        _check_count(name, degree)
    if strategy is not None and strategy not in STRATEGIES:
        raise UnknownNameError.of("strategy", strategy, STRATEGIES)
    if strategy is not None and given:
        raise ConditionsError(
            "both a strategy and degrees were given",
            f"Leave one out: strategy={strategy} has all GPUs, tensor=2 has two of them.",
        )
    if not given:
        if gpus is None:
            raise ConditionsError(
                "the number of GPUs is missing", "Give gpus=8, or tensor=2, data=4."
            )
        return {name: gpus if name == (strategy or "data") else 1 for name in STRATEGIES}
    degrees = {name: given.get(name, 1) for name in STRATEGIES}
    total = degrees["data"] * degrees["tensor"] * degrees["pipeline"]
    if gpus is None or gpus == total:
        return degrees
    if "data" not in given and gpus % total == 0:
        return {**degrees, "data": gpus // total}
    product = " × ".join(f"{degree} {name}" for name, degree in degrees.items())
    raise ConditionsError(
        f"{gpus} GPUs are not {product} = {total}",
        f"Give gpus={total}, or other degrees; data=... may be left out.",
    )


def _micro_batch_count(micro_batches: int | None, batch: int, pipeline: int) -> int:
    """Return the number of micro-batches, by default the largest divisor of the batch up to 4p."""
    if micro_batches is None:
        most = 4 * pipeline if pipeline > 1 else 1
        return max(m for m in range(1, min(most, batch) + 1) if batch % m == 0)
    _check_count("micro_batches", micro_batches)
    if pipeline == 1 and micro_batches > 1:
        raise ConditionsError(
            "micro-batches are for a pipeline, and there is one stage",
            "Give pipeline=2 or more, or leave micro_batches=1.",
        )
    if batch % micro_batches:
        near = max(m for m in range(1, micro_batches + 1) if batch % m == 0)
        raise ConditionsError(
            f"a batch of {batch} has no {micro_batches} equal parts",
            f"Give micro_batches={near}, or batch={micro_batches * -(-batch // micro_batches)}.",
        )
    return micro_batches


def _check_count(name: str, value: int) -> None:
    """Check that a number of GPUs, nodes or micro-batches is valid.

    Raises:
        ConditionsError: if it is not a whole number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
        raise ConditionsError(
            f"{name} is {value!r}", f"Give a whole number, 1 to {MOST_GPUS:,}: {name}=2."
        )


# Time of collective communication: ring algorithms in the α–β model.
#
# all-reduce of S bytes over n GPUs    start + 2 (n - 1) · hop + 2 (n - 1) / n · S / rate
#
# The faster protocol counts, as NCCL chooses it. Across nodes the collective is hierarchical: first
# within each node, then between the counterparts of all nodes. R. Thakur, R. Rabenseifner, W.
# Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.3 to 4.5.

US_PER_MS = 1e3
BYTES_PER_MS = 1e6
"""Bytes per ms of 1 GB/s."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of communicating GPUs, with the same number on each node.

    Attributes:
        gpus: total number of GPUs, at least 1.
        per_node: number of GPUs of the group on one node.
        link: link within a node.
        network: link between nodes; None if the group is on one node.
    """

    gpus: int
    per_node: int
    link: Link
    network: Link | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes of the group."""
        return -(-self.gpus // self.per_node)

    def all_reduce_ms(self, size: float) -> float:
        """Return the time in ms of an all-reduce of `size` bytes."""
        if self.nodes == 1:
            return ring_ms(self.link, self.gpus, 2.0, size)
        assert self.network is not None
        share = size / self.per_node
        within = ring_ms(self.link, self.per_node, 2.0, size)
        return within + ring_ms(self.network, self.nodes, 2.0, share)

    def all_gather_ms(self, size: float) -> float:
        """Return the time in ms of an all-gather of `size` bytes in total.

        A reduce-scatter takes the same time.
        """
        if self.nodes == 1:
            return ring_ms(self.link, self.gpus, 1.0, size)
        assert self.network is not None
        share = size / self.per_node
        within = ring_ms(self.link, self.per_node, 1.0, size)
        return within + ring_ms(self.network, self.nodes, 1.0, share)

    def broadcast_ms(self, size: float) -> float:
        """Return the time in ms of a broadcast of `size` bytes.

        A reduce takes the same time. The ring is pipelined, so its length costs hops only.
        """
        if self.gpus < 2 or size <= 0:
            return 0.0
        slowest = self.link if self.network is None else self.network
        return min(
            (p.start_us + (self.gpus - 1) * p.hop_us) / US_PER_MS
            + size / (p.payload * slowest.reached_gb_s * BYTES_PER_MS)
            for p in slowest.protocols
        )

    def send_ms(self, size: float) -> float:
        """Return the time in ms of a transfer of `size` bytes to the next GPU.

        If the group has several nodes, this is the slower transfer between nodes.
        """
        way = self.link if self.network is None else self.network
        return min(
            (p.start_us + p.hop_us) / US_PER_MS
            + size / (p.payload * way.reached_gb_s * BYTES_PER_MS)
            for p in way.protocols
        )


def ring_ms(link: Link, ranks: int, rounds: float, size: float) -> float:
    """Return the time of a ring collective in ms.

    Args:
        link: link between neighbours.
        ranks: number of ranks in the ring; one rank takes no time.
        rounds: 2 for an all-reduce, 1 for an all-gather or a reduce-scatter.
        size: bytes of the whole tensor.
    """
    if ranks < 2 or size <= 0:
        return 0.0
    steps = rounds * (ranks - 1)
    return min(
        (p.start_us + steps * p.hop_us) / US_PER_MS
        + steps / ranks * size / (p.payload * link.reached_gb_s * BYTES_PER_MS)
        for p in link.protocols
    )
