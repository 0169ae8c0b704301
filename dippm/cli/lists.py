"""`dippm devices` and `dippm models`."""

from __future__ import annotations

from dataclasses import asdict

from dippm.cli import options
from dippm.cli.output import print_json


def devices(json: options.Json = False) -> None:
    """List the GPUs that are known, with their MIG slices, and the CPUs that were measured."""
    from dippm.devices import all_cpus, all_devices
    from dippm.report.console import console, device_table

    if json:
        print_json([asdict(device) for device in (*all_devices(), *all_cpus())])
    else:
        console().print(device_table(all_devices()))
        names = ", ".join(cpu.name for cpu in all_cpus())
        console().print(f"measured CPUs, for checkpoints trained on them: {names}")


def models(json: options.Json = False) -> None:
    """List the checkpoints that are shipped."""
    from dippm.pretrained.store import DEFAULT, available
    from dippm.report.console import checkpoint_table, console

    shipped = available()
    if json:
        print_json(
            [
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
        )
    else:
        console().print(checkpoint_table(shipped))
