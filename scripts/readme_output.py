"""Generate the output, tables and pictures in README.md and other pages.

Run: python -m scripts.readme_output [--check]
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import dippm
from scripts.sample_models import vgg16_pt

if TYPE_CHECKING:
    from scripts.accuracy_table import Question

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "how_far_off.md", ROOT / "docs" / "predict.md")
PICTURE = "docs/assets/sweep-{}.svg"
"""Path of the README's picture, by palette."""

HEADLINES = (
    "latency in a laboratory never seen",
    "latency of a kind of model never seen",
    "latency on a GPU never measured",
    "memory in a laboratory never seen",
    "power in a laboratory never seen",
)
"""The README's questions: first the user's own case, a machine that never measured for us."""

BLOCK = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def session() -> str:
    """Run the first Python block of the README and return what it printed."""
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code, "the README has no Python block"
    printed = io.StringIO()
    with contextlib.chdir(vgg16_pt().parent), contextlib.redirect_stdout(printed):
        exec(compile(code.group(1), "README.md", "exec"), {})
    return f"```text\n{printed.getvalue().rstrip()}\n```\n"


def sweep() -> str:
    """Return the markup that shows the picture for the reader's colour scheme."""
    from scripts.readme_picture import caption

    dark, light = PICTURE.format("dark"), PICTURE.format("light")
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img alt="{escape(caption(vgg16_sweep()))}" src="{light}" width="600">\n</picture>\n'
    )


def pictures() -> dict[str, str]:
    """Return the SVG of each picture by path."""
    from scripts.readme_picture import PALETTES, picture

    found = PALETTES.items()
    return {PICTURE.format(name): picture(vgg16_sweep(), palette) for name, palette in found}


@cache
def vgg16_sweep() -> dippm.BatchSweep:
    """Predict the README's model over batch sizes."""
    with contextlib.chdir(vgg16_pt().parent):
        return dippm.sweep("vgg16.pt", batch="1:1024", input="3,224,224", device="A100")


def accuracy() -> str:
    """Return the errors of the most important questions, from the checkpoints' metrics."""
    from scripts.accuracy_table import QUESTIONS

    asked = {question.text: question for question in QUESTIONS}
    return _errors(asked[text] for text in HEADLINES)


def questions() -> str:
    """Return the errors of every question."""
    from scripts.accuracy_table import QUESTIONS

    return _errors(QUESTIONS)


def _errors(asked: Iterable[Question]) -> str:
    from dippm.estimate.pretrained.model_card import table
    from scripts.accuracy_table import rows, shipped

    found = list(rows(shipped(), asked))
    return table(found) + "\n" if found else "No checkpoint is shipped.\n"


def devices() -> str:
    """Return the names of the known GPUs."""
    from dippm.devices import all_devices

    found = {True: [], False: []}
    for device in all_devices():
        found[bool(device.mig_profiles or device.unlisted_mig_profiles)].append(device.name)
    return f"With MIG slices: {', '.join(found[True])}.\nWithout: {', '.join(found[False])}.\n"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "session": session,
    "sweep": sweep,
    "accuracy": accuracy,
    "questions": questions,
    "devices": devices,
}


def regenerate_blocks(text: str, names: set[str]) -> str:
    """Return a page's text with the named blocks regenerated."""

    def fill(match: re.Match[str]) -> str:
        if match["name"] not in names:
            return match[0]
        return f"{match[1]}{BLOCKS[match['name']]()}{match[4]}"

    return BLOCK.sub(fill, text)


def main() -> int:
    """Rewrite README, picture and pages, or with `--check` return 1 if that changes any."""
    made = {
        page: regenerate_blocks(page.read_text(encoding="utf-8"), set(BLOCKS)) for page in PAGES
    }
    made |= {ROOT / path: svg for path, svg in pictures().items()}
    changed = {
        path: text
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        return int(bool(changed))
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
