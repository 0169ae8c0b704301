"""What a device is, by name, and which slice of it holds a model."""

from dippm.devices.catalog import all_cpus, all_devices, find
from dippm.devices.device import Device, MigProfile
from dippm.devices.mig import memory_fraction, seed_profile, sm_fraction, smallest_profile

__all__ = [
    "Device",
    "MigProfile",
    "all_cpus",
    "all_devices",
    "find",
    "memory_fraction",
    "seed_profile",
    "sm_fraction",
    "smallest_profile",
]
