"""`dippm mig`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dippm.cli import options
from dippm.cli.choose import MaxMemory, SloAt, SloMs, answer_choice

if TYPE_CHECKING:
    from dippm.decide.choice import Choice


@options.conditions("mig")  # every slice is a row
def mig(
    model: options.Source,
    slo_ms: SloMs = None,
    slo_at: SloAt = "upper",
    max_memory_mb: MaxMemory = None,
    *,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    **asked: Any,
) -> None:
    """Find the smallest MIG slice that holds a model at 99 % and meets a latency limit.

    Every slice is a row. Exit code 1 if not even the whole GPU is sufficient.
    """

    def ask() -> Choice:
        from dippm.decide.choice import smallest_slice

        return smallest_slice(
            model,
            slo_ms=slo_ms,
            slo_at=cast(Any, slo_at),
            max_memory_mb=max_memory_mb,
            **asked,
        )

    answer_choice("mig", ask, json=json, csv=csv, html=html, quiet=quiet, slices=True)
