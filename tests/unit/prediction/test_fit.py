"""Whether a model fits is a field, and an exit code where that is asked for."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.estimate.models.targets import Estimates
from dippm.estimate.prediction import Prediction


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory):
    import torch

    path = tmp_path_factory.mktemp("fit") / "wide.pt"
    layers = [torch.nn.Conv2d(3, 256, 3, padding=1), torch.nn.ReLU()]
    torch.save(torch.nn.Sequential(*layers, torch.nn.Conv2d(256, 256, 3)), path)
    return path


def test_fitting_is_by_the_bound_of_99_percent_as_the_slice_is(wide_file):
    found = dippm.sweep(wide_file, batch="1:8192", input="3,64,64", device="T4").predictions
    assert {p.fits for p in found} == {True, False}
    for p in found:
        document = p.to_dict()
        assert document["fits"] is p.fits is (p.memory_bound_mb <= 16384)
        assert document["capacity_mb"] == 16384
        assert document["headroom_mb"] == pytest.approx(16384 - p.memory_bound_mb)
        assert (p.misfit is None) is p.fits
        assert (" fits         yes" in str(p)) is p.fits
        assert ("<td>fits</td><td>no</td>" in p._repr_html_()) is not p.fits
    on_slices = dippm.compare([wide_file], input="3,64,64", mig=["1g.5gb", "7g.40gb"], batch=700)
    assert [(p.fits, p.capacity_mb) for p in on_slices] == [(False, 4864), (True, 40192)]


def test_a_memory_that_is_surely_short_is_not_called_a_risk(wide_file):
    sweep = dippm.sweep(wide_file, batch=[960, 8192], input="3,64,64", device="T4")
    words = [next(w for w in p.warnings if "out of memory" in w) for p in sweep.predictions]
    assert words[0].startswith("may run out of memory: needs up to ")
    assert words[1].startswith("will run out of memory: needs ")
    assert sweep.predictions[1].intervals["memory_mb"].low > 16384


def test_a_fit_that_is_not_known_says_why(wide_file):
    one = dippm.predict(wide_file, input="3,64,64")
    unknown = Prediction.of(
        Estimates({}, {"memory_mb": "nobody knows"}),
        one.source_graph,
        conditions=one.conditions,
        provenance=one.provenance,
    )
    assert unknown.fits is None
    assert unknown.headroom_mb is None
    assert unknown.absent["fits"] == "nobody knows"
    assert unknown.misfit == "whether it fits A100-40GB is not known: nobody knows"
    assert " fits         not known: nobody knows" in str(unknown)


def test_require_fit_is_an_exit_code_and_the_answer_is_printed_all_the_same(wide_file, tmp_path):
    where = [wide_file, "--input", "3,64,64", "--device", "T4", "--json"]
    for command in ("predict", "compare", "sweep"):
        words = [command, *where]
        assert run(*words, "--batch", 8192).exit_code == 0
        assert run(*words, "--batch", 1, "--require-fit").exit_code == 0
        short = run(*words, "--batch", 8192, "--require-fit")
        assert short.exit_code == 1
        assert '"fits": false' in short.stdout
        json.loads(short.stdout)
        assert "does not fit T4: needs up to" in " ".join(short.stderr.split())
    several = run("sweep", *where, "--batch", "1:8192", "--require-fit")
    assert several.exit_code == 1
    assert "of 14 predictions are not known to fit" in " ".join(several.stderr.split())
    table = tmp_path / "table.csv"
    run("compare", *where, "--batch", "1,8192", "--csv", table)
    with table.open(newline="") as file:
        assert [row["fits"] for row in csv.DictReader(file)] == ["True", "False"]
