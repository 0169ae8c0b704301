"""Time of collective communication: rings by the α–β model.

all-reduce of S bytes over n GPUs    start + 2 (n - 1) · hop + 2 (n - 1) / n · S / rate

The faster protocol counts, as NCCL chooses it. Across nodes the collective is hierarchical: first
within each node, then between the counterparts of all nodes. R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.3 to 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.devices.links import Link

US_PER_MS = 1e3
BYTES_PER_MS = 1e6
"""Bytes per ms of 1 GB/s."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of communicating GPUs, the same number on each node.

    Attributes:
        gpus: total number of GPUs, at least 1.
        per_node: GPUs of the group on one node.
        link: link within a node.
        network: link between nodes; None if the group is on one node.
    """

    gpus: int
    per_node: int
    link: Link
    network: Link | None = None

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
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
