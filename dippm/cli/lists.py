"""`dippm devices` and `dippm models`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json

if TYPE_CHECKING:
    from dippm.devices import Device


def devices(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="Only devices with all of these in name or architecture; or a device file.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the GPUs that are known, with their MIG slices, and the CPUs that were measured."""
    from dippm.devices import all_cpus, all_devices, read_device
    from dippm.devices.device_file import is_device_file
    from dippm.devices.imported import all_imported
    from dippm.show.report.console import console, device_table, print_text

    given = [word for word in words or () if is_device_file(word)]
    if given:
        with errors_reported(as_json=json):
            gpus, cpus = [read_device(path) for path in given], []
    else:
        gpus, cpus = (
            _matching((*all_devices(), *all_imported()), words),
            _matching(all_cpus(), words),
        )
    if json:
        print_json("devices", {"devices": [asdict(device) for device in (*gpus, *cpus)]})
        return
    if gpus:
        console().print(device_table(gpus))
    if cpus:
        names = ", ".join(cpu.name for cpu in cpus)
        print_text(f"measured CPUs, for checkpoints trained on them: {names}")
    if not gpus and not cpus:
        print_text("no device matches; `dippm devices` lists all", sys.stderr)


def hosts(json: options.Json = False) -> None:
    """List the classes of machines that launch kernels, with how much they differ."""
    from dippm.devices import all_hosts, assumed_hosts
    from dippm.show.report.console import console, host_table

    assumed = tuple(assumed_hosts().values())
    if json:
        found = [asdict(h) | {"default": h in assumed} for h in all_hosts()]
        print_json("hosts", {"hosts": found})
    else:
        console().print(host_table(all_hosts(), assumed))


def models(json: options.Json = False) -> None:
    """List the checkpoints that are shipped."""
    from dippm.estimate.pretrained.store import DEFAULT, available
    from dippm.show.report.console import checkpoint_table, console

    shipped = available()
    if json:
        found = [
            {
                "name": info.name,
                "version": info.version,
                "kind": info.kind,
                "default": info.name == DEFAULT,
                "summary": info.summary,
                "path": str(info.path),
            }
            for info in shipped
        ]
        print_json("models", {"models": found})
    else:
        console().print(checkpoint_table(shipped))


def _matching(devices: Sequence[Device], words: Sequence[str] | None) -> list[Device]:
    wanted = [word.casefold() for word in words or ()]
    texts = [" ".join((d.name, d.architecture, *d.aliases)).casefold() for d in devices]
    return [d for d, text in zip(devices, texts, strict=True) if all(w in text for w in wanted)]
