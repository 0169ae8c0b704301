"""Our reading of a process tree beside GNU time's and psutil's.

Run: python -m benchmarks.tree_agreement [--seconds 2] [--hz 20]

Each workload runs once under GNU time, while our source and psutil read the same tree in turns.
Peak memory is compared where the tree is one process, because GNU time tells the largest process
and not the sum. What a source cannot tell here is printed with its reason.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from dippm.measure.readings import Absent, Source
from dippm.measure.sources.rapl import open_rapl
from dippm.measure.sources.tree import open_psutil_tree, open_tree

ALONE_NAME = "one process"
ALONE = "held = bytearray(300 << 20); {spin}"
SPIN = "import time; t = time.process_time()\nwhile time.process_time() - t < {seconds}: pass"
PARENT = (
    "import subprocess, sys; code = {code!r}\n"
    "for child in [subprocess.Popen([sys.executable, '-c', code]) for _ in range(2)]: child.wait()"
)
GNU = {"cpu_s": r"(?:User|System) time \(seconds\): ([\d.]+)", "peak_rss_mb": r"Maximum .*?: (\d+)"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each workload and quantity; 1 if GNU time is not installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of work in each process")
    parser.add_argument("--hz", type=float, default=20.0)
    arguments = parser.parse_args(argv)
    gnu_time = shutil.which("time")
    if gnu_time is None:
        print("GNU time is not installed: apt-get install time", file=sys.stderr)
        return 1
    alone = ALONE.format(spin=SPIN.format(seconds=arguments.seconds))
    for name, code in {ALONE_NAME: alone, "two children": PARENT.format(code=alone)}.items():
        ours, psutils, theirs = _run([gnu_time, "-v", sys.executable, "-c", code], arguments.hz)
        peak = ours["peak_rss_mb"] / psutils["peak_rss_mb"]
        print(
            f"{name}: {ours['cpu_s']:.2f} s of CPU, ours / GNU time "
            f"{ours['cpu_s'] / theirs['cpu_s']:.3f}, ours / psutil "
            f"{ours['cpu_s'] / psutils['cpu_s']:.3f}; peak of {ours['peak_rss_mb']:.0f} MB, "
            f"ours / psutil {peak:.3f}",
            end="\n" if name != ALONE_NAME else ", ",
        )
        if name == ALONE_NAME:
            print(f"ours / GNU time {ours['peak_rss_mb'] / theirs['peak_rss_mb']:.3f}")
    energy = open_rapl().read().get("package_energy_j")
    print("energy of the CPU:", energy.reason if isinstance(energy, Absent) else f"{energy:.1f} J")
    return 0


def _run(words: list[str], hz: float) -> tuple[Mapping[str, float], ...]:
    """Return the last figures of ours and of psutil's, and GNU time's."""
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    sources = {"ours": open_tree(process.pid), "psutil": open_psutil_tree(process.pid)}
    last: dict[str, dict[str, float]] = {name: {} for name in sources}
    while process.poll() is None:
        for name, source in sources.items():
            last[name] |= _figures(source)
        time.sleep(1 / hz)
    assert process.stderr is not None
    report = process.stderr.read()
    theirs = {name: sum(map(float, re.findall(found, report))) for name, found in GNU.items()}
    theirs["peak_rss_mb"] /= 1024
    return last["ours"], last["psutil"], theirs


def _figures(source: Source) -> dict[str, float]:
    values = source.read().values
    return {name: values[name] for name in ("cpu_s", "peak_rss_mb") if name in values}


if __name__ == "__main__":
    raise SystemExit(main())
