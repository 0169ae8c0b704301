"""radT's API on DIPPM's runs: a script for radT only needs another import line.

    from dippm.radt import run                    # was: import radt
    with run.RADTBenchmark() as run: ...          # was: with radt.run.RADTBenchmark() as run: ...

    import dippm.radt as radt                     # or this, and nothing else changes
    from dippm.radt import radT                   # was: from radtrun import radT

Outside of a tracked run nothing is recorded. `dippm track` reads radT's plans.
"""

from __future__ import annotations

from dippm.radt import run, trace
from dippm.radt.run import RADTBenchmark

radT = RADTBenchmark  # noqa: N816  radT's own spelling
"""Name in older versions."""

__all__ = ["RADTBenchmark", "radT", "run", "trace"]
