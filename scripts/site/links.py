"""Links between pages and the repository, which work in both.

Pages link as files of the repository do (`../examples/prices.toml`). On the site such a link leads
to the page that the file became, or to a copy of it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from scripts.site.prose import found, replaced

ROOT = Path(__file__).resolve().parents[2]
COPIES = "repository"
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")

BECAME = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code_of_conduct.md",
    "dataset/README.md": "project/data_set.md",
    "dataset/collect/README.md": "project/collector.md",
    "training/README.md": "project/training.md",
    "checkpoints": "accuracy/index.md",
    "checkpoints/README.md": "accuracy/index.md",
}
"""Files and folders of the repository that are pages of the site."""

_ORIGINS = {page: source for source, page in BECAME.items()} | {"index.md": "docs/index.md"}


def wanted(texts: Mapping[str, str]) -> set[str]:
    """Return the files of the repository that pages link to and that are no pages, by their paths.

    Args:
        texts: path on the site → Markdown.
    """
    meant = {
        source
        for page, text in texts.items()
        for match in found(text, LINK)
        for source in (_copied(page, match["target"]) or _source(page, match["target"]),)
    }
    return {source for source in meant if source and _is_outside(source)}


def rewritten(text: str, page: str, known: Collection[str]) -> str:
    """Return a page's Markdown with its links as the site has them.

    Args:
        text: Markdown.
        page: path on the site.
        known: paths on the site.
    """

    def lead(match: re.Match[str]) -> str:
        source = _source(page, match["target"])
        goal = source and (_page_of(source) or copy_of(source))
        if not goal or goal not in known:
            return match[0]
        start = posixpath.dirname(page) or "."
        return posixpath.relpath(goal, start) + (match["anchor"] or "")

    return replaced(text, LINK, lead)


def copy_of(source: str) -> str:
    """Return where the copy of a file of the repository is on the site; it is never a page."""
    return f"{COPIES}/{source}" + (".txt" if source.endswith(".md") else "")


def _copied(page: str, target: str) -> str | None:
    """Return the file of the repository whose copy a page made for the site links to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if not path.startswith(f"{COPIES}/"):
        return None
    return re.sub(r"\.md\.txt$", ".md", path.removeprefix(f"{COPIES}/"))


def _source(page: str, target: str) -> str | None:
    """Return the path in the repository that a link of a page means; None if it leaves it."""
    origin = _ORIGINS.get(page)
    if origin is None and page.startswith("notebooks/"):
        origin = f"examples/{posixpath.basename(page)}"
    if origin is None and posixpath.dirname(page) in ("accuracy", "reference"):
        return None  # written for the site
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin or f"docs/{page}"), target))
    return None if path.startswith("..") else path


def _page_of(source: str) -> str | None:
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith("examples/") and source.endswith(".ipynb"):
        return f"notebooks/{posixpath.basename(source).removesuffix('.ipynb')}.md"
    return BECAME.get(source)


def _is_outside(source: str) -> bool:
    """Tell whether it is a file of the repository that is no page."""
    is_page = source.startswith("docs/") or source in BECAME
    return not is_page and (ROOT / source).is_file()
