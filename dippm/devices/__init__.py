"""What a device is, by name or from a file, and which slice of it holds a model."""

from dippm.devices.catalog import all_cpus, all_devices, find, is_catalogued
from dippm.devices.check import check_device
from dippm.devices.device import Calibration, Device, MigProfile
from dippm.devices.device_file import read_device, write_device
from dippm.devices.mig import memory_fraction, seed_profile, sm_fraction, smallest_profile

__all__ = [
    "Calibration",
    "Device",
    "MigProfile",
    "all_cpus",
    "all_devices",
    "check_device",
    "find",
    "is_catalogued",
    "memory_fraction",
    "read_device",
    "seed_profile",
    "sm_fraction",
    "smallest_profile",
    "write_device",
]
