"""`python -m tests.fuzz [--seconds 60] [FORMAT ...]`: damage files of every kind for a while.

With Atheris installed, what it finds of new code leads it (of `dippm` alone); without, changes are
drawn at random. A file that breaks its reader is kept in build/fuzz with the error, and the exit
code is 1. Each format runs in a process of its own, with limits of memory and of time per file.
Seconds are of the processor, for a busy machine damages no fewer files; of a format that waits for
workers, they are of the clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.damage import damaged
from tests.fuzz.formats import FORMATS, ROOT, Format

FOUND = ROOT / "build" / "fuzz"
MEMORY_MB, ONE_FILE_S = 6_000, 60
MOST_FOUND = 5
IN_MEMORY = Path("/dev/shm")
HUNG_S, MOST_TIMES = 180, 10


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.fuzz")
    words.add_argument("formats", nargs="*", metavar="FORMAT", help=", ".join(FORMATS))
    words.add_argument("--seconds", type=float, default=60.0)
    words.add_argument("--seed", type=int, default=None)
    words.add_argument("--one", help=argparse.SUPPRESS)
    words.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.one:
        return fuzz(asked.one, asked.seconds, asked.seed or int(time.time()), asked.folder)
    failed = []
    for name in asked.formats or FORMATS:
        needs = FORMATS[name].needs
        if needs and importlib.util.find_spec(needs) is None:
            print(f"{name}: skipped, needs {needs}", flush=True)
            continue
        command = [sys.executable, "-m", "tests.fuzz", "--one", name]
        command += [
            "--seconds",
            str(asked.seconds),
            *(["--seed", str(asked.seed)] if asked.seed else []),
        ]
        # A disk writes each file out when the next replaces it, which takes longer than to read it.
        place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="dippm-fuzz-", dir=place) as folder:
            if not _holds(name, [*command, "--folder", folder], asked.seconds, Path(folder)):
                failed.append(name)
    print(f"broken: {', '.join(failed)}" if failed else "all formats hold", flush=True)
    return 1 if failed else 0


def _holds(name: str, command: list[str], seconds: float, folder: Path) -> bool:
    """Run the process of a format; keep the file on which it ended or hung."""
    try:
        code = subprocess.run(command, cwd=ROOT, timeout=MOST_TIMES * (seconds + HUNG_S)).returncode
        ended = f"ends the process with code {code}" if code not in (0, 1) else ""
    except subprocess.TimeoutExpired:
        code, ended = 1, "hangs where no signal of Python arrives"
    last = folder / f"m{FORMATS[name].ending}"
    if ended and last.is_file():
        keep(name, last.read_bytes(), ended)
    elif ended:
        print(f"{name}: {ended}", flush=True)
    return code == 0


def _spent_s(form: Format) -> float:
    """Return the time that this process has used, with what its children have."""
    return time.monotonic() if form.waits else sum(os.times()[:4])


def fuzz(name: str, seconds: float, seed: int, folder: Path) -> int:
    """Damage files of one format for a while; return 1 if one broke its reader."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MB << 20, MEMORY_MB << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    form = FORMATS[name]
    signal.signal(signal.SIGALRM if form.waits else signal.SIGPROF, _too_slow)
    (folder / "seeds").mkdir()
    seeds = form.seeds(folder / "seeds")
    path = folder / f"m{form.ending}"
    for content in seeds:  # whole ones are read
        path.write_bytes(content)
        form(path)
    found: set[str] = set()

    def one(content: bytes) -> None:
        if broken := break_with(form, content, path):
            if broken not in found:
                keep(name, content, broken)
            found.add(broken)

    begun = _spent_s(form)

    def is_over(count: int) -> bool:
        """Say how it went once the time is up, or enough was found."""
        if _spent_s(form) < begun + seconds and len(found) < MOST_FOUND:
            return False
        print(f"{name}: {count:,} files, {len(found)} defects (seed {seed})", flush=True)
        return True

    if importlib.util.find_spec("atheris"):
        _by_coverage(one, seeds, seed, is_over, found, folder / "corpus")
    chance, count = random.Random(seed), 0
    while not is_over(count):
        one(damaged(chance.choice(seeds), chance))
        count += 1
    return int(bool(found))


def break_with(form: Format, content: bytes, path: Path) -> str:
    """Return the traceback's end of what a file does to its reader; "" if it is read or refused."""
    path.write_bytes(content)
    timer = signal.ITIMER_REAL if form.waits else signal.ITIMER_PROF
    signal.setitimer(timer, ONE_FILE_S)
    try:
        form(path)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "/dippm/" in f.filename or "/tests/" in f.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return f"{where}: {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(timer, 0)
    return ""


def keep(name: str, content: bytes, broken: str) -> None:
    FOUND.mkdir(parents=True, exist_ok=True)
    file = FOUND / f"{name.replace(' ', '-')}-{abs(hash(content)) % 10**8}{FORMATS[name].ending}"
    file.write_bytes(content)
    print(f"{name}: {broken}\n  {file}", flush=True)


class _TooSlowError(BaseException):
    """A file that takes longer than any should."""


def _too_slow(*_: object) -> None:
    raise _TooSlowError(f"longer than {ONE_FILE_S} s")


def _by_coverage(
    one: Callable[[bytes], None],
    seeds: list[bytes],
    seed: int,
    is_over: Callable[[int], bool],
    found: set[str],
    corpus: Path,
) -> None:
    """Let Atheris choose what is damaged next; this process ends with it."""
    import atheris

    count = 0

    def test(content: bytes) -> None:
        nonlocal count
        if is_over(count):
            os._exit(bool(found))  # libFuzzer lets nobody return
        one(content)
        count += 1

    def mutate(content: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() < 0.3:
            return bytes(atheris.Mutate(content, most))
        return damaged(content or chance.choice(seeds), chance)[:most]

    corpus.mkdir()
    for position, content in enumerate(seeds):
        (corpus / str(position)).write_bytes(content)
    for name in [name for name in sys.modules if name.startswith("dippm")]:
        _instrument(atheris, sys.modules[name])
    options = [f"-seed={seed % 2**31 or 1}", "-max_len=4194304", "-timeout=0", "-rss_limit_mb=0"]
    options += ["-detect_leaks=0", "-verbosity=0", str(corpus)]
    atheris.Setup([sys.argv[0], *options], test, custom_mutator=mutate)
    atheris.Fuzz()


def _instrument(atheris: object, module: object) -> None:
    for name, value in list(vars(module).items()):
        own = getattr(value, "__module__", "") == getattr(module, "__name__", None)
        if own and hasattr(value, "__code__"):
            setattr(module, name, atheris.instrument_func(value))  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
