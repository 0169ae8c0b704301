"""`Limits`: time and memory of one conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dippm.errors import ConditionsError

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_MEMORY_LIMIT_MB = 4096
LEAST_MEMORY_MB = 64
OPERATORS = 100_000
MOST_TIMES = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one conversion.

    Attributes:
        timeout_s: wall time from request to answer, including the start of the process, for a graph
            of up to 100,000 operators; larger ones get more, see `time_factor`. Infinite for none.
        memory_limit_mb: limit on the private memory of the process (`RLIMIT_DATA`).

    Raises:
        ConditionsError: if a value is not a valid limit.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB

    def __post_init__(self) -> None:
        if not _is_number(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConditionsError(
                f"the time limit is {self.timeout_s!r}",
                "Give seconds above 0, as timeout_s=...; timeout_s=inf is no limit.",
            )
        if not _is_number(self.memory_limit_mb, int) or self.memory_limit_mb < LEAST_MEMORY_MB:
            raise ConditionsError(
                f"the memory limit is {self.memory_limit_mb!r} MB",
                f"Give a whole number, as memory_limit_mb=..., from {LEAST_MEMORY_MB}"
                f" on; most models need less than {DEFAULT_MEMORY_LIMIT_MB}.",
            )


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def time_factor(operators: int) -> float:
    """Return the factor on the time limit for a graph, in proportion to its size, from 1 to 10."""
    return min(max(operators / OPERATORS, 1.0), MOST_TIMES)
