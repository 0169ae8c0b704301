"""Sources by name; missing hardware gives a source of reasons, never an error.

To add one, add a line to `BUILT_IN`, or from another distribution register a function that opens
it under the entry point group "dippm.sources".
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from dippm.errors import UnknownNameError
from dippm.measure.readings import AbsentSource, Quantity, Source

BUILT_IN = {
    "nvml": "dippm.measure.sources.nvml:open_nvml",
    "nvml_processes": "dippm.measure.sources.nvml_processes:open_nvml_processes",
    "mig": "dippm.measure.sources.mig:open_mig",
    "gpm": "dippm.measure.sources.gpm:open_gpm",
    "dcgm": "dippm.measure.sources.dcgm:open_dcgm",
    "cuda_allocator": "dippm.measure.sources.cuda_allocator:open_cuda_allocator",
    "tegrastats": "dippm.measure.sources.tegrastats:open_tegrastats",
    "rapl": "dippm.measure.sources.rapl:open_rapl",
    "tree": "dippm.measure.sources.tree:open_tree",
    "processes": "dippm.measure.sources.processes:open_processes",
    "cores": "dippm.measure.sources.cores:open_cores",
    "host": "dippm.measure.sources.host:open_host",
    "disks": "dippm.measure.sources.disks:open_disks",
    "recorded": "dippm.measure.sources.recorded:open_recorded",
}
NAMES = tuple(BUILT_IN)
OF_A_GPU = frozenset({"nvml", "nvml_processes", "mig", "gpm", "dcgm"})
OF_A_TREE = frozenset({"tree", "processes", "cores"})
SETTLE_S = 0.6
"""Some quantities are means over half a second."""


def names() -> frozenset[str]:
    """Return the names of all sources, including those of other distributions."""
    from importlib.metadata import entry_points

    return frozenset({*BUILT_IN, *(point.name for point in entry_points(group="dippm.sources"))})


def open_source(name: str, **where: Any) -> Source:
    """Open a source.

    Args:
        name: one of `NAMES`, or of another distribution.
        where: arguments of its opener: `device` of nvml, nvml_processes, mig, gpm, dcgm and
            cuda_allocator; `pid` of tree, processes, cores and nvml_processes; `path` of recorded.

    Returns:
        The source; on a machine without it, one whose every quantity is absent with a reason.

    Raises:
        UnknownNameError: if no source has this name.
    """
    opener = _opener(name)
    try:
        return opener(**where)
    except Exception as error:  # an unusual machine must not stop the measurement
        return AbsentSource(name, (), f"could not be opened: {type(error).__name__}: {error}")


def _opener(name: str) -> Callable[..., Source]:
    target = BUILT_IN.get(name)
    if target is not None:
        module, _, function = target.partition(":")
        return cast(Callable[..., Source], getattr(importlib.import_module(module), function))
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="dippm.sources")}
    if name not in found:
        raise UnknownNameError.of("source", name, {*BUILT_IN, *found})
    return cast(Callable[..., Source], found[name].load())


class Survey(NamedTuple):
    """The state of one quantity of one source on this machine.

    Attributes:
        source: name of the source.
        quantity: the quantity.
        value: its value, None if absent.
        reason: reason for the absence, empty without one.
    """

    source: str
    quantity: Quantity
    value: float | None
    reason: str


def survey(names: tuple[str, ...] = NAMES, **where: Any) -> list[Survey]:
    """Open every source, read it twice, and report what works here; takes 0.6 s.

    Args:
        names: names of the sources; "recorded" is skipped.
        where: `device` for the sources of a GPU.
    """
    sources = [
        open_source(name, **(where if name in OF_A_GPU else {}))
        for name in names
        if name != "recorded"
    ]
    for source in sources:
        source.read()
    time.sleep(SETTLE_S)
    rows: list[Survey] = []
    for source in sources:
        readings = source.read()
        for quantity in source.quantities:
            value = readings.values.get(quantity.name)
            reason = readings.absent.get(quantity.name, "")
            rows.append(Survey(source.name, quantity, value, reason))
        source.close()
    return rows
