"""`dippm devices import`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json


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
