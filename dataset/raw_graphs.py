"""Models by name → raw graphs on disk, see `dataset.join.raw_graphs`.

    python -m dataset.raw_graphs --workers 2

What the repository ships (`dataset.join.shipped_graphs`) is taken from there, the rest converted.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dataset.join.raw_graphs import OTHER_MODELS, SOURCES, build, cache_dir, specs_of
from dataset.measured.sources import is_there
from dippm.errors import DippmError


def main() -> None:
    """Bring together the graph of every model that the measured tables name."""
    from rich.progress import track

    from dataset.join.shipped_graphs import ship, unpack

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=cache_dir(), help="folder of the raw graphs")
    parser.add_argument("--data-dir", type=Path, help="folder of the measured tables")
    parser.add_argument("--sources", nargs="+", default=SOURCES)
    parser.add_argument("--specs", nargs="+", help="instead of what the sources name")
    parser.add_argument(
        "--ship",
        action="store_true",
        help="write what the repository ships, out of the folder; take nothing from there",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    named = []
    if not arguments.specs:
        named = specs_of(arguments.sources, arguments.data_dir)
        absent = [name for name in arguments.sources if not is_there(name, arguments.data_dir)]
        if absent:
            print(f"without the models of {', '.join(absent)}: their tables are not here")
    specs = arguments.specs or list(dict.fromkeys([*named, *OTHER_MODELS]))
    if not arguments.ship:
        print(f"{len(unpack(specs, arguments.out))} graphs came with the repository")
    outcomes = build(specs, arguments.out, arguments.workers, arguments.data_dir)
    failed = [o for o in track(outcomes, total=len(specs), description="raw graphs") if o.error]
    print(f"{len(specs) - len(failed)} graphs in {arguments.out}")
    if arguments.ship:
        print(f"{ship(specs, arguments.out)} of them written to ship")
    for outcome in failed:
        print(f"not converted: {outcome.spec}: {outcome.error.splitlines()[0][:120]}")


if __name__ == "__main__":
    try:
        main()
    except DippmError as error:
        sys.exit(f"error: {error}")
