"""Trained predictors: found by name or path, checked, loaded."""

from dippm.estimate.pretrained.checkpoint import Checkpoint, load, save_checkpoint
from dippm.estimate.pretrained.store import DEFAULT, CheckpointInfo, available, find, for_device

__all__ = [
    "DEFAULT",
    "Checkpoint",
    "CheckpointInfo",
    "available",
    "find",
    "for_device",
    "load",
    "save_checkpoint",
]
