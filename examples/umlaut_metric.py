"""A metric of your own: voluntary context switches of a call, in one small class."""

from __future__ import annotations

import resource
from typing import Any

from dippm.umlaut import Metric


class ContextSwitchMetric(Metric):
    """How often the process gave its core away during a call: it waited for something."""

    measure_type, name, unit = "switches", "switches", "switches"
    about = "voluntary context switches of this process"

    def begin(self) -> Any:
        """Return the count when the call begins."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

    def end(self, begun: Any, seconds: float) -> float:
        """Return the switches of the call."""
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - begun)
