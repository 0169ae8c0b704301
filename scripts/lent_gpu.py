"""A GPU that is lent for some minutes at a time: one command, again and again, goes on measuring.

    python3 -m scripts.lent_gpu CARRIED OUT [--minutes 8.5] [-- words of `dataset.collect`]
    python3 -m scripts.lent_gpu unpack OUT DIR

CARRIED holds what the command before this one left in its OUT; the first has none. The first row is
shown as soon as it is there, then the stages of the plan follow. OUT never has more than eight
files of 16 MiB, and whoever kills the command finds every row in it but the last second's. Needs
torch and the standard library; `dataset/collect/README.md` has the whole procedure.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from dataset.collect.cli import main as collect
from scripts.lent_set import FULL_BYTES, SetArchiver, campaigns_end, holds_packing, unpack

LOOK_S = 1.0
COMMAND = "python3 -m scripts.lent_gpu"
FULL = (
    f"the set has grown beyond {FULL_BYTES >> 20} MiB, which is what comes back for certain: bring "
    "it home, and begin another with --shard or --part for what this one lacks"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Unpack, collect, pack; return the collector's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["unpack"]:
        return _bring_home(words[1:])
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("carried", type=Path, help="what the last command left; may be missing")
    parser.add_argument("out", type=Path, help="empty folder that comes back")
    parser.add_argument("--minutes", type=float, default=8.5, help="of this command")
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args(words[:cut])
    out, more = arguments.out, words[cut + 1 :]
    if holds_packing(out) and out.resolve() != arguments.carried.resolve():
        parser.error(f"{out} has a set in it: name it as CARRIED, or another folder for OUT")
    with tempfile.TemporaryDirectory(prefix="dippm-lent-") as work:
        folder = Path(work) / "set"
        unpack(arguments.carried, folder, say=_say)
        if not any(folder.iterdir()):
            _say(f"{arguments.carried} holds no set: a new one begins")
        asked = [
            *("--out", str(folder), "--device", arguments.device),
            *("--budget", f"{60 * arguments.minutes:g}s", "--energy-window-s", "1", *more),
        ]
        sys.argv[1:] = asked  # the campaign's file says how it was started
        code = _collect(asked, SetArchiver(folder, out))
        print(campaigns_end(folder))
    _tell_next(arguments.carried, out, words)
    return code


def _collect(words: list[str], archiver: SetArchiver) -> int:
    """Run the collector, and keep what it writes meanwhile and at its end."""
    archiver.pack()  # what was carried must come back even if nothing is added
    if archiver.is_full:
        _say(FULL)
        return 1
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            archiver.look()
            if archiver.is_full:
                _say(FULL)
                os.kill(os.getpid(), signal.SIGTERM)  # the collector ends in order
                return

    watching = threading.Thread(target=watch, name="dippm-keeper", daemon=True)
    watching.start()
    try:
        code = collect(words)
    finally:
        over.set()
        watching.join()
        archiver.pack()
    return code


def _tell_next(carried: Path, out: Path, words: Sequence[str]) -> None:
    files = sorted(path for path in out.iterdir() if path.is_file())
    size_mb = sum(path.stat().st_size for path in files) / 2**20
    commit = os.environ.get("DIPPM_COMMIT")
    # The shell that lends the folder names it by a variable, and another one each time.
    is_lent = os.environ.get("OUT") == str(out)
    again = ['"$OUT"' if is_lent and word == str(out) else shlex.quote(word) for word in words]
    command = f"{f'DIPPM_COMMIT={commit} ' * bool(commit)}{COMMAND} {' '.join(again)}"
    here = shlex.quote(str(carried))
    print(f"{len(files)} files, {size_mb:.1f} MiB in {out}. They may come back read-only. Then:")
    print(f"  rm -rf {here} && cp -r CAME_BACK {here} && chmod -R u+w {here}   # at home")
    print(f"  {command}   # there, {here} carried along")
    print(f"To keep the rows, at home: {COMMAND} unpack CAME_BACK dataset/data/NAME")


def _bring_home(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"{COMMAND} unpack", description="Lay out a set.")
    parser.add_argument("out", type=Path, help="what came back")
    parser.add_argument("folder", type=Path, help="for the set, missing or empty")
    arguments = parser.parse_args(words)
    if not arguments.out.is_dir():
        parser.error(f"{arguments.out} is no folder")
    if arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"{arguments.folder} is not empty")
    unpack(arguments.out, arguments.folder, say=_say)
    return collect(["pack", str(arguments.folder)])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
