"""The environment of a run: packages, commit, driver, hardware.

All of it is read from files and from git; the workload's interpreter is not started. The reason for
a missing value is under "absent.NAME".
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from dippm.measure.sources.host import cpu_name

DRIVER = Path("/proc/driver/nvidia")
GIT_S = 30.0


def host() -> dict[str, str]:
    """Return processor, memory, system, driver and GPUs of this machine."""
    found = {
        "host_cpu": cpu_name(),
        "host_cores": str(os.cpu_count()),
        "host_memory_mb": f"{_memory_mb():.0f}",
        "os": f"{platform.system()} {platform.release()}",
    }
    try:
        version = (DRIVER / "version").read_text()
    except OSError:
        reason = f"no NVIDIA driver is loaded here: there is no {DRIVER}"
        return found | {"absent.driver": reason, "absent.gpus": reason}
    number = re.search(r"\b\d{3}(\.\d+)+\b", version)
    return found | {
        "driver": number[0] if number else version.splitlines()[0],
        "gpus": "\n".join(_gpus()),
    }


def packages(program: str) -> dict[str, str]:
    """Return the interpreter that a program runs in, and the packages installed for it.

    Args:
        program: first word of a command: an interpreter, or a script with a shebang.
    """
    interpreter = _interpreter(program)
    if interpreter is None:
        reason = f"{program} is no Python program"
        return {"absent.python": reason, "absent.packages": reason}
    names: dict[str, str] = {}
    for folder in _site_folders(interpreter):
        for name, version in _installed_packages(folder):
            names.setdefault(name, version)
    texts = sorted(f"{name}=={version}" for name, version in names.items())
    return {"python": str(interpreter), "packages": "\n".join(texts)}


def commit(folder: str) -> dict[str, str]:
    """Return the git commit of a folder, and whether its files were changed."""
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        reason = f"git does not say: {said.strip().splitlines()[0] if said.strip() else error}"
        return {"absent.git_commit": reason, "absent.git_changed": reason}
    return {"git_commit": head, "git_changed": "yes" if changed else "no"}


def _git(folder: str, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", folder, *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=GIT_S,
        check=True,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    ).stdout.strip()


def _interpreter(program: str) -> Path | None:
    """Return the Python of a program; links are kept, since `pyvenv.cfg` lies next to them."""
    path = shutil.which(program)
    if path is None:
        return None
    if re.fullmatch(r"(python|pypy)[\d.]*", Path(path).name):
        return Path(path)
    try:
        with open(path, "rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    return _interpreter(words[0]) if words and "python" in words[0] else None


def _site_folders(interpreter: Path) -> Iterator[Path]:
    """Yield the folders from which an interpreter imports installed packages, in order."""
    for given in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        yield Path(given)
    home = interpreter.absolute().parent.parent
    yield from _libraries(home)
    settings = home / "pyvenv.cfg"
    alone = "include-system-site-packages = false"
    if not settings.exists() or alone not in settings.read_text(errors="replace"):
        yield from _libraries(interpreter.resolve().parent.parent)


def _libraries(home: Path) -> Iterator[Path]:
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages"):
        yield from sorted(home.glob(pattern))


def _installed_packages(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and version of each distribution from the names of metadata folders."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return
    for entry in entries:
        stem, dot, kind = entry.rpartition(".")
        name, dash, version = stem.partition("-")
        if dot and dash and kind in ("dist-info", "egg-info"):
            yield name.replace("_", "-").casefold(), version.partition("-py")[0]


def _memory_mb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20


def _gpus() -> Iterator[str]:
    for path in sorted((DRIVER / "gpus").glob("*/information")):
        lines: Mapping[str, str] = {
            name.strip(): value.strip()
            for name, _, value in (line.partition(":") for line in path.read_text().splitlines())
        }
        yield f"{lines.get('Model', 'unknown model')} {lines.get('GPU UUID', '')}".strip()
