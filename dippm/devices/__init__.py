"""What a GPU is."""

from dippm.devices.device import Device, MigProfile

__all__ = ["Device", "MigProfile"]
