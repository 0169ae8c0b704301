"""Pages from other files of the repository: contributing, data set, training, changes."""

from __future__ import annotations

from scripts.site.links import BECAME, ROOT

TITLES = {
    "CONTRIBUTING.md": "Contributing",
    "dataset/README.md": "The data set",
    "dataset/collect/README.md": "The collector",
    "training/README.md": "Training",
    "CHANGELOG.md": "Changes",
    "SECURITY.md": "Security",
    "CODE_OF_CONDUCT.md": "Code of conduct",
}


def pages() -> dict[str, tuple[str, str]]:
    """Return path on the site → (title, Markdown)."""
    return {
        BECAME[source]: (title, (ROOT / source).read_text(encoding="utf-8"))
        for source, title in TITLES.items()
    }
