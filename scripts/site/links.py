"""Links between pages and the repository that work in both.

Pages use repository links (`../examples/prices.toml`). On the site such a link leads to the page
of the file, or to a copy of it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from scripts.site.prose import find_in_prose, replace_in_prose

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


def linked_files(texts: Mapping[str, str]) -> set[str]:
    """Return the paths of repository files that pages link to and that are not pages.

    Args:
        texts: Markdown by path on the site.
    """
    meant = {
        source
        for page, text in texts.items()
        for match in find_in_prose(text, LINK)
        for source in (_copied(page, match["target"]) or _source(page, match["target"]),)
    }
    return {source for source in meant if source and _is_outside(source)}


def rewrite_links(text: str, page: str, known: Collection[str]) -> str:
    """Return a page's Markdown with links for the site.

    Args:
        text: Markdown of the page.
        page: path of the page on the site.
        known: all paths on the site.
    """

    def lead(match: re.Match[str]) -> str:
        source = _source(page, match["target"])
        goal = source and (_page_of(source) or copy_of(source))
        if not goal or goal not in known:
            return match[0]
        start = posixpath.dirname(page) or "."
        return posixpath.relpath(goal, start) + (match["anchor"] or "")

    return replace_in_prose(text, LINK, lead)


def copy_of(source: str) -> str:
    """Return the site path of the copy of a repository file, which is never a page."""
    return f"{COPIES}/{source}" + (".txt" if source.endswith(".md") else "")


def _copied(page: str, target: str) -> str | None:
    """Return the repository file whose copy a generated page links to, else None."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if not path.startswith(f"{COPIES}/"):
        return None
    return re.sub(r"\.md\.txt$", ".md", path.removeprefix(f"{COPIES}/"))


def _source(page: str, target: str) -> str | None:
    """Return the repository path of a page's link; None if it leaves the repository."""
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
    """Return whether a path is a repository file that is not a page."""
    is_page = source.startswith("docs/") or source in BECAME
    return not is_page and (ROOT / source).is_file()
