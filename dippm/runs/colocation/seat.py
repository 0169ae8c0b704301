"""`Seat`: what one of the runs that share devices is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Seat(NamedTuple):
    """The place of one run on the devices.

    Attributes:
        environment: variables that its process is started with, on top of the usual ones:
            CUDA_VISIBLE_DEVICES by UUID, CUDA_MPS_* under MPS; empty without a GPU.
        devices: UUIDs of the whole GPUs; empty without a GPU.
        slice: profile of its MIG slice, "" for none.
        sharing: as it was asked for, see `Sharing`; "" for none.
        facts: what is recorded on the run: how the devices are shared, the layout before, processes
            of others that were seen on the card.
    """

    environment: Mapping[str, str]
    devices: tuple[str, ...]
    slice: str
    sharing: str
    facts: Mapping[str, str]

    @property
    def visible(self) -> tuple[str, ...]:
        """UUIDs of what the run sees: its GPUs, or its slice; what is to be sampled for it.

        Of a slice NVML and GPM tell the memory and the activity of its own, and the board's power.
        """
        shown = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        return tuple(shown.split(",")) if shown else ()
