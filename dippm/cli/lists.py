"""`dippm devices`, `devices import`, `hosts` and `models`: what DIPPM knows by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, show

if TYPE_CHECKING:
    from dippm.devices import Device


def devices(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="Only devices with all of these words in name or architecture; or device files.",
        ),
    ] = None,
    csv: options.Csv = None,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """List the known GPUs with their MIG slices, and the measured CPUs."""
    from dippm.devices import all_cpus, all_devices, read_device
    from dippm.devices.device_file import all_imported, is_device_file
    from dippm.show.report.answers import AnswerPart, Listing, StderrLine
    from dippm.show.report.console import device_table

    given = [word for word in words or () if is_device_file(word)]
    if given:
        with errors_reported(as_json=json):
            gpus, cpus = [read_device(path) for path in given], []
    else:
        gpus, cpus = (
            _matching((*all_devices(), *all_imported()), words),
            _matching(all_cpus(), words),
        )
    parts: list[AnswerPart] = [device_table(gpus)] if gpus else []
    if cpus:
        names = ", ".join(cpu.name for cpu in cpus)
        parts.append(f"measured CPUs, for checkpoints trained on them: {names}")
    if not parts:
        parts.append(StderrLine("no device matches; `dippm devices` lists all"))
    found = [asdict(device) for device in (*gpus, *cpus)]
    rows = [
        one | {"mig_profiles": [p.name for p in device.mig_profiles], "aliases": [*device.aliases]}
        for one, device in zip(found, (*gpus, *cpus), strict=True)
    ]
    listing = Listing("devices", rows, {"devices": found}, parts, "memory_mb", "memory, MB")
    show("devices", listing, json=json, csv=csv, html=html)


def hosts(csv: options.Csv = None, html: options.Html = None, json: options.Json = False) -> None:
    """List the host classes: machines that launch kernels, with their launch times."""
    from dippm.devices import all_hosts, assumed_hosts
    from dippm.show.report.answers import Listing
    from dippm.show.report.console import host_table

    assumed = tuple(assumed_hosts().values())
    found = [asdict(h) | {"default": h in assumed} for h in all_hosts()]
    table = host_table(all_hosts(), assumed)
    listing = Listing("hosts", found, {"hosts": found}, [table], "launch_us", "a launch, µs")
    show("hosts", listing, json=json, csv=csv, html=html)


def models(csv: options.Csv = None, html: options.Html = None, json: options.Json = False) -> None:
    """List the shipped checkpoints."""
    from dippm.estimate.pretrained.store import DEFAULT, available
    from dippm.show.report.answers import Listing
    from dippm.show.report.console import checkpoint_table

    shipped = available()
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
    listing = Listing("checkpoints", found, {"models": found}, [checkpoint_table(shipped)])
    show("models", listing, json=json, csv=csv, html=html)


def _matching(devices: Sequence[Device], words: Sequence[str] | None) -> list[Device]:
    wanted = [word.casefold() for word in words or ()]
    texts = [" ".join((d.name, d.architecture, *d.aliases)).casefold() for d in devices]
    return [d for d, text in zip(devices, texts, strict=True) if all(w in text for w in wanted)]


def devices_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Device file to import.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the imported device. Default: the name in the file."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an imported device of the same name.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Check a device file and store it, so that --device accepts its name."""
    from dippm.devices.device_file import age_of, import_device

    with errors_reported(as_json=json):
        device, kept = import_device(file, name=name, replace=replace)
    if json:
        print_json("devices", {"devices": [asdict(device)]})
        return
    from dippm.show.report.console import console, device_table, print_text

    console().print(device_table([device]))
    print_text(f"{device.name}: {age_of(device)}")
    print_text(f"Source: {device.source}")
    print_text(f'Kept in {kept}. Use it: --device "{device.name}"')
