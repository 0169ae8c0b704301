"""The smallest MIG slice for a model, and the fractions of a GPU that a slice has."""

from __future__ import annotations

import math

from dippm.devices.catalog import find
from dippm.devices.device import Device, MigProfile

SEED_DEVICE = "A100-40GB"
SEED_LIMITS_MB = {"1g.5gb": 5_000, "2g.10gb": 10_000, "3g.20gb": 20_000, "7g.40gb": 40_000}


def smallest_profile(memory_mb: float, device: Device) -> MigProfile | None:
    """Return the smallest slice of a device whose usable memory holds a model.

    A model of exactly the usable memory fits. Of two slices with the same memory, the one with
    fewer SMs is taken, so that most of the GPU stays free.

    Args:
        memory_mb: memory of the model in MiB.
        device: the GPU; its `unlisted_mig_profiles` are not considered.

    Returns:
        None if no slice with known memory suffices, or the GPU has no slices.

    Raises:
        ValueError: if the memory is negative or not a number.
    """
    _check(memory_mb)
    fitting = [p for p in device.mig_profiles if memory_mb <= p.memory_mb]
    return min(fitting, key=lambda p: (p.memory_mb, p.sm_count), default=None)


def seed_profile(memory_mb: float) -> MigProfile | None:
    """Return the slice of an A100-40GB by Eq. 2 of D3.5, with nominal limits and four profiles.

    Eq. 2 leaves the limits themselves undefined (5 GB is neither below nor above); here each
    limit belongs to the smaller profile, and "gb" is 1000 MB, which reproduces the
    percentages of D3.5's Table 4 (2918 MB is 58 % of 5 GB, 30996 MB is 77 % of 40 GB). As in
    Eq. 2, 0 gives None. For a decision use `smallest_profile`: a real 1g.5gb has 4864 MB, not 5000.

    Args:
        memory_mb: memory predicted for the whole GPU.

    Raises:
        ValueError: if the memory is negative or not a number.
    """
    _check(memory_mb)
    names = (name for name, limit in SEED_LIMITS_MB.items() if 0 < memory_mb <= limit)
    chosen = next(names, None)
    profiles = {profile.name: profile for profile in find(SEED_DEVICE).mig_profiles}
    return profiles[chosen] if chosen else None


def sm_fraction(profile: MigProfile, device: Device) -> float:
    """Return the fraction of the GPU's SMs in a slice, 0 to 1.

    It differs from the nominal k/7 in both directions (98 of 108 for 7g on an A100).
    """
    return profile.sm_count / device.known("sm_count")


def memory_fraction(profile: MigProfile, device: Device) -> float:
    """Return the fraction of the GPU's bandwidth and L2 in a slice, 0 to 1."""
    return profile.memory_slices / device.memory_slices


def taken_fraction(profile: MigProfile, device: Device) -> float:
    """Return the dominant share of a slice, 0 to 1.

    It is the larger of its fractions of compute and memory slices (Ghodsi et al. 2011): of 3g,
    with 3 of 7 and 4 of 8, no more than two fit.
    """
    compute = max(p.compute_slices for p in device.mig_profiles)
    return max(profile.compute_slices / compute, memory_fraction(profile, device))


def _check(memory_mb: float) -> None:
    if math.isnan(memory_mb) or memory_mb < 0:
        raise ValueError(f"memory is {memory_mb} MB; it must be 0 or more")
