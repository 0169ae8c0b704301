"""Write into README.md what the README promises: output and tables come from here, not from hands.

Run: python -m scripts.readme_output [--check]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.sample_models import vgg16_pt

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def session() -> str:
    """Run the first Python block of the README and return what it printed."""
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code, "the README has no Python block"
    printed = io.StringIO()
    with contextlib.chdir(vgg16_pt().parent), contextlib.redirect_stdout(printed):
        exec(compile(code.group(1), "README.md", "exec"), {})
    return f"```text\n{printed.getvalue().rstrip()}\n```\n"


def command() -> str:
    """Run the README's `dippm predict` and return what it printed."""
    return _run("predict vgg16.pt --batch 32 --input 3,224,224 --device A100 --operators 3")


def choice() -> str:
    """Run the README's `dippm choose` and return what it printed."""
    return _run(
        "choose vgg16.pt --batch 32 --input 3,224,224 --devices A100,H100,L4 "
        "--by throughput --slo-ms 50 --top 4"
    )


def sweep() -> str:
    """Run the README's `dippm sweep` and return what it printed."""
    return _run("sweep vgg16.pt --batch 1:256 --input 3,224,224 --device A100")


def _run(line: str) -> str:
    """Run a command in a terminal of 80 columns and return it with its output."""
    answer = subprocess.run(
        [sys.executable, "-m", "dippm", *line.split()],
        cwd=vgg16_pt().parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = "\n".join(line.rstrip() for line in answer.stdout.rstrip().splitlines())
    return f"```console\n$ dippm {line}\n{lines}\n```\n"


def accuracy() -> str:
    """Return the accuracy table, from the metrics of the shipped checkpoints."""
    from dippm.estimate.pretrained.model_card import table
    from scripts.accuracy_table import rows, shipped

    found = list(rows(shipped()))
    return table(found) + "\n" if found else "No checkpoint is shipped.\n"


def devices() -> str:
    """Return the names of the known GPUs."""
    from dippm.devices import all_devices

    sliced = [device.name for device in all_devices() if device.mig_profiles]
    others = [device.name for device in all_devices() if not device.mig_profiles]
    return f"With MIG slices: {', '.join(sliced)}.\nWithout: {', '.join(others)}.\n"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "session": session,
    "command": command,
    "choice": choice,
    "sweep": sweep,
    "accuracy": accuracy,
    "devices": devices,
}


def filled(text: str, names: set[str]) -> str:
    """Return the README's text with the named blocks made anew."""

    def fill(match: re.Match[str]) -> str:
        if match["name"] not in names:
            return match[0]
        return f"{match[1]}{BLOCKS[match['name']]()}{match[4]}"

    return BLOCK.sub(fill, text)


def main() -> int:
    """Rewrite the README, or with `--check` return 1 if that would change it."""
    before = README.read_text(encoding="utf-8")
    after = filled(before, set(BLOCKS))
    if "--check" in sys.argv[1:]:
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
