"""The store of a team, here and without containers: PostgreSQL, S3, MLflow's server, the page.

Run: make team     (python -m scripts.team; DIPPM_TEAM=FOLDER of MLflow's server, else build/team)

The services of deploy/compose.yaml, and the same deploy/serve_mlflow.py. They are for trying it: at
addresses of this machine alone, in folders of their own, and gone with this process.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from dippm.base.process import follow_parent
from tests.postgres import PostgresServer, programs

ROOT = Path(__file__).parents[1]
START_S = 420.0
BUCKET = "runs"
PAGE = ("dippm.show.ui", "dash")


class Team:
    """The running services.

    Attributes:
        address: address of MLflow's server.
        page: address of the page, "" if there is none.
        database: address of the database.
        settings: environment variables for a client of S3.
    """

    def __init__(self, python: Path, *, page: bool = True) -> None:
        """Start the services.

        Args:
            python: Python of the environment with MLflow's server.
            page: whether the page is started too.

        Raises:
            RuntimeError: if one does not start.
        """
        from moto.server import ThreadedMotoServer

        found = programs()
        if found is None:
            raise RuntimeError("there is no PostgreSQL")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
        self.page = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._postgres = PostgresServer(found)
        self._storage = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        try:
            self._storage.start()
            host, port = self._storage.get_host_and_port()
            self.settings = {
                "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}",
                "AWS_ACCESS_KEY_ID": "team",
                "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            self.database = self._postgres.address(self._postgres.make_database())
            self.address = self._start_mlflow(python)
            if page and all(map(find_spec, PAGE)):
                self.page = self._start_page()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all services."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._storage.stop()
        self._postgres.close()

    def _start_mlflow(self, python: Path) -> str:
        port = free_port()
        given = {
            "DATABASE": self.database,
            "BUCKET": f"s3://{BUCKET}",
            "PORT": str(port),
            "WORKERS": "1",
        }
        held = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        log = self._postgres.folder / "mlflow.log"
        address = f"http://127.0.0.1:{port}"
        self._start(
            [str(python), str(ROOT / "deploy" / "serve_mlflow.py")],
            {**held, **self.settings, **given},
            log,
        )
        self._await(f"{address}/health", log)
        return address

    def _start_page(self) -> str:
        port = free_port()
        words = ["ui", "--store", self.address, "--port", str(port), "--no-browser"]
        log = self._postgres.folder / "page.log"
        held = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._start([sys.executable, "-m", "dippm", *words], held, log)
        address = f"http://127.0.0.1:{port}"
        self._await(address, log)
        return address

    def _start(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    words,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    preexec_fn=functools.partial(follow_parent, os.getpid()),
                )
            )

    def _await(self, address: str, log: Path) -> None:
        end = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(address, timeout=10).close()
                return
            except urllib.error.HTTPError:
                return  # it responds, and requires authentication
            except OSError:
                process = self._processes[-1]
                if process.poll() is not None or time.monotonic() > end:
                    said = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"nothing answers at {address}: {said}") from None
                time.sleep(0.2)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def server_python() -> Path | None:
    """Return the Python of MLflow's server, installed by `make setup-team`; None if missing."""
    folder = Path(os.environ.get("DIPPM_TEAM") or ROOT / "build" / "team")
    python = folder / "bin" / "python"
    return python if (folder / "bin" / "mlflow").exists() and python.exists() else None


def main() -> None:
    """Start the services, print their addresses, and end them on Ctrl-C."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    python = server_python()
    if python is None:
        sys.exit("MLflow's server is not installed: make setup-team")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    team = Team(python)
    try:
        print(f"MLflow: {team.address}", flush=True)
        print(f"page:   {team.page or 'not installed'}", flush=True)
        print(f"export MLFLOW_TRACKING_URI={team.address}", flush=True)
        print("Ctrl-C ends all of it; nothing is kept.", flush=True)
        stop.wait()
    finally:
        team.close()


if __name__ == "__main__":
    main()
