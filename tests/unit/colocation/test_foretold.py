"""What was foretold of runs that shared a device, by the predictions beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.runs.colocation.predicted_slowdowns import predict_slowdowns
from dippm.runs.tracking.expectation import expectation
from tests.unit.colocation.test_slowdown import SHARED, SOLO, kept

SIZES = "3,64,64"


@dataclass
class Run:
    """What `predict_slowdowns` asks of a stored run."""

    uuid: str
    prediction: dict[str, Any] | None
    tags: dict[str, str]

    @property
    def start(self) -> SimpleNamespace:
        return SimpleNamespace(tags=self.tags)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)]
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    image = (torch.zeros(1, 3, 64, 64),)
    torch.onnx.export(torch.nn.Sequential(*layers).eval(), image, path, dynamo=False, **names)
    return path


@pytest.fixture(scope="module")
def document(model):
    return dict(expectation(model, input=SIZES, batch=256, device="A100-80GB"))


def test_it_is_what_share_predicts_of_the_set(document, model):
    runs = [Run(name, document, {"sharing": "mps + mps"}) for name in ("a", "b")]
    found = predict_slowdowns(runs)
    one = dippm.share([model], copies=2, input=SIZES, batch=256, device="A100-80GB").processes[0]
    for name in ("a", "b"):
        assert found[name].slowdown == pytest.approx(one.slowdown)
        assert found[name].high == pytest.approx(one.slowdown_range.high)
        assert found[name].bounds == ""
    turns = predict_slowdowns([Run(name, document, {"sharing": "none"}) for name in ("a", "b")])
    assert "time slices" in turns["a"].bounds
    assert turns["a"].slowdown >= found["a"].slowdown
    halves = predict_slowdowns(
        [Run(name, document, {"collocation": "mps:50%"}) for name in ("a", "b")]
    )
    assert "percentages" in halves["a"].bounds
    slices = predict_slowdowns(
        [Run(n, document, {"collocation": p}) for n, p in (("a", "3g.40gb"), ("b", "4g.40gb"))]
    )
    assert slices["a"].slowdown > slices["b"].slowdown


def test_what_cannot_be_foretold_says_why(document, model, tmp_path):
    mps = {"sharing": "mps + mps"}
    run = Run("a", document, mps)
    assert "beside b" in predict_slowdowns([run, Run("b", None, mps)])
    other = {**document, "conditions": {**document["conditions"], "precision": "fp16"}}
    assert "different conditions" in predict_slowdowns([run, Run("b", other, mps)])
    assert "shared as" in predict_slowdowns([run, Run("b", document, {"collocation": "3g.40gb"})])
    assert "not a way to share" in predict_slowdowns([Run("a", document, {"sharing": "somehow"})])
    gone = {**document, "model": f"file:{tmp_path}/gone.onnx@{SIZES}#0123"}
    assert "is gone" in predict_slowdowns([Run("a", gone, mps)])
    changed = {**document, "model": f"file:{model}@{SIZES}#012345678901"}
    assert "no longer" in predict_slowdowns([Run("a", changed, mps)])


def test_the_command_holds_the_runs_against_it(document, store_file, tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    monkeypatch.setenv("DIPPM_SPOOL", str(spool))
    asked = kept(spool, "0_A", 100, 20.0, SHARED, prediction=document)
    kept(spool, "0_B", 100, 20.0, SHARED, prediction=document)
    kept(spool, "alone", 200, 10.0, SOLO)
    words = ["compare-run", asked[:12], "--co-located", "--store", str(store_file)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.count("predicted ×") == 2
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["runs"][0]
    assert found["foretold_low"] <= found["foretold"] <= found["foretold_high"]
    low, high = found["foretold_low"], found["foretold_high"]
    assert found["held"] == ("below" if low > 2 else "above" if high < 2 else "inside")
