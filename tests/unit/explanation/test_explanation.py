"""Where time, energy and memory are: every part is named, and the parts sum to the whole."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.explanation.explanation import PARTS, Roofline, ancestors
from dippm.errors import ConditionsError
from dippm.estimate.models.memory import MIB
from tests.browser import NEEDS_CHROMIUM, browse


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def part(found, name):
    return next(one for one in found.parts if one.name == name)


def network():
    """Convolutions, batch norms, a head: named modules three levels deep."""
    from torch import nn

    def block():
        layers = {"conv": nn.Conv2d(128, 128, 3, padding=1), "norm": nn.BatchNorm2d(128)}
        return nn.Sequential(OrderedDict(**layers, act=nn.ReLU()))

    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 128, 3, padding=1),
            blocks=nn.Sequential(block(), block()),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            head=nn.Linear(128, 10),
        )
    )


@pytest.fixture(scope="module")
def block():
    """The network as a graph, converted once."""
    return dippm.read_graph(network(), input=(3, 64, 64))


@pytest.fixture(scope="module")
def block_file(tmp_path_factory):
    """The network as a file."""
    import torch

    path = tmp_path_factory.mktemp("block") / "block.pt"
    torch.save(network(), path)
    return path


CONDITIONS = [
    {},
    {"batch": 64},
    {"batch": 64, "precision": "fp16", "timer": "wall+copy"},
    {"batch": 8, "timer": "kernel"},
    {"batch": 64, "mode": "compiled", "precision": "amp", "device": "RTX-3090"},
    {"batch": 16, "host": 1.0},
]


@pytest.mark.parametrize("conditions", CONDITIONS)
def test_times_and_energies_sum_to_the_whole(block, conditions):
    found = dippm.explain(block, **conditions)
    whole = found.prediction
    times = [row.cost.time_ms for row in found.operators] + [p.time_ms for p in found.parts]
    assert sum(times) == pytest.approx(whole.latency_ms, rel=1e-12)
    energies = [row.cost.energy_j for row in found.operators] + [p.energy_j for p in found.parts]
    assert sum(energies) == pytest.approx(whole.energy_j, rel=1e-12)
    assert all(energy > 0 for energy in energies[: len(found.operators)])
    assert [one.name for one in found.parts] == list(PARTS)
    residual = found.parts[-1]
    assert abs(residual.time_ms) < 1e-9 * whole.latency_ms
    assert abs(residual.energy_j) < 1e-9 * whole.energy_j
    assert sum(found.memory().values()) == pytest.approx(whole.memory_mb, rel=1e-12)


def test_the_copy_of_the_inputs_is_apart_from_the_host(block):
    quiet = {"batch": 256, "host": 0.1}
    wall = dippm.explain(block, **quiet)
    copied = dippm.explain(block, timer="wall+copy", **quiet)
    parts = {one.name: one.time_ms for one in copied.parts}
    assert parts["input copy"] == pytest.approx(copied.latency_ms - wall.latency_ms, rel=1e-9)
    assert parts["host"] == pytest.approx(part(wall, "host").time_ms, abs=1e-9)
    assert part(wall, "input copy").time_ms == 0


def test_a_host_bound_model_spends_its_time_on_the_host(block):
    found = dippm.explain(block, host=500.0)
    waiting = part(found, "host")
    assert waiting.share > 0.8
    idle = waiting.energy_j / waiting.time_ms
    busy = [row.cost.energy_j / row.cost.time_ms for row in found.operators]
    assert all(rate > idle for rate in busy)


def test_modules_sum_to_their_parents_in_every_quantity(block):
    def check(module):
        if module.children:
            for name in ("time_ms", "energy_j"):
                parts = [getattr(child, name) for child in module.children]
                assert sum(parts) == pytest.approx(getattr(module, name), rel=1e-12)
            for child in module.children:
                check(child)

    tree = dippm.explain(block, batch=64).tree
    check(tree)
    assert tree.energy_j == pytest.approx(dippm.predict(block, batch=64).energy_j)


def test_activations_alive_peak_where_the_memory_does(block):
    found = dippm.explain(block, batch=64)
    parts = found.prediction.memory_parts
    alive = {row.cost.node: row.alive_mb for row in found.operators}
    assert max(alive.values()) == pytest.approx(parts.activations_mb)
    assert alive[parts.peak_node] == pytest.approx(parts.activations_mb)
    at_32 = dippm.explain(block, batch=32)
    assert max(r.alive_mb for r in at_32.operators) == pytest.approx(
        parts.activations_mb / 2, rel=0.01
    )
    read = sum(row.weights_mb for row in found.operators)
    assert read == pytest.approx((27 * 128 + 2 * 9 * 128**2 + 1280) * 4 / MIB)


def test_energy_of_a_slice_is_absent_with_its_reason(block):
    found = dippm.explain(block, batch=8, mig="3g.20gb")
    assert all(row.cost.energy_j is None for row in found.operators)
    assert "MIG slice" in found.absent["energy_j"]
    assert found.to_dict()["absent"]["energy_j"] == found.absent["energy_j"]


def test_a_predictor_of_the_whole_has_nothing_to_explain(onnx_file):
    with pytest.raises(ConditionsError, match="predicts the whole") as caught:
        dippm.explain(onnx_file, device="cpu")
    assert "hybrid" in caught.value.hint


def test_a_predictor_without_energy_by_operator_says_so(onnx_file, checkpoint_folder):
    found = dippm.explain(onnx_file, checkpoint=checkpoint_folder)
    assert found.absent["energy_j"] == "no power was measured"
    assert part(found, "host").time_ms == 0


def test_a_bound_is_that_of_most_of_the_time(block):
    found = dippm.explain(block, batch=256, precision="fp32-ieee")
    rows = {row.module.path: row for row in found.modules(3)}
    assert rows["blocks.0.act"].bound == "memory"
    assert rows["blocks.0.conv"].bound == "compute"
    assert rows["head"].bound == "launch"
    assert rows[""].module.time_ms == pytest.approx(found.latency_ms)
    assert rows[""].alive_mb == max(row.alive_mb for row in found.operators)


def test_points_under_the_roofs(block):
    found = dippm.explain(block, batch=256)
    roofline = Roofline.of(found)
    assert roofline.bandwidth_gb_s == pytest.approx(1555)
    assert roofline.peak_tflops["tf32"] == pytest.approx(156)
    assert len(roofline.points) + roofline.left_out == len(found.operators)
    conv = max(roofline.points, key=lambda point: point.intensity)
    assert (conv.op, conv.unit) == ("conv2d", "tf32")
    width, pixels = 128, 256 * 64 * 64
    moved = 4 * (6 * width * pixels + 9 * width**2)  # convolution, bias and norm read and write
    assert conv.intensity == pytest.approx(2 * 9 * width**2 * pixels / moved, rel=0.05)
    sliced = Roofline.of(dippm.explain(block, batch=8, mig="3g.20gb"))
    assert sliced.bandwidth_gb_s == pytest.approx(1555 / 2)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("", []),
        ("head", ["head"]),
        ("blocks.0.conv", ["blocks", "blocks.0", "blocks.0.conv"]),
        ("/blocks/0/conv", ["", "/blocks", "/blocks/0", "/blocks/0/conv"]),
    ],
)
def test_what_a_path_lies_in(path, found):
    assert ancestors(path) == found


def test_a_path_of_a_thousand_names_is_cut():
    assert len(ancestors(".".join("a" * 1000))) == 65


def test_the_command_in_every_form(block_file, tmp_path):
    words = ["explain", block_file, "-i", "3,64,64", "--batch", "64", "--operators", "2"]
    answer = run(*words, "--html", tmp_path / "out.html")
    assert answer.exit_code == 0, answer.output
    for text in (
        "blocks",
        "stem",
        "alive MB",
        "(host) the GPU waits for launches",
        "weights of operators",
    ):
        assert text in answer.stdout
    assert "attributed" in answer.stdout
    document = json.loads(run(*words, "--json").stdout)
    rows = [*document["operators"], *document["parts"]]
    assert sum(row["time_ms"] for row in rows) == pytest.approx(document["latency_ms"])
    assert sum(row["energy_j"] for row in rows) == pytest.approx(document["energy_j"])
    assert document["modules"]["children"]
    page = (tmp_path / "out.html").read_text()
    assert 'src="http' not in page


def test_the_flame_chart_is_as_wide_as_the_latency(block):
    from dippm.show.report.explanation_page import flame_figure

    found = dippm.explain(block, batch=16)
    (trace,) = flame_figure(found).data
    assert sum(trace.values) == pytest.approx(found.latency_ms, rel=1e-5)
    assert trace.branchvalues == "remainder"
    known = set(trace.ids)
    assert len(known) == len(trace.ids)
    assert [parent for parent in trace.parents if parent not in known] == [""]
    assert "host" in trace.labels


def test_the_roofline_plot_has_the_roofs(block):
    from dippm.show.report.explanation_page import roofline_figure

    figure = roofline_figure(dippm.explain(block, batch=64))
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines"}
    memory = next(line for name, line in lines.items() if name.startswith("memory"))
    assert memory.y[1] / memory.x[1] == pytest.approx(1.555)
    tf32 = next(line for name, line in lines.items() if name.startswith("TF32"))
    assert tf32.y == (156, 156)
    assert memory.x[1] == pytest.approx(tf32.x[0])
    points = sum(len(trace.x) for trace in figure.data if trace.mode == "markers")
    assert points == len(Roofline.of(dippm.explain(block, batch=64)).points)


def test_hostile_names_do_no_harm_on_the_page():
    import torch

    from dippm.show.report.explanation_page import flame_figure

    layers = {"<script>alert(1)</script>": torch.nn.Linear(512, 512), "b": torch.nn.Linear(512, 8)}
    module = torch.nn.Sequential()
    for name, layer in layers.items():
        module.add_module(name, layer)
    (trace,) = flame_figure(dippm.explain(module, input=(512,))).data
    assert any("&lt;script" in label for label in trace.labels)
    assert not any("<script" in text for text in (*trace.labels, *trace.hovertext))


@pytest.mark.browser
@NEEDS_CHROMIUM
def test_a_browser_draws_both_charts_without_errors(block_file, tmp_path):
    page = tmp_path / "out.html"
    answer = run("explain", block_file, "-i", "3,64,64", "--batch", "32", "--html", page)
    assert answer.exit_code == 0, answer.output
    drawn, console = browse(page, tmp_path)
    for name in ("flame", "roofline"):
        assert re.search(rf'<div id="{name}"[^>]*js-plotly-plot', drawn)
    boxes = re.findall(r'<path class="surface"', drawn)
    assert len(boxes) >= 6
    assert len(re.findall(r'<path class="point"', drawn)) >= 4
    assert "CONSOLE" not in console, console


def test_bigger_batches_never_cost_less(block):
    found = [dippm.explain(block, batch=batch) for batch in (2, 8, 32, 128)]
    for less, more in pairwise(found):
        assert less.latency_ms <= more.latency_ms * 1.001
        assert less.prediction.energy_j < more.prediction.energy_j
