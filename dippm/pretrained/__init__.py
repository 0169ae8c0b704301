"""Trained predictors: found by name or path, checked, loaded."""

from dippm.pretrained.checkpoint import Checkpoint, load, save_checkpoint
from dippm.pretrained.store import DEFAULT, CheckpointInfo, available, find

__all__ = [
    "DEFAULT",
    "Checkpoint",
    "CheckpointInfo",
    "available",
    "find",
    "load",
    "save_checkpoint",
]
