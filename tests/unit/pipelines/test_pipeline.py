"""What a pipeline costs: sums of its stages, and what is in memory when."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.pipelines import SHIPPED
from dippm.decide.pipelines.combined import IntervalTerm, correlated_sum, independent_sum
from dippm.decide.pipelines.memory import copy_time
from dippm.devices import find
from dippm.errors import ConditionsError, ModelFileError, PipelineError
from tests.samples import sampled

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
SMALL = {
    "detection": "--width 128 --height 128 --frames 2",
    "retrieval": "--set passages=3 --set question=8 --set tokens=24",
    "sd15": "--width 256 --height 256 --steps 2",
    "whisper": "--set tokens=10",
    "dit": "--steps 3",
    "latte": "--steps 2 --frames 4 --set size=128",
    "sdxl": "--width 256 --height 256 --steps 2 --guidance 7",
    "sd3": "--width 256 --height 256 --steps 2",
    "flux": "--width 256 --height 256 --steps 2 --offload",
}
QUICK = ("detection", "retrieval")


class Two(nn.Module):
    """A map and its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 64, 3, padding=1)

    def forward(self, image):
        y = self.layer(image)
        return y, y.mean((2, 3))


@pytest.fixture(scope="module")
def stages():
    body = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())])
    return (
        dippm.Stage("map", Two().eval(), "3,64,64"),
        dippm.Stage("loop", body.eval(), "@map[1]", repeat=10, batch_factor=2),
        dippm.Stage("end", nn.Conv2d(64, 8, 1).eval(), "@map", after=("loop",)),
    )


@pytest.fixture(scope="module")
def found(stages):
    return dippm.pipeline(dippm.Pipeline("small", stages), device="A100", batch=4)


def test_times_and_energies_are_sums_over_runs(found):
    first, loop, last = found.stages
    one = loop.prediction
    assert loop.latency_ms == pytest.approx(10 * one.latency_ms)
    assert one.conditions.batch == 8
    parts = first.latency_ms + loop.latency_ms + last.latency_ms
    assert found.latency_ms == pytest.approx(parts)
    assert found.energy_j == pytest.approx(sum(stage.energy_j for stage in found.stages))
    assert found.power_w == pytest.approx(1e3 * found.energy_j / found.latency_ms)
    assert sum(stage.share for stage in found.stages) == pytest.approx(1)


def test_intervals_of_shared_errors_are_the_widest(found):
    for target in ("latency_ms", "energy_j"):
        wide, narrow = found.intervals[target], found.intervals_apart[target]
        assert wide.low < narrow.low < getattr(found, target) < narrow.high < wide.high
    parts = [IntervalTerm(10, 8, 14), IntervalTerm(20, 17, 23)]
    assert (correlated_sum(parts, 0.9).low, correlated_sum(parts, 0.9).high) == (25, 37)
    assert (independent_sum(parts, 0.9).low, independent_sum(parts, 0.9).high) == pytest.approx(
        (30 - 13**0.5, 35)
    )


def test_the_memory_is_that_of_all_weights_and_one_stage(found):
    assert [m.stage for m in found.timeline] == ["map", "loop", "end"]
    assert found.timeline[0].start_ms == 0
    assert found.timeline[-1].end_ms == pytest.approx(found.latency_ms)
    weights = sum(stage.weights_mb for stage in found.stages)
    context = max(stage.prediction.memory_parts.context_mb for stage in found.stages)
    for moment, stage in zip(found.timeline, found.stages, strict=True):
        assert moment.weights_mb == pytest.approx(weights)
        assert moment.working_mb == pytest.approx(stage.working_mb)
        assert moment.context_mb == context
    kept = (4 * 64 * 64 * 64 + 4 * 64) * 4 / 2**20
    assert found.timeline[1].results_mb == pytest.approx(kept)
    assert found.memory_mb == max(moment.memory_mb for moment in found.timeline)
    assert found.memory_bound_mb > found.memory_mb
    assert found.fits


def test_the_largest_batch_is_the_last_that_fits(stages):
    def at(batch):
        whole = dippm.Pipeline("small", stages)
        return dippm.pipeline(whole, device="A100", mig="1g.5gb", batch=batch)

    largest = at(1).largest_batch
    assert at(largest).fits
    assert not at(largest + 1).fits
    assert any("may run out of memory" in warning for warning in at(largest + 1).warnings)


