"""The host machine of a GPU: the time its CPU needs to launch a kernel.

To add a class: write a table in `hosts.toml`, with the machines that it was measured on. The table
`assumed` names the default class of each kind of board.
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from numbers import Real
from typing import Any, Literal

from dippm.base.written import decimal_number
from dippm.devices.device import Device
from dippm.errors import HostError, UnknownNameError, shortened

SHORTEST_US, LONGEST_US = 0.1, 10_000.0
_DESKTOP_BOARD = re.compile(
    r"(nvidia[ -])?(geforce|gtx|rtx|titan|quadro)\b(?!.*\bserver\b)", re.IGNORECASE
)
_OLD = ("Pascal", "Volta", "Turing")
KindOfBoard = Literal["data-centre", "desktop", "old-desktop"]
HINT = "Give microseconds per launch, 0.1 to 10,000, or a class: {}."


@dataclass(frozen=True, slots=True)
class HostMachine:
    """A class of host machines, or one machine with a known launch time.

    Attributes:
        name: name of the class, or the number with its unit.
        launch_us: host time of one eager launch, in µs.
        log_sd: standard deviation of its logarithm over machines of the class; 0 for a number.
        hosts: number of measured machines; 0 for a number.
        what: description of the machines.
        source: source of the time.
    """

    name: str
    launch_us: float
    log_sd: float = 0.0
    hosts: int = 0
    what: str = ""
    source: str = ""


@cache
def all_hosts() -> tuple[HostMachine, ...]:
    """Return the classes of machines, in the order of the table."""
    classes = {name: table for name, table in _document().items() if "launch_us" in table}
    return tuple(HostMachine(name=name, **table) for name, table in classes.items())


def default_host(device: Device | None = None) -> HostMachine:
    """Return the class that a prediction assumes by default.

    Args:
        device: the GPU: data-centre boards are in servers, those named GeForce, GTX, RTX, TITAN or
            Quadro in desktops of their time; None stands for a data-centre board.
    """
    return assumed_hosts()[kind_of_board(device)]


@cache
def assumed_hosts() -> dict[str, HostMachine]:
    """Return the default class of each kind of board, "data-centre" first."""
    classes = {host.name: host for host in all_hosts()}
    return {board: classes[name] for board, name in _document()["assumed"].items()}


@cache
def unknown_host_log_sd() -> float:
    """Return the log standard deviation of all measured machines around the servers' default.

    Fourteen machines are too few for a value per kind of board, so all kinds share this one.
    """
    middle = math.log(default_host().launch_us)
    squares = sum(
        host.hosts * (host.log_sd**2 + (math.log(host.launch_us) - middle) ** 2)
        for host in all_hosts()
    )
    return math.sqrt(squares / sum(host.hosts for host in all_hosts()))


def named_host_log_sd(phase: str, machines_log_sd: float = 0.0) -> float:
    """Return the log standard deviation of what a host that was named takes for a model.

    Models differ on one machine, too. It is at most that of a host that was assumed, whose machines
    were measured with different models.

    Args:
        phase: "inference" or "train".
        machines_log_sd: log standard deviation between the machines that the name stands for.
    """
    both = math.hypot(machines_log_sd, _document()["models"][phase])
    return min(both, max(machines_log_sd, unknown_host_log_sd()))


def host_of(host: str | float | HostMachine | None) -> HostMachine | None:
    """Return the host of a class name or of a number of µs; None stays None.

    Raises:
        UnknownNameError: if no class has this name.
        HostError: if the number is not valid, or not plausible as a launch time.
    """
    if host is None or isinstance(host, HostMachine):
        return host
    names = [known.name for known in all_hosts()]
    if isinstance(host, str):
        found = {known.name: known for known in all_hosts()}.get(host.strip().casefold())
        if found is not None:
            return found
        number = host.strip().lower().removesuffix("us").removesuffix("µs")
        try:
            launch_us = decimal_number(number)
        except ValueError:
            raise UnknownNameError.of("host", host, names, HINT.format(", ".join(names))) from None
    else:
        given: Any = host
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        launch_us = given if is_number else math.nan
    if not SHORTEST_US <= launch_us <= LONGEST_US:
        raise HostError(
            f"host is {shortened(str(host))}, which is not a launch time in µs",
            HINT.format(", ".join(names)),
        )
    launch_us = float(launch_us)
    return HostMachine(f"{launch_us:g} us", launch_us, what="as given")


def kind_of_board(device: Device | None) -> KindOfBoard:
    """Return the kind of board of a device, by its product name and architecture."""
    if device is None or not _DESKTOP_BOARD.match(device.measured_name):
        return "data-centre"
    return "old-desktop" if device.architecture in _OLD else "desktop"


@cache
def _document() -> dict[str, Any]:
    text = files("dippm.devices").joinpath("hosts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
