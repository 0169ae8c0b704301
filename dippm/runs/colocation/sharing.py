"""`Sharing`: how runs share a GPU, in the notation of plans; `Seat`: what each run gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from dippm.errors import CollocationError, shortened

Kind = Literal["none", "mps", "mig"]
NONE = ("", "-", "none")
PROFILE = re.compile(r"[0-9]+g\.[0-9]+gb([+-][a-z.]+)*")
LEAST_MEMORY_MB = 1


class Sharing(NamedTuple):
    """How runs share a GPU.

    Attributes:
        kind: "none" for time slicing, "mps", or "mig".
        profile: profile of each run's MIG slice, "" for the other kinds.
        thread_percent: share of the GPU's threads for each MPS client; None for no limit.
        memory_limit_mb: device memory in MiB for each MPS client; None for no limit.
    """

    kind: Kind
    profile: str = ""
    thread_percent: float | None = None
    memory_limit_mb: int | None = None

    @classmethod
    def parse(cls, text: str) -> Sharing:
        """Parse a cell of the column "Collocation", ignoring case and padding.

        Args:
            text: "" or "-" for none, "mps", "mps:50%" (share of threads), "mps:4096mb" (memory
                limit), "mps:50%:4096mb", or the name of a MIG profile ("3g.20gb").

        Raises:
            CollocationError: if it is none of these, or a number is out of range.
        """
        word = text.strip().casefold()
        if word in NONE:
            return cls("none")
        name, *limits = word.split(":")
        if name == "mps":
            return _parse_limits(cls("mps"), limits, text)
        if PROFILE.fullmatch(word):
            return cls("mig", profile=word)
        raise _unknown(text)

    def __str__(self) -> str:
        if self.kind != "mps":
            return self.profile
        threads = [] if self.thread_percent is None else [f"{self.thread_percent:g}%"]
        memory = [] if self.memory_limit_mb is None else [f"{self.memory_limit_mb}mb"]
        return ":".join(["mps", *threads, *memory])


def _parse_limits(sharing: Sharing, limits: list[str], text: str) -> Sharing:
    for limit in limits:
        threads = re.fullmatch(r"([0-9]+(\.[0-9]+)?)%", limit)
        memory = re.fullmatch(r"([0-9]+)mb", limit)
        if threads and sharing.thread_percent is None and 0 < float(threads[1]) <= 100:
            sharing = sharing._replace(thread_percent=float(threads[1]))
        elif memory and sharing.memory_limit_mb is None and int(memory[1]) >= LEAST_MEMORY_MB:
            sharing = sharing._replace(memory_limit_mb=int(memory[1]))
        else:
            raise _unknown(text)
    return sharing


def _unknown(text: str) -> CollocationError:
    hint = (
        "Leave it empty, or write mps, mps:50% (of the threads), mps:4096mb (limit of memory), "
        "mps:50%:4096mb, or the name of a MIG profile such as 3g.20gb."
    )
    return CollocationError(f"{shortened(text)!r} is not a way to share a GPU", hint)


# The allocation of one of the runs that share devices.


class Seat(NamedTuple):
    """The allocation of one run.

    Attributes:
        environment: additional variables for its process: CUDA_VISIBLE_DEVICES by UUID, CUDA_MPS_*
            under MPS; empty without a GPU.
        devices: UUIDs of the whole GPUs; empty without a GPU.
        slice: profile of its MIG slice, "" for none.
        sharing: requested way of sharing, see `Sharing`; "" for none.
        facts: facts to record with the run: way of sharing, previous layout, other processes on the
            GPU.
    """

    environment: Mapping[str, str]
    devices: tuple[str, ...]
    slice: str
    sharing: str
    facts: Mapping[str, str]

    @property
    def visible(self) -> tuple[str, ...]:
        """UUIDs of the GPUs or the slice that the run sees, which are also those to sample.

        For a slice, NVML and GPM report its own memory and activity, and the power of its board.
        """
        shown = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        return tuple(shown.split(",")) if shown else ()
