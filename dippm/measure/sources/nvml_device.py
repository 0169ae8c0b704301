"""Common parts of the sources of an NVML device: opening, reading and closing."""

from __future__ import annotations

from collections.abc import Callable

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.calls import Calls, NotHere
from dippm.measure.sources.nvml_session import DeviceContext, Session, locate


class DeviceCounters:
    """Counters of one device; a subclass defines name, quantities and calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._open = True

    def read(self) -> Readings:
        """Read every quantity from NVML."""
        return self._calls.read()

    def close(self) -> None:
        """Shut NVML down, unless it is used elsewhere in this process."""
        if self._open:
            self._open = False
            self._calls.drop("the source is closed")
            Session.close()


def open_at(
    device: str | int,
    make: Callable[[DeviceContext], Source],
    *,
    name: str,
    quantities: tuple[Quantity, ...],
) -> Source:
    """Return the source that `make` creates for a device, or reasons if that fails.

    Args:
        device: see `nvml_session.locate`.
        make: creates the source; may raise `NotHere`.
        name: name of the source.
        quantities: quantities of the source.
    """
    try:
        nvml = Session.open()
    except NotHere as missing:
        return AbsentSource(name, quantities, str(missing))
    try:
        return make(locate(nvml, device))
    except NotHere as missing:
        Session.close()
        return AbsentSource(name, quantities, str(missing))
