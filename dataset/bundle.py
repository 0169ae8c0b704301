"""Pack the measured tables that may be given on into one file, for `dataset.fetch --from`.

    python -m dataset.bundle --data DATA --out tables.tar

Tables under Apache-2.0 and MIT are packed, with NOTICE and checksums; the rest is named with the
reason. The same tables give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dataset.join.manifest import sha256_of_file
from dataset.measured.location import data_dir
from dataset.published.bundle import NotPackedError, pack
from dataset.published.fetching import is_there
from dataset.published.registry import PACKED_LICENCES, select_sources
from dippm.errors import DippmError


def main(arguments: list[str] | None = None) -> int:
    """Pack the sources that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m dataset.bundle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="all that may be packed if none"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of the tables (that which training reads)"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write, named .tar")
    asked = parser.parse_args(arguments)
    try:
        data, sources = data_dir(asked.data), select_sources(asked.sources)
        for source in sources:
            if not source.packed:
                reason = source.unpacked or f"its licence is none of {', '.join(PACKED_LICENCES)}"
                print(f"left out: {source.name}: {reason}")
        packed = [source for source in sources if source.packed]
        missing = [source.name for source in packed if not is_there(source, data)]
        if missing:
            raise NotPackedError(
                f"{data} lacks the tables of {', '.join(missing)}",
                "`python -m dataset.fetch` gets them; or name the sources to pack.",
            )
        pack(packed, data, asked.out)
    except DippmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(packed)} sources in {asked.out}, SHA-256 {sha256_of_file(asked.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
