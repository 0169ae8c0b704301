"""Trained predictors: found by name or path, checked, loaded."""

from dippm.pretrained.checkpoint import Checkpoint, load, save_checkpoint
from dippm.pretrained.choice import for_device
from dippm.pretrained.store import DEFAULT, CheckpointInfo, available, find

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
