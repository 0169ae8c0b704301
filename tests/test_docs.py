"""The documentation: it builds without a warning, its links lead somewhere, and its code runs."""

from __future__ import annotations

import contextlib
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("sybil")

import dippm
from dippm.errors import ConditionsError
from scripts.site import blocks, reference, scene
from scripts.site.links import ROOT
from scripts.site.loose import difference
from tests.browser import NEEDS_CHROMIUM
from tests.chromium import chromium

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
"""Elements that a browser loads by itself, with the attribute that says what."""


class Opened(HTMLParser):
    """A built page: where it links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors.update(named[key] for key in ("id", "name") if named.get(key))
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])
        if tag in LOADED and named.get(LOADED[tag]) and named.get("rel") != "canonical":
            self.loads.append(named[LOADED[tag]])


def broken(site: Path) -> list[str]:
    """Return the internal links of all pages that lead nowhere, anchors included."""
    pages = {path: Opened(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    missing = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # served at any depth, so its addresses are absolute
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not goal.is_file() or (
                anchor and goal in pages and anchor not in pages[goal].anchors
            ):
                missing.append(f"{path.relative_to(site)}: {target}")
    return missing


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` does."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with contextlib.chdir(ROOT):
        config = load_config("mkdocs.yml", site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.mark.nightly(part="docs")
def test_no_link_is_broken(site):
    assert broken(site) == []


@pytest.mark.nightly(part="docs")
def test_nothing_is_loaded_from_a_network(site):
    outside = {
        f"{path.name}: {target}"
        for path in site.rglob("*.html")
        for target in Opened(path.read_text(encoding="utf-8")).loads
        if urlsplit(target).netloc
    }
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert outside == set()
    assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", styles)


@NEEDS_CHROMIUM
@pytest.mark.browser
@pytest.mark.nightly(part="docs")
def test_the_search_works_from_disk_and_asks_no_network(site, tmp_path):
    with chromium(tmp_path) as tab:
        for width, page in ((1280, "index.html"), (390, "method/latency.html")):
            tab.size(width, 900)
            tab.said.clear()
            tab.asked.clear()
            tab.open((site / page).as_uri())
            tab.wait(f"location.href.endsWith('{page}') && document.readyState === 'complete'")
            if width == 390:
                tab.click("label[for=__search].md-header__button")
            tab.type(".md-search__input", "largest batch")
            tab.press(" ")  # its key is what the search listens to
            tab.wait("document.querySelectorAll('.md-search-result__item').length > 5")
            assert [a for a in tab.asked if not a.startswith(("file:", "data:", "about:"))] == []
            assert [line for line in tab.said if line.startswith("error")] == []


@pytest.mark.nightly(part="docs")
def test_every_public_name_is_in_the_reference(site):
    anchors = {
        anchor
        for path in (site / "reference").glob("*.html")
        for anchor in Opened(path.read_text(encoding="utf-8")).anchors
    }
    assert {f"dippm.{name}" for name in dippm.__all__} - anchors == set()


@pytest.mark.nightly(part="docs")
def test_errors_are_those_of_the_metrics(site):
    from dippm.estimate.pretrained.store import available, read_metrics

    for info in available():
        page = (site / "accuracy" / f"{info.name}.html").read_text(encoding="utf-8")
        if f"{info.name} {info.version}" not in page:
            continue  # an older version
        for line in read_metrics(info.path)["summary"]:
            assert f"<td>{line['mape']:.4g}</td>" in page
            assert str(line["split"]).replace("&", "&amp;") in page


@pytest.mark.nightly(part="docs")
def test_formulas_are_drawn_without_a_script(site):
    page = (site / "method" / "latency.html").read_text(encoding="utf-8")
    assert page.count("<math") > 10
    assert "arithmatex" not in page


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="here"></h1><a href="b.html#no">b</a><a href="c.html">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here">a</a>')
    assert broken(tmp_path) == ["a.html: b.html#no", "a.html: c.html"]


def test_every_public_name_has_a_page():
    named = [name for names in reference.names_by_page().values() for name in names]
    assert sorted(named) == sorted(dippm.__all__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that pages name, as the current one."""
    for package in ("torchvision", "timm", "plotly", "optuna"):
        pytest.importorskip(package)
    before = os.environ.get("OMP_NUM_THREADS")
    with contextlib.chdir(scene.build(tmp_path_factory.mktemp("pages"))):
        yield
    assert os.environ.get("OMP_NUM_THREADS") == before


@pytest.mark.nightly(part="docs")
@pytest.mark.parametrize("page", blocks.pages(), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, folder):
    try:
        blocks.run(page)
    except ConditionsError as error:
        if page.stem == "measure" and "the prediction is for device CPU-" in str(error):
            pytest.skip(f"this processor was never measured: {error}")
        raise


@pytest.mark.parametrize(
    ("said", "printed", "same"),
    [
        ("latency 18.5 ms", " latency   18.6 ms\n", True),
        ("latency 18.5 ms", "latency 28.6 ms", False),
        ("latency 18.5 ms", "energy 18.5 ms", False),
        ("a ██▌ 2\n────", "a 2", True),
        ("first\n...\nlast 1,000", "first\nmore\nyet more\nlast 1,010", True),
        ("first\n...", "first\nmore", True),
        ("first", "first\nmore", False),
        ("first\nmore", "first", False),
        ("hybrid-gpu 0.5.0", "hybrid-gpu 0.6.0", True),
        ("1 a\n...\n29 b 5\n30 b 2", "1 a\n28 b 5\n29 b 5\n30 b 2", True),
        ("1 a\n...\n29 b 5\n30 b 2", "1 a\n28 b 5\n29 b 5\n30 b 9", False),
        ("...\n29 b 5\n...\n3 c", "28 b 9\n29 b 5\n30 b 2\n3 c", True),
        ("...\n29 b 5\n...\n3 c", "28 b 9\n30 d 2\n3 c", False),
    ],
)
def test_figures_may_move_and_words_may_not(said, printed, same):
    assert (difference(said, printed) is None) == same


def test_what_the_page_leaves_out_stays_out():
    printed = ["a", "b", "c", "d", "e"]
    assert blocks.elide_output(printed, ["a", "...", "d", "x", ""]) == ["a", "...", "d", "e"]
    assert blocks.elide_output(printed, ["a"]) == printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```console\n$ cat words\nother\n```\n", "the page says:  other"),
        ("```console\ndippm predict none.onnx\n```\n", "none.onnx"),
        ("```console\nrm words\n```\n", "pages run"),
        ("<!-- not run: no -->\n```console\ndippm predict a --no-such\n```\n", "--no-such"),
        ("<!-- not run: no -->\n```console\npython -m scripts.none\n```\n", "scripts.none"),
        ("<!-- not run: no -->\n```console\nmake nothing\n```\n", "nothing"),
        ("```ruby\nputs 1\n```\n", "nobody runs"),
    ],
)
def test_a_block_that_does_not_hold_is_an_error(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    (tmp_path / "words").write_text("words\n")
    with pytest.raises(blocks.BlockError, match=re.escape(said)):
        blocks.run(page)
