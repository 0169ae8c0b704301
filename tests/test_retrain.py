"""From a fresh clone to a checkpoint that answers, by the command of the documentation."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import dippm
from dataset.join import raw_graphs
from dataset.join.graph_store import GraphStore
from tests.copied_tree import copy_tracked_files, is_known, run_in

COMMAND = "retrain-small"
CHECKPOINT = Path("build", COMMAND, "hybrid-gpu", "0.0.1")

pytestmark = [
    pytest.mark.nightly(part="package"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not is_known(), reason="tracked files are not known"),
    pytest.mark.skipif(not shutil.which("make"), reason="needs make"),
    pytest.mark.skipif(not find_spec("xgboost"), reason="needs the train extra"),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked files, with nothing beside it."""
    return copy_tracked_files(tmp_path_factory.mktemp("alone") / "dippm")


@pytest.fixture(scope="module")
def made(clone: Path) -> subprocess.CompletedProcess[str]:
    """Return what the command of the documentation printed, run with this environment."""
    page = (clone / "training" / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^make {COMMAND} ", page, re.MULTILINE)
    # The packages of this environment are those that the command would install.
    ready = ["-o", f"{sys.prefix}/test-ready", f"VENV={sys.prefix}"]
    return run_in(clone, ["make", COMMAND, *ready])


def test_the_way_from_nothing_ends_with_an_answer(
    clone: Path, made: subprocess.CompletedProcess[str]
) -> None:
    assert made.returncode == 0, made.stderr[-4000:]
    assert "5 of 5 sources in build/retrain-small/data" in made.stdout
    assert "torchvision:resnet50" in made.stdout
    assert f"wrote {CHECKPOINT}" in made.stdout
    graphs = GraphStore(clone / "build" / COMMAND / "graphs")
    (model,) = (m for m in raw_graphs.OTHER_MODELS if m == "torchvision:resnet50@224")
    answer = dippm.load(clone / CHECKPOINT).predict(graphs[model], batch=32, device="A100-80GB")
    assert None not in (answer.latency_ms, answer.energy_j, answer.memory_mb)
    assert answer.latency_ms > 0


def test_the_same_way_gives_the_same_weights(
    clone: Path, made: subprocess.CompletedProcess[str]
) -> None:
    assert made.returncode == 0, made.stderr[-4000:]
    recipe = (clone / "Makefile").read_text(encoding="utf-8")
    small = recipe.partition("\nretrain-small:")[2]
    found = re.search(r"(training\.hybrid\.train .*?) --work", small)
    assert found
    words = found[1].replace("$(SMALL)", f"build/{COMMAND}").split()
    again = Path("build", "again", "hybrid-gpu", "0.0.1")
    words += ["--work", "build/again/work", "--out", str(again), "--steps", "10", "--splits", "L"]
    done = run_in(clone, [sys.executable, "-m", *words])
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (
        hashlib.sha256((clone / folder / "model.safetensors").read_bytes()).hexdigest()
        for folder in (CHECKPOINT, again)
    )
    assert first == second


def test_what_it_went_without_is_said_and_stands_on_the_card(
    clone: Path, made: subprocess.CompletedProcess[str]
) -> None:
    card = (clone / CHECKPOINT / "README.md").read_text(encoding="utf-8")
    said = "Without timm_infer (latency): its tables were not at hand."
    assert said in made.stderr
    assert "without the models of timm_infer, timm_train," in made.stdout
    assert said in card
    assert "Without sd_webui (latency): part of its rows comes from" in card
