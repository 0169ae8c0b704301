"""What GPUs need to exchange tensors: rings after the α–β model.

all-reduce of S bytes over n GPUs    start + 2 (n - 1) · hop + 2 (n - 1) / n · S / rate

The faster of the protocols counts, as NCCL chooses. Over nodes, GPUs of a node first share what
they have, then each exchanges its share with its counterparts. R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.3 to 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from dippm.devices.links import Link

US_PER_MS = 1e3
BYTES_PER_MS = 1e6
"""Of a GB/s."""


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that communicate, as many on each node.

    Attributes:
        gpus: in all, at least 1.
        per_node: GPUs of one node that belong to the group.
        link: within a node.
        network: between nodes; None if the group is on one node.
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
        """Return the time in ms in which every GPU gets the sum of `size` bytes of each."""
        if self.nodes == 1:
            return ring_ms(self.link, self.gpus, 2.0, size)
        assert self.network is not None
        share = size / self.per_node
        within = ring_ms(self.link, self.per_node, 2.0, size)
        return within + ring_ms(self.network, self.nodes, 2.0, share)

    def all_gather_ms(self, size: float) -> float:
        """Return the time in ms in which every GPU gets `size` bytes, of which each had a part.

        A reduce-scatter of as many bytes takes the same time.
        """
        if self.nodes == 1:
            return ring_ms(self.link, self.gpus, 1.0, size)
        assert self.network is not None
        share = size / self.per_node
        within = ring_ms(self.link, self.per_node, 1.0, size)
        return within + ring_ms(self.network, self.nodes, 1.0, share)

    def broadcast_ms(self, size: float) -> float:
        """Return the time in ms in which every GPU gets `size` bytes of one.

        A reduce takes as long. The ring passes pieces on while others arrive, so its length costs
        hops only.
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
        """Return the time in ms in which one GPU sends `size` bytes to the next.

        Where the group has several nodes this is the slower way, between them.
        """
        way = self.link if self.network is None else self.network
        return min(
            (p.start_us + p.hop_us) / US_PER_MS
            + size / (p.payload * way.reached_gb_s * BYTES_PER_MS)
            for p in way.protocols
        )


def ring_ms(link: Link, ranks: int, rounds: float, size: float) -> float:
    """Return the time of a ring in ms.

    Args:
        link: between neighbours.
        ranks: in the ring; of one there is nothing to do.
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
