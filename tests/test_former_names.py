"""Former names of modules: what documents, scripts and entry points of earlier versions import."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from dippm.base.moved import MERGED, MOVED, present_name

FORMER = """
api batch_sweep calibration candidates choice choice.prices colocation comparison
conditions devices errors explanation exploration exploration.space features frontends
frontends.frontend frontends.registry graph graph.operators language loaded measure.protocol
measure.sampler_file measure.sources models models.hybrid models.predictor parallel plans.reading
plans.scheduler plans.terms points power_sweep prediction pretrained pretrained.store printable
progress radt report.exploration_page report.runs.catalogue report.runs.drawing store.attach
store.columns store.folder store.runs tracking tracking.command tracking.expectation
tracking.listeners tracking.mlflow_context tracking.order tracking.window umlaut verification
vision_operators
""".split()
"""Names below `dippm` that documents, scripts and entry points of earlier versions have."""


@pytest.mark.parametrize("name", sorted({*FORMER, *MOVED, *MERGED}))
def test_former_names_are_the_same_modules(name):
    present = present_name(f"dippm.{name}") or f"dippm.{name}"
    module = importlib.import_module(f"dippm.{name}")
    assert module is importlib.import_module(present)
    assert module.__name__ == module.__spec__.name == present


def test_former_names_are_attributes_of_the_package():
    code = "import dippm; print(dippm.graph.__name__, dippm.choice.pack.__name__, dippm.store)"
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert answer.startswith("dippm.model.graph pack <module 'dippm.runs.store'")
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("dippm.graph.nothing")


def test_former_names_are_commands():
    words = [sys.executable, "-m", "dippm.store.attach"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr.startswith("usage: python -m dippm.runs.store.attach ")
