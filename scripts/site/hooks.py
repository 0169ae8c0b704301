"""Hooks of the mkdocs build; each task has its own file in this folder.

Generated pages are Markdown like the others, so links, anchors and search include them.
"""

from __future__ import annotations

import posixpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site import (
    accuracy,
    charts,
    commands,
    documents,
    formulas,
    links,
    notebooks,
    project,
    reference,
)

MAKERS = {
    "Accuracy": accuracy.pages,
    "Reference": lambda: {**reference.pages(), **commands.pages(), **documents.pages()},
    "Notebooks": notebooks.pages,
    "Project": project.pages,
}
"""Section of `nav` → function for its pages: path on the site → (title, Markdown)."""

_found: dict[str, dict[str, tuple[str, str]]] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generate the pages, and put them first in their sections."""
    _found.clear()
    _found.update({section: make() for section, make in MAKERS.items()})
    for section, pages in _found.items():
        entries = _section(config.nav or [], section)
        entries[:0] = [{title: path} for path, (title, _) in pages.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, the script of the charts, and files of the repository that pages link to."""
    for pages in _found.values():
        for path, (_, text) in pages.items():
            files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, charts.SCRIPT, content=charts.script()))
    for path, content in notebooks.pictures().items():
        files.append(File.generated(config, path, content=content))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for source in sorted(links.linked_files(texts)):
        content = (links.ROOT / source).read_bytes()
        files.append(File.generated(config, links.copy_of(source), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links into the repository to the site's pages and copies, and insert charts."""
    path = page.file.src_uri
    text = links.rewrite_links(markdown, path, {file.src_uri for file in files})
    return charts.insert_charts(
        text, posixpath.relpath(charts.SCRIPT, posixpath.dirname(path) or ".")
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert formulas to MathML."""
    return formulas.render_formulas(html)


def _section(nav: list[Any], name: str) -> list[Any]:
    """Return the entries of a section at any level of the navigation.

    Raises:
        KeyError: if there is no such section.
    """
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if title == name:
                return below
            if isinstance(below, list):
                try:
                    return _section(below, name)
                except KeyError:
                    continue
    raise KeyError(name)
