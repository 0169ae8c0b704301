"""Devices by name or from a file, and their MIG slices."""

from dippm.devices.catalog import all_cpus, all_devices, find, is_catalogued
from dippm.devices.check import check_device
from dippm.devices.device import CalibratedModel, Calibration, Device, MemoryFamily, MigProfile
from dippm.devices.device_file import read_device, write_device
from dippm.devices.hosts import (
    HostMachine,
    all_hosts,
    assumed_hosts,
    default_host,
    host_of,
    named_host_log_sd,
    unknown_host_log_sd,
)
from dippm.devices.mig import (
    Placement,
    arrange,
    arrangements,
    maximal_arrangements,
    memory_fraction,
    places,
    seed_profile,
    sm_fraction,
    smallest_profile,
    taken_fraction,
)

__all__ = [
    "CalibratedModel",
    "Calibration",
    "Device",
    "HostMachine",
    "MemoryFamily",
    "MigProfile",
    "Placement",
    "all_cpus",
    "all_devices",
    "all_hosts",
    "arrange",
    "arrangements",
    "assumed_hosts",
    "check_device",
    "default_host",
    "find",
    "host_of",
    "is_catalogued",
    "maximal_arrangements",
    "memory_fraction",
    "named_host_log_sd",
    "places",
    "read_device",
    "seed_profile",
    "sm_fraction",
    "smallest_profile",
    "taken_fraction",
    "unknown_host_log_sd",
    "write_device",
]
