"""`dippm devices import`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json


def devices_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Device file that others shared.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the device from now on, instead of its own.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of another device of this name.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Check a device file and keep it, so that --device takes its name."""
    from dippm.devices.imported import age_of, import_device

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
