"""What the sources of one NVML device have in common: how they open, read and close."""

from __future__ import annotations

from collections.abc import Callable

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source
from dippm.measure.sources.calls import Calls, NotHere
from dippm.measure.sources.nvml_session import DeviceContext, Session, locate


class DeviceCounters:
    """Counters of one device; a subclass names itself and its quantities, and makes the calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._open = True

    def read(self) -> Readings:
        """Ask NVML for every quantity."""
        return self._calls.read()

    def close(self) -> None:
        """Shut NVML down, unless others of this process use it."""
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
    """Return the source that `make` returns for a device, or reasons where there is none.

    Args:
        device: see `nvml_session.locate`.
        make: may raise `NotHere`.
        name: of the source.
        quantities: what it gives.
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