def test_offloaded_weights_are_copied_there_and_back(stages):
    large = nn.Sequential(nn.Linear(64, 65_536), nn.Linear(65_536, 64)).eval()
    stages = (*stages, dippm.Stage("large", large, "@map[1]"))
    whole = dippm.Pipeline("small", stages)
    stays = dippm.pipeline(whole, device="A100")
    goes = dippm.pipeline(whole, device="A100", offload=True)
    assert goes.memory_mb < stays.memory_mb
    assert goes.latency_ms > stays.latency_ms
    assert [m.what for m in goes.timeline[-3:]] == ["load", "run", "return"]
    copies = sum(stage.copy_ms for stage in goes.stages)
    assert goes.latency_ms == pytest.approx(stays.latency_ms + copies)
    assert goes.energy_j > stays.energy_j
    assert any("copies" in warning for warning in goes.warnings)
    only = replace(whole, stages=(*stages[:3], replace(stages[3], placement="offloaded")))
    some = dippm.pipeline(only, device="A100")
    assert goes.latency_ms > some.latency_ms > stays.latency_ms


def test_a_copy_takes_what_the_link_reaches():
    part = copy_time(find("A100"), 24e9 / 2**20)
    assert part.value == pytest.approx(1000)
    assert part.low < part.value < part.high


def test_weights_of_one_model_are_there_once(stages):
    end = stages[2]
    twice = dippm.Pipeline("p", (*stages, replace(end, name="again")))
    once = dippm.pipeline(dippm.Pipeline("p", stages), device="A100")
    found = dippm.pipeline(twice, device="A100")
    assert found.timeline[0].weights_mb == pytest.approx(once.timeline[0].weights_mb)


def test_the_tree_has_a_branch_for_each_stage(found):
    tree = found.tree
    assert [child.name for child in tree.children] == ["map", "loop", "end"]
    assert sum(child.time_ms for child in tree.children) == pytest.approx(tree.time_ms)
    assert tree.share == pytest.approx(1)
    assert tree.children[1].macs == 10 * 8 * 8 * 64 * 64


def test_a_stage_has_its_own_precision(stages):
    last = replace(stages[2], after=(), precision="fp32")
    whole = dippm.Pipeline("p", (stages[0], last), "fp16")
    found = dippm.pipeline(whole, device="A100")
    assert [s.prediction.conditions.precision for s in found.stages] == ["fp16", "fp32"]
    for stage in found.stages:  # of its tree as in memory
        assert stage.tree.weight_bytes / 2**20 == pytest.approx(stage.weights_mb, abs=1e-5)
    other = dippm.pipeline(whole, device="A100", precision="bf16")
    assert [s.prediction.conditions.precision for s in other.stages] == ["bf16", "fp32"]


def test_a_loaded_predictor_answers_for_another_device(stages):
    loaded = dippm.load(device="A100")
    whole = dippm.Pipeline("p", stages)
    one = dippm.pipeline(whole, checkpoint=loaded)
    other = dippm.pipeline(whole, checkpoint=loaded, device="T4")
    names = [p.stages[2].prediction.conditions.device.name for p in (one, other)]
    assert names == ["A100-40GB", "T4"]
    assert other.latency_ms > one.latency_ms


def test_what_prints(found):
    text = str(found)
    assert "small · batch 4 · A100-40GB" in text
    assert all(stage.stage.name in text for stage in found.stages)
    assert "<table>" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["stages"][1]["repeat"] == 10


def test_sizes_that_do_not_fit_name_both_stages(stages):
    wrong = replace(stages[2], input="@loop")
    with pytest.raises(PipelineError, match=r"stage end .*from loop.*\n.*after"):
        dippm.pipeline(dippm.Pipeline("p", (*stages[:2], wrong)))


def test_a_result_that_there_is_not(stages):
    wrong = replace(stages[1], input="@map[7]")
    with pytest.raises(PipelineError, match="result 7 of map, which has 2"):
        dippm.pipeline(dippm.Pipeline("p", (stages[0], wrong)))


