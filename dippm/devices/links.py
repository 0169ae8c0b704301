"""Links between GPUs: NVLink, PCIe and networks, with rates and delays from `links.toml`.

To add a GPU or a network: write a row there; nothing in code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from dippm.devices.device import Device
from dippm.errors import DeviceError, UnknownNameError

Kind = Literal["nvlink", "pcie", "network"]
LINKS: tuple[str, ...] = get_args(Kind)[:2]
DEFAULT_NETWORK = "infiniband-hdr"


@dataclass(frozen=True, slots=True)
class RingProtocol:
    """A protocol of a ring collective.

    Attributes:
        name: "simple", "ll128" or "ll".
        start_us: start-up time of a collective in µs.
        hop_us: latency of each step of the ring in µs.
        payload: share of data in the transferred bytes, 0 to 1.
    """

    name: str
    start_us: float
    hop_us: float
    payload: float


@dataclass(frozen=True, slots=True)
class Link:
    """A link between neighbouring GPUs.

    Attributes:
        name: name of the link, for instance "NVLink 3 x12", "PCIe 4" or "infiniband-hdr".
        kind: "nvlink", "pcie" or "network".
        nominal_gb_s: rate of one GPU in one direction by the data sheet, in GB/s.
        reached_gb_s: assumed achieved rate of a ring in GB/s.
        joins: largest number of GPUs; None for any number.
        protocols: protocols of the link.
    """

    name: str
    kind: Kind
    nominal_gb_s: float
    reached_gb_s: float
    joins: int | None
    protocols: tuple[RingProtocol, ...]


def link_of(device: Device, name: str | None = None) -> Link:
    """Return the link between the GPUs of a node.

    Args:
        device: the GPU, by its catalogue name.
        name: "nvlink" or "pcie"; None takes NVLink if the board always has it, else PCIe.

    Raises:
        UnknownNameError: if there is no such kind of link.
        DeviceError: if the device has no such link, or its PCIe generation is not known.
    """
    wanted = name and name.strip().casefold()
    if wanted not in (None, *LINKS):
        raise UnknownNameError.of("link", str(name), LINKS)
    row = _document()["nvlink"]["gpus"].get(device.name)
    if wanted == "nvlink" and row is None:
        raise DeviceError(
            f"no NVLink of {device.name} is known", 'Take PCIe, link="pcie", or another GPU.'
        )
    if row is not None and (wanted == "nvlink" or (wanted is None and not row.get("bridge"))):
        one = _document()["nvlink"]["generations"][row["generation"]]
        count = row["links"]
        return _link(
            f"NVLink {row['generation'][0]} x{count}",
            "nvlink",
            {key: count * value for key, value in one.items()},
            row["joins"],
        )
    generations = _document()["pcie_of_architecture"]
    generation = next(
        (g for start, g in generations.items() if device.architecture.startswith(start)), None
    )
    if generation is None:
        raise DeviceError(
            f"how {device.name} is joined to other GPUs is not known",
            "Give its architecture in the device file, or name a GPU of `dippm devices`.",
        )
    return _link(f"PCIe {generation}", "pcie", _document()["pcie"][generation], None)


def network_of(name: str, gpus_per_node: int) -> Link:
    """Return one GPU's share of the network between nodes.

    Args:
        name: see `network_names`.
        gpus_per_node: number of GPUs that share the port of a node.

    Raises:
        UnknownNameError: if no network has this name.
    """
    row = _document()["networks"].get(name.strip().casefold())
    if row is None:
        raise UnknownNameError.of("network", name, network_names())
    share = 1 / gpus_per_node if row["port_per"] == "node" else 1.0
    rates = {key: share * row[key] for key in ("nominal_gb_s", "reached_gb_s")}
    return _link(name.strip().casefold(), "network", rates, None)


def network_names() -> tuple[str, ...]:
    """Return the names of the known networks."""
    return tuple(_document()["networks"])


def _link(name: str, kind: Kind, rates: Mapping[str, float], joins: int | None) -> Link:
    hops, protocols = _document()["hops_us"][kind], _document()["protocols"]
    return Link(
        name,
        kind,
        rates["nominal_gb_s"],
        rates["reached_gb_s"],
        joins,
        tuple(
            RingProtocol(p, protocols[p]["start_us"], hop_us, protocols[p]["payload"])
            for p, hop_us in hops.items()
        ),
    )


@cache
def _document() -> dict[str, Any]:
    text = files("dippm.devices").joinpath("links.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
