"""Processes that share a GPU: the cost of each among the others."""

from dippm.decide.sharing.answer import SharedGpu, SharedProcess
from dippm.decide.sharing.copies import predict_among_copies
from dippm.decide.sharing.processes import share

__all__ = ["SharedGpu", "SharedProcess", "predict_among_copies", "share"]
