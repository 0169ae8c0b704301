"""radT's names over DIPPM's runs: a script of radT's works by changing its import line.

    from dippm.radt import run                    # was: import radt
    with run.RADTBenchmark() as run: ...          # was: with radt.run.RADTBenchmark() as run: ...

    import dippm.radt as radt                     # or this, and nothing else changes
    from dippm.radt import radT                   # was: from radtrun import radT

Outside of a tracked run all of it does nothing. Plans of radT's are read by `dippm track`.
"""

from __future__ import annotations

from dippm.radt import run, trace
from dippm.radt.run import RADTBenchmark

radT = RADTBenchmark  # noqa: N816  radT's own spelling
"""The name that older versions had."""

__all__ = ["RADTBenchmark", "radT", "run", "trace"]
