"""Power of our own rows: what the board drew, and what the row's work made it do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from dataset.join.graph_store import GraphStore
from dippm.devices import find
from dippm.estimate.conditions import Mode, Precision
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.power import achieved_shares
from dippm.measure.collected.labels import DISTURBING
from training.hybrid.rows.collected_rows import CollectedSet
from training.hybrid.rows.power_samples import OPERATORS, PowerSample

MODELS = "models"


def collected_power(found: CollectedSet, graphs: GraphStore) -> Iterator[PowerSample]:
    """Yield a sample for each row that has power and the time of its kernels.

    Slices are left out: the counter is that of the whole board. So are windows in which heat or a
    brake slowed the GPU.
    """

    @lru_cache(maxsize=8)
    def table(model: str, precision: Precision, mode: Mode, channels_last: bool) -> KernelTable:
        return KernelTable.of(graphs[model], precision, mode, channels_last=channels_last)

    for record in sorted(found.records, key=lambda record: record["model"]):
        if (
            record["power_w"]
            and record["kernel_ms"]
            and record["energy_steps"]
            and record["mig_profile"] is None
            and not _disturbed(record)
        ):
            regime = record["precision"], record["mode"], bool(record["channels_last"])
            yield _sample(record, found.source, table(record["model"], *regime))


def _sample(record: Mapping[str, Any], source: str, table: KernelTable) -> PowerSample:
    device = find(record["device"])
    step_ms = 1e3 * record["energy_window_s"] / record["energy_steps"]
    busy_ms = min(step_ms, record["kernel_ms"] * _slower(record))
    view = DeviceView.of(device)
    return PowerSample(
        source=source,
        kind=MODELS if record["kind"] == "model" else OPERATORS,
        group=record["architecture"],
        device=device,
        busy=busy_ms / step_ms,
        shares=achieved_shares(table, int(record["batch"]), view, busy_ms),
        power_w=float(record["power_w"]),
        row_id=record["row_id"],
        idle_w=_idle_w(record),
        limit_w=record["power_cap_w"],
    )


def _slower(record: Mapping[str, Any]) -> float:
    """Return how much longer kernels took in the energy window than when they were profiled.

    A board at its power limit lowers its clock only after a while, so the window has a lower one.
    """
    timed, window = record["sm_clock_mhz"], record["energy_sm_clock_mhz"]
    return float(timed / window) if timed and window else 1.0


def _idle_w(record: Mapping[str, Any]) -> float | None:
    """Return the mean of the idle power before and after the window, as far as it is known."""
    known = [w for w in (record["idle_power_w"], record["idle_power_after_w"]) if w]
    return sum(known) / len(known) if known else None


def _disturbed(record: Mapping[str, Any]) -> bool:
    reasons = record["energy_throttle_reasons"] or ()
    return any(part in str(reason).casefold() for reason in reasons for part in DISTURBING)
