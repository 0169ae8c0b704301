"""Processes that share a GPU: what each costs beside the others."""

from dippm.decide.sharing.answer import SharedGpu, SharedProcess
from dippm.decide.sharing.copies import beside_copies
from dippm.decide.sharing.processes import share

__all__ = ["SharedGpu", "SharedProcess", "beside_copies", "share"]
