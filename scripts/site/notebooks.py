"""The notebooks of examples/ as pages, with their committed outputs."""

from __future__ import annotations

import base64
import re
from functools import cache
from pathlib import Path

from scripts.site.links import ROOT, copy_of

FOLDER = "notebooks"
STYLE = re.compile(r"<style.*?</style>|\s(?:border|class|style)=\"[^\"]*\"", re.DOTALL)


def pages() -> dict[str, tuple[str, str]]:
    """Return path on the site → (title, Markdown) of every notebook."""
    return {f"{FOLDER}/{path.stem}.md": _page(path)[:2] for path in _notebooks()}


def pictures() -> dict[str, bytes]:
    """Return path on the site → content of every picture in them."""
    return {name: content for path in _notebooks() for name, content in _page(path)[2].items()}


def _notebooks() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.ipynb"))


@cache
def _page(path: Path) -> tuple[str, str, dict[str, bytes]]:
    """Return title, Markdown and pictures of a notebook."""
    import nbformat

    parts: list[str] = []
    drawn: dict[str, bytes] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{FOLDER}/{path.stem}_{len(drawn) + 1}.png"
                drawn[name] = base64.b64decode(data["image/png"])
                parts.append(f"![what the cell draws]({Path(name).name})")
            elif "text/html" in data:
                parts.append(_markup(data["text/html"]))
            elif output.get("name") != "stderr":
                parts.append(
                    f"```text\n{(output.get('text') or data.get('text/plain', '')).rstrip()}\n```"
                )
    title = next(line for line in "\n".join(parts).splitlines() if line.startswith("# "))
    note = f"Run it yourself: [{path.name}](../{copy_of(f'examples/{path.name}')})."
    text = "\n\n".join([parts[0], note, *parts[1:]])
    return title.removeprefix("# "), text + "\n", drawn


def _markup(html: str) -> str:
    """Return an output's tables without blank lines, which would end them in Markdown."""
    lines = [line.strip() for line in STYLE.sub("", html).splitlines() if line.strip()]
    return f'<div class="output">\n{"".join(lines)}\n</div>'
