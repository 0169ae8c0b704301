"""`Device` and `MigProfile`: what a GPU is, and which slice of it holds a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One Multi-Instance GPU profile; prints as its name.

    Attributes:
        name: for instance "1g.5gb".
        memory_mb: usable memory in MiB, as the driver reports it.
        sm_count: streaming multiprocessors of the slice (not k/7 of the GPU).
        compute_slices: the number before "g".
        memory_slices: of the GPU's memory slices.
    """

    name: str
    memory_mb: int
    sm_count: int
    compute_slices: int
    memory_slices: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a CPU that was measured. A field that is not known is None, never 0.

    Of a CPU only name, memory and source are known: predictors that compute with rates refuse it.

    Attributes:
        name: catalogue name, for instance "A100-40GB".
        architecture: for instance "Ampere".
        compute_capability: for instance 8.0; None for other vendors.
        sm_count: streaming multiprocessors.
        boost_clock_mhz: highest clock.
        memory_mb: capacity in MiB.
        bandwidth_gb_s: peak memory bandwidth.
        l2_mb: second-level cache in MiB.
        peak_tflops: dense peak rate by precision: "fp32" (no tensor cores), "tf32", "fp16",
            "bf16", "fp8", "int8"; a precision without hardware support is missing.
        power_limit_w: board power limit.
        mig_profiles: smallest memory first; empty if the GPU cannot be sliced.
        unlisted_mig_profiles: names of profiles that exist but whose usable memory we do not know.
        kind: "gpu" or "cpu".
        source: where the values come from, and how sure they are.
    """

    name: str
    architecture: str
    compute_capability: float | None
    sm_count: int
    boost_clock_mhz: float
    memory_mb: int
    bandwidth_gb_s: float
    l2_mb: float
    peak_tflops: Mapping[str, float]
    power_limit_w: float
    mig_profiles: tuple[MigProfile, ...] = ()
    source: str = ""
    aliases: tuple[str, ...] = field(default=())
    unlisted_mig_profiles: tuple[str, ...] = ()
    kind: Literal["gpu", "cpu"] = "gpu"
