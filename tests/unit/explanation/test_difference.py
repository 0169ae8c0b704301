"""Where the time between two predictions went; its rows sum exactly to the difference."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.errors import ConditionsError, UnknownNameError
from tests.browser import NEEDS_CHROMIUM, browse
from tests.samples import sampled


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def network(*, width=128, extra=False):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 64, 3, padding=1)
            self.body = nn.Conv2d(64, width, 3, padding=1)
            if extra:
                self.more = nn.Conv2d(width, width, 1)
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            x = torch.relu(self.body(torch.relu(self.stem(x))))
            x = torch.sigmoid(self.more(x)) if extra else x
            return self.head(x.mean((2, 3)))

    return Net()


SIZES = {"input": "3,64,64", "batch": 32}


@pytest.mark.parametrize(
    "pair",
    sampled(
        [
            {"precision": ("fp32", "fp16")},
            {"device": ("A100", "H100")},
            {"device": ("T4", "RTX-4090"), "batch": (8, 64)},
            {"mode": ["eager", "compiled"], "precision": "amp"},
            {"mig": (None, "3g.20gb")},
            {"timer": ("wall", "wall+copy")},
            {"host": (5.0, 60.0)},
        ],
        pytest.mark.nightly(part="answers"),
    ),
)
@pytest.mark.parametrize("depth", [None, 1])
@pytest.mark.parametrize("most", [None, 2])
def test_rows_sum_to_the_difference(pair, depth, most):
    found = dippm.diff(network(), **{**SIZES, **pair})
    rows = found.changes(depth, most)
    first, second = found.before.prediction, found.after.prediction
    assert sum(row.before_ms for row in rows) == pytest.approx(first.latency_ms, rel=1e-12)
    assert sum(row.after_ms for row in rows) == pytest.approx(second.latency_ms, rel=1e-12)
    assert sum(row.change_ms for row in rows) == pytest.approx(
        second.latency_ms - first.latency_ms, abs=1e-9 * first.latency_ms
    )
    assert set(found.changed) == set(_pairs(pair))
    if most:
        assert len(rows) <= most + 1
        assert rows[-1].by == "others"


def _pairs(pair):
    return [name for name, value in pair.items() if isinstance(value, tuple | list)]


def test_both_sides_are_what_predict_says():
    found = dippm.diff(network(), **SIZES, device=("A100", "H100"), precision=("fp32", "amp"))
    one = dippm.predict(network(), **SIZES, device="A100", precision="fp32")
    two = dippm.predict(network(), **SIZES, device="H100", precision="amp")
    assert found.before.latency_ms == pytest.approx(one.latency_ms, rel=1e-12)
    assert found.after.latency_ms == pytest.approx(two.latency_ms, rel=1e-12)
    assert found.after.prediction.energy_j == pytest.approx(two.energy_j, rel=1e-12)


def test_two_models_are_set_side_by_side_by_module_then_by_operator():
    found = dippm.diff(network(), network(width=256, extra=True), **SIZES)
    rows = {(row.by, row.what): row for row in found.changes()}
    stem = rows["module", "stem"]
    assert stem.after_ms == pytest.approx(stem.before_ms, rel=0.1)
    assert rows["module", "body"].change_ms > 0
    added = rows["operator", "conv2d"]  # only one of them has it, so there is no module to compare
    assert added.before_ms == 0
    assert added.after_ms > 0
    assert ("module", "more") not in rows
    assert found.changes()[0].what in ("body", "conv2d", "sigmoid")
    assert "model" not in found.changed, "both are called Net"


def test_predictions_are_taken_as_they_are():
    one = dippm.predict(network(), **SIZES)
    two = dippm.predict(network(), **SIZES, precision="fp16")
    assert dippm.diff(one, two).change_ms == two.latency_ms - one.latency_ms


def test_energy_is_told_where_both_sides_have_it():
    found = dippm.diff(network(), **SIZES, precision=("fp32", "fp16"))
    rows = found.changes(most=2)
    assert sum(row.before_j for row in rows) == pytest.approx(found.before.prediction.energy_j)
    sliced = dippm.diff(network(), **SIZES, mig=(None, "1g.5gb"))
    assert all(row.after_j is None for row in sliced.changes(most=2))
    assert all(row.before_j is not None for row in sliced.changes(most=2))


@pytest.mark.parametrize(
    ("after", "arguments", "words"),
    [
        (None, {}, "nothing differs"),
        (None, {"precision": ("fp32", "fp32")}, "nothing differs"),
        (None, {"precision": ("fp32", "fp16", "bf16")}, "3 values"),
        (None, {"precision": ("fp32", "fp17")}, "fp17"),
        (None, {"device": ("A100", "cpu")}, "CPU|whole"),
    ],
)
def test_questions_without_an_answer(after, arguments, words):
    with pytest.raises((ConditionsError, UnknownNameError), match=words) as caught:
        dippm.diff(network(), after, **{**SIZES, **arguments})
    assert caught.value.hint


def test_the_command_in_every_form(onnx_file, fixed_batch_file, tmp_path):
    words = ["diff", onnx_file, "--precision", "fp32,fp16", "--batch", "64"]
    answer = run(*words, "--html", tmp_path / "out.html")
    assert answer.exit_code == 0, answer.output
    assert "small.onnx · precision fp32 → fp16" in answer.stdout
    assert "change ms" in answer.stdout
    document = json.loads(run(*words, "--json").stdout)
    changes = sum(row["change_ms"] for row in document["rows"])
    assert changes == pytest.approx(document["change_ms"])
    assert document["changed"] == {"precision": ["fp32", "fp16"]}
    two = run("diff", onnx_file, fixed_batch_file, "--batch", "4")
    assert two.exit_code == 0, two.output
    assert "model small.onnx → fixed.onnx" in two.stdout
    same = run("diff", onnx_file)
    assert same.exit_code == 1
    assert "--precision" in same.stderr
    assert run("diff", onnx_file, onnx_file, onnx_file).exit_code == 2
    assert run("diff", onnx_file, "--batch", "a,b").exit_code == 2
    assert run("diff", onnx_file, "--layout", "nchw").exit_code == 2


def test_the_waterfall_ends_where_the_second_side_is():
    from dippm.show.report.explanation_page import waterfall_figure

    found = dippm.diff(network(), network(width=256, extra=True), **SIZES)
    (trace,) = waterfall_figure(found).data
    assert trace.y[0] + sum(trace.y[1:-1]) == pytest.approx(found.after.latency_ms, rel=1e-12)
    assert trace.measure[0] == "absolute"
    assert trace.measure[-1] == "total"


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_browser_draws_the_waterfall_without_errors(onnx_file, tmp_path):
    page = tmp_path / "out.html"
    answer = run("diff", onnx_file, "--device", "A100,T4", "--batch", "64", "--html", page)
    assert answer.exit_code == 0, answer.output
    drawn, console = browse(page, tmp_path)
    assert re.search(r'<div id="waterfall"[^>]*js-plotly-plot', drawn)
    assert drawn.count('class="point"') >= 4
    assert "CONSOLE" not in console, console


def test_shares_have_one_base_and_say_nothing_where_there_is_nothing_to_say():
    """A model that the host decides takes as long on both GPUs, though its kernels do not."""
    import torch

    from dippm.show.report.explanation import difference_table

    layers = [torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU()] * 20
    small = {"input": "8,16,16", "batch": 1}
    for pair in ({"device": ("A100", "H100")}, {"device": ("A100", "T4"), "batch": 4096}):
        found = dippm.diff(torch.nn.Sequential(*layers), **{**small, **pair})
        rows = found.to_dict()["rows"]
        assert sum(row["change_share"] for row in rows) == pytest.approx(
            found.to_dict()["change_share"], abs=1e-9
        )
        for row in rows:
            assert row["change_share"] == row["change_ms"] / found.before.latency_ms
        table = difference_table(found, None)
        cells = [row[5] for row in table.rows]
        assert all(re.fullmatch(r"|[+−][\d.]+%", cell) for cell in cells), cells
        shares = [float(c.strip("+−%").replace(",", "")) for c in cells if c]
        assert all(share < 1e5 for share in shares)
        assert "-" not in "".join(row[4] for row in table.rows)
        *_, whole = table.rows
        if whole[4] == "0":
            assert whole[5] == ""
            assert "both sides take the same time: what some parts lose" in table.caption
        else:
            assert whole[5]
    assert abs(dippm.diff(torch.nn.Sequential(*layers), **small, device=("A100", "H100")).change_ms)
