"""The README and the notebooks are tests: what they print is what the code prints."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import accuracy_table, readme_output
from scripts.readme_picture import caption

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


PAGES = {path: path.read_text(encoding="utf-8") for path in readme_output.PAGES}


def test_every_block_has_its_maker():
    blocks = (match for text in PAGES.values() for match in readme_output.BLOCK.finditer(text))
    assert sorted(match["name"] for match in blocks) == sorted(readme_output.BLOCKS)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_tables_are_current(path):
    tables = {"accuracy", "questions", "devices"}
    assert readme_output.regenerate_blocks(PAGES[path], tables) == PAGES[path], "run `make readme`"


def test_it_is_read_in_a_few_minutes():
    assert len(TEXT.splitlines()) <= 120


def test_the_cards_answer_every_question():
    assert [row["asked"] for row in accuracy_table.rows(accuracy_table.shipped())] == [
        question.text for question in accuracy_table.QUESTIONS
    ]


def test_a_question_answered_for_several_gpus_shows_the_range():
    line = {"target": "latency_ms", "split": "S2 families held out", "data": "timm tables (eager)"}
    lines = [
        {**line, "gpu": gpu, "median_ape": 2 * mape, "mape": mape, "n": 600, "checkpoint": "c"}
        for gpu, mape in (("B", 3.0), ("A", 2.04), ("A", 2.0))
    ]
    (row,) = accuracy_table.rows(lines)
    assert row["GPU"] == "B, A"
    assert row["MAPE %"] == "2.0 – 3.0"
    assert row["median APE %"] == "4.0 – 6.0"
    assert row["n"] == "1,800"


def test_links_lead_somewhere():
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / target).exists(), f"{document} links to {target}"


def test_the_map_names_what_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:dippm|dataset|training|tests|checkpoints)/[\w/.-]*[\w/])`", text)
    assert len(paths) > 10
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for document in ("README.md", "CONTRIBUTING.md"):
        named.update(re.findall(r"^make ([\w-]+)", (ROOT / document).read_text(), re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torchvision"), reason="torchvision is not installed")
@pytest.mark.parametrize("name", ["session", "sweep"])
def test_the_session_prints_what_it_says(name):
    assert readme_output.regenerate_blocks(TEXT, {name}) == TEXT, "run `make readme`"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torchvision"), reason="torchvision is not installed")
def test_the_pictures_are_current():
    for path, svg in readme_output.pictures().items():
        assert (ROOT / path).read_text(encoding="utf-8") == svg, "run `make readme`"


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_a_place_that_holds_no_batch_is_said_so():
    places = [SimpleNamespace(name="1g.5gb", largest_batch=None)]
    sweep = SimpleNamespace(title="a model", places=places)
    assert caption(sweep) == "Memory of a model over batch sizes. At 99 %: 1g.5gb none."


def test_the_notebooks_are_numbered_without_a_gap():
    numbers = [path.name[:3] for path in NOTEBOOKS]
    assert numbers == ["01_", "02_", "03_", "04_", "05_", "06_", "07_", "08_"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebooks_are_committed_as_they_ran(path):
    nbformat = pytest.importorskip("nbformat")
    code = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert [output for output in outputs if "image/png" in output.get("data", {})], "no picture"


@pytest.mark.nightly(part="docs")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebooks_run(path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    here = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=here).execute()