def test_a_model_that_cannot_be_read_names_its_stage(tmp_path):
    stage = dippm.Stage("first", str(tmp_path / "none.onnx"))
    with pytest.raises(ModelFileError, match="stage first: no such file"):
        dippm.pipeline(dippm.Pipeline("p", (stage,)))


@pytest.mark.parametrize(
    ("source", "given", "words"),
    [
        ("sdx", {}, "Did you mean sdxl"),
        ("sdxl", {"stepz": 3}, "Did you mean steps"),
        (EXAMPLES / "ap1.toml", {"steps": 3}, "unknown option 'steps'"),
        (3, {}, "3 is not a pipeline"),
        ("", {}, "is not a pipeline"),
        (None, {}, "None is not a pipeline"),
    ],
)
def test_what_is_not_known_has_the_closest_name(source, given, words):
    with pytest.raises(PipelineError, match=words):
        dippm.pipeline(source, **given)


def test_a_pipeline_runs_forward():
    with pytest.raises(ConditionsError, match="training step"):
        dippm.pipeline(EXAMPLES / "ap1.toml", phase="train")
    with pytest.raises(ConditionsError, match="batch"):
        dippm.pipeline(EXAMPLES / "ap1.toml", batch=0)


def test_memory_that_is_one_number_is_absent_with_the_reason(stages):
    found = dippm.pipeline(dippm.Pipeline("p", stages), device=_cpu())
    assert found.memory_mb is None
    assert not found.timeline
    assert "map: " in found.absent["memory_mb"]
    assert "not available" in str(found)
    found.to_dict()


def _cpu() -> str:
    from dippm.devices import all_cpus

    return all_cpus()[0].name


def run(words: str):
    return CliRunner().invoke(app, ["pipeline", *words.split()])


def shipped(name: str, tmp_path: Path) -> None:
    """Ask the command for a shipped pipeline, small, and check its document."""
    answer = run(f"{name} {SMALL[name]} --json --tree --html {tmp_path}/page.html")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    names = [stage.name for stage in SHIPPED[name].make().stages]
    assert [stage["name"] for stage in document["stages"]] == names
    assert [child["name"] for child in document["tree"]["children"]] == names
    assert 0 < document["latency_ms"] < 60_000
    assert document["timeline"][-1]["end_ms"] == pytest.approx(document["latency_ms"])
    unknown = [stage["prediction"]["graph"]["unknown"] for stage in document["stages"]]
    assert not any(unknown)
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "<script" not in page


@pytest.mark.parametrize("name", QUICK)
def test_a_shipped_pipeline_is_answered(name, tmp_path):
    pytest.importorskip("transformers")
    shipped(name, tmp_path)


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("name", [name for name in SMALL if name not in QUICK])
def test_a_large_shipped_pipeline_is_answered(name, tmp_path):
    pytest.importorskip("transformers")
    shipped(name, tmp_path)


def test_every_shipped_pipeline_is_tried():
    assert set(SMALL) == set(SHIPPED)


@pytest.mark.parametrize(
    "file",
    sampled(sorted(EXAMPLES.glob("ap*.toml")), pytest.mark.nightly(part="answers"), every=5),
    ids=lambda file: file.stem,
)
def test_examples_are_answered_in_the_terminal(file):
    if file.stem == "ap2":
        pytest.importorskip("transformers")
    answer = run(str(file))
    assert answer.exit_code == 0, answer.output
    assert file.stem.upper() in answer.output


def test_the_list_has_every_parameter():
    answer = run("--list")
    assert all(name in answer.output for name in SHIPPED)
    found = json.loads(run("--list --json").stdout)["pipelines"]
    assert found[1]["parameters"]["steps"] == 30


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "--list"),
        ("sdxl --set steps", 2, "NAME=VALUE"),
        ("sdxl --set width=1000", 1, "Give 992"),
        ("sdxll", 1, "Did you mean sdxl"),
        (f"{EXAMPLES}/ap4.toml --batch 5000 --require-fit", 1, "not known to fit"),
    ],
)
def test_what_the_command_refuses(words, code, said):
    answer = run(words)
    assert answer.exit_code == code
    assert said in answer.output
