"""A GPU that is lent for some minutes at a time: go on with a campaign, and pack what it has.

    python -m scripts.lent_gpu CARRIED OUT --minutes 9 [-- words of `dataset.collect`]

CARRIED holds what the command before this one left in its OUT; the first has none. Rows are written
to OUT as they come, so that whoever kills the command finds them there; at the end everything is
packed into few files, which is all that such a machine gives back. Needs torch and the standard
library; `dataset/collect/README.md` has the whole procedure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKED, PART = "collected.tar.gz", "collected.tar.gz.part{:02d}"
PART_BYTES = 15 << 20
WORK = "collected"
"""Folder of the set in OUT while it is measured."""


def main(argv: Sequence[str] | None = None) -> int:
    """Unpack, collect, pack; return the collector's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, more = (
        (words[: words.index("--")], words[words.index("--") + 1 :])
        if "--" in words
        else (
            words,
            [],
        )
    )
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("carried", type=Path, help="what the last command left; may be missing")
    parser.add_argument("out", type=Path, help="empty folder that comes back")
    parser.add_argument("--minutes", type=float, default=8.5, help="of this command")
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args(own)
    folder = arguments.out / WORK
    unpack(arguments.carried, folder)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dataset.collect", "--out", str(folder)),
            *("--device", arguments.device, "--budget", f"{60 * arguments.minutes:g}s"),
            *("--energy-window-s", "1", *more),
        ],
        cwd=ROOT,
        check=False,
    )
    pack(folder, arguments.out)
    return done.returncode


def unpack(carried: Path, folder: Path) -> None:
    """Lay out a set as the collector left it: packed, or as it was when it was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = sorted(carried.glob(PACKED + ".part*")) if carried.is_dir() else []
    if parts:
        whole = folder.with_name(PACKED)
        with whole.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        with tarfile.open(whole) as archive:
            archive.extractall(folder, filter="data")
        whole.unlink()
    elif (carried / WORK).is_dir():
        shutil.copytree(carried / WORK, folder, dirs_exist_ok=True)


def pack(folder: Path, out: Path) -> list[Path]:
    """Put a set into parts of at most 15 MiB, and remove it once they are there."""
    whole = out / PACKED
    with tarfile.open(whole, "w:gz") as archive:
        archive.add(folder, arcname=".")
    parts = []
    with whole.open("rb") as file:
        while block := file.read(PART_BYTES):
            parts.append(out / PART.format(len(parts)))
            parts[-1].write_bytes(block)
    whole.unlink()
    shutil.rmtree(folder)
    return parts


if __name__ == "__main__":
    sys.exit(main())
