"""Joins a Ray cluster, for the collector, searches and plans."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def join(
    address: str,
    package: Path,
    *,
    environment: Mapping[str, str] | None = None,
    processors: int | None = None,
) -> Any:
    """Return Ray, connected; `shutdown` leaves the cluster.

    Args:
        address: "auto" for the cluster that runs here, "local" for a new one.
        package: folder of DIPPM's packages, at the same path on every node.
        environment: additional environment variables of the workers.
        processors: number of processors of a new cluster; None for all of this machine.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if there is no such cluster.
    """
    import ray

    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**(environment or {}), "PYTHONPATH": os.pathsep.join(paths)}
    local = {"include_dashboard": False, "num_cpus": processors} if address == "local" else {}
    try:
        with redirect_stdout(sys.stderr):  # Ray prints to stdout, which belongs to the caller
            ray.init(
                address=address,
                runtime_env={"env_vars": variables},
                log_to_driver=False,
                configure_logging=False,
                **local,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConnectionError(f"no Ray cluster at {address!r}: {error}") from error
    return ray
