"""What the store of runs costs: 100,000 samples written, read back, and what each takes on disk.

    python -m benchmarks.run_store [--ticks 5000]

Twenty quantities at random: nothing repeats, which is the worst case.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

QUANTITIES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ticks", type=int, default=5000)
    ticks = parser.parse_args().ticks
    import numpy as np
    import pyarrow.parquet  # noqa: F401  its import is no part of the writing

    from dippm.runs.store.columns import Column
    from dippm.runs.store.parquet import long_table, read_samples, write_samples

    random = np.random.default_rng(0)
    times = np.cumsum(random.integers(99_000_000, 101_000_000, ticks))
    columns = [
        Column(f"tree.q{n}", "W", "tree", False, times, 100 + random.normal(size=ticks))
        for n in range(QUANTITIES)
    ]
    samples = ticks * QUANTITIES
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        written_s, _ = timed(lambda: write_samples(columns, folder))
        size = sum(file.stat().st_size for file in folder.iterdir())
        read_s, again = timed(lambda: read_samples(folder))
        table_s, table = timed(lambda: long_table(again))
    print(f"{samples:,} samples written: {written_s:.3f} CPU-s (at most 1)")
    print(f"{samples:,} samples on disk: {size / samples:.2f} bytes each (at most 10)")
    print(f"{samples:,} samples read:    {read_s:.3f} CPU-s (at most 0.2)")
    print(f"{table.num_rows:,} rows in one table: {table_s:.3f} CPU-s more")


def timed(work):
    """Return seconds of the processor, which others on the machine do not lengthen."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


if __name__ == "__main__":
    main()
