"""The overhead of our own sampling, measured on this machine."""

from dippm.measure.selftest.figures import Figure, Report, interval
from dippm.measure.selftest.interleaved import overhead
from dippm.measure.selftest.plan import FULL, Plan, Targets

__all__ = ["FULL", "Figure", "Plan", "Report", "Targets", "interval", "overhead"]
