"""Descriptions of pipelines: what makes one, and what is refused with the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.decide.pipelines import SHIPPED, Pipeline, Stage, read_pipeline
from dippm.decide.pipelines.shipped import parameters_of
from dippm.decide.pipelines.stage import MOST_STAGES, StageInput
from dippm.errors import PipelineError

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


def test_stages_run_behind_those_that_they_wait_for():
    c = Stage("c", "m", {"x": "@a", "y": "@b[2]", "z": "3,4"})
    b = Stage("b", "m", "@a")
    a = Stage("a", "m")
    found = Pipeline("p", (c, b, a))
    assert [stage.name for stage in found.stages] == ["a", "b", "c"]
    assert c.given() == {"x": StageInput("a"), "y": StageInput("b", 2)}
    assert c.before == ("a", "b")
    assert b.given() == {"": StageInput("a")}


def test_what_waits_for_itself_is_named_in_full():
    stages = (
        Stage("a", "m"),
        Stage("b", "m", "@d", after=("a",)),
        Stage("c", "m", "@b"),
        Stage("d", "m", after=("c",)),
    )
    with pytest.raises(PipelineError, match=r"b → d → c → b\n.*repeat=N"):
        Pipeline("p", stages)
    with pytest.raises(PipelineError, match="a → a"):
        Pipeline("p", (Stage("a", "m", "@a"),))


def test_a_stage_that_there_is_not_has_the_closest_name():
    with pytest.raises(PipelineError, match=r"decodr.*\n.*Did you mean decoder"):
        Pipeline("p", (Stage("decoder", "m"), Stage("b", "m", "@decodr")))


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": "a\x1b[31m"},
        {"repeat": 0},
        {"repeat": 10**9},
        {"repeat": True},
        {"batch_factor": 2.5},
        {"placement": "elsewhere"},
        {"input": "@a[x]"},
        {"input": "@"},
    ],
)
def test_what_makes_no_stage(given):
    with pytest.raises(PipelineError) as caught:
        Stage(**{"name": "a", "model": "m", **given})
    assert caught.value.hint


@pytest.mark.parametrize("count", [0, MOST_STAGES + 1])
def test_what_makes_no_pipeline(count):
    with pytest.raises(PipelineError, match="stages"):
        Pipeline("p", tuple(Stage(f"s{i}", "m") for i in range(count)))


def test_names_are_of_one_stage():
    with pytest.raises(PipelineError, match="two stages 'a'"):
        Pipeline("p", (Stage("a", "m"), Stage("a", "m")))


def test_a_file_is_read_with_paths_from_its_folder():
    found = read_pipeline(EXAMPLES / "caption.toml")
    assert [stage.repeat for stage in found.stages] == [1, 20]
    assert found.precision == "fp16"
    assert found.stages[1].after == ("encoder",)


def test_a_model_beside_the_file_is_found_there(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text('[[stages]]\nname = "a"\nmodel = "net.onnx"\n')
    (stage,) = read_pipeline(file).stages
    assert stage.model == str(tmp_path / "net.onnx")
    assert read_pipeline(file).name == "p"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_is_a_pipeline(file):
    assert read_pipeline(file).stages


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no stages"),
        ("stages = 3", "stages is 3"),
        ("stages = [3]", "not a table"),
        ('nmae = "x"', "Did you mean name"),
        ("[[stages]]\nname = 'a'", "no model"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\nrepat = 3", "Did you mean repeat"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\nrepeat = 3.5", "a whole number"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\nrepeat = true", "a whole number"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\ninput = [3]", "text or a table"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\ninput = { x = 3 }", "sizes as text"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\nafter = [3]", "texts"),
        ("[[stages]]\nname = 'a'\nmodel = 'm'\n" * 100, "100 stages"),
        ("[[stages", "not TOML"),
        ("x = " + "[" * 100_000, "TOML"),
        ("#" * (1 << 19), "larger"),
    ],
)
def test_what_a_file_must_not_say(tmp_path, text, words):
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(PipelineError) as caught:
        read_pipeline(file)
    assert words in str(caught.value)
    assert caught.value.hint


def test_a_file_that_there_is_not(tmp_path):
    with pytest.raises(PipelineError, match="--list"):
        read_pipeline(tmp_path / "none.toml")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_pipelines_are_described(name):
    found = SHIPPED[name].make()
    assert found.name == name
    assert all(str(stage.model).startswith("dippm:") for stage in found.stages)
    assert parameters_of(name)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("sdxl", {"width": 1000}, "Give 992"),
        ("sd15", {"steps": 0}, "1 to"),
        ("sd3", {"tokens": 10_000}, "512"),
        ("sdxl", {"guidance": float("nan")}, "number"),
        ("sdxl", {"width": 10**6}, "4,096"),
        ("dit", {"size": 1024}, "512"),
        ("detection", {"width": 8}, "128"),
        ("whisper", {"seconds": 0}, "number"),
        ("flux", {"height": "1024"}, "whole number"),
    ],
)
def test_sizes_that_no_network_takes(name, given, words):
    with pytest.raises(PipelineError, match=words):
        SHIPPED[name].make(**given)


def test_guidance_doubles_the_batch_of_a_step():
    def factors(guidance):
        stages = SHIPPED["sdxl"].make(guidance=guidance).stages
        return {stage.name: stage.batch_factor for stage in stages}

    assert factors(7.0) == {"text": 2, "text 2": 2, "unet": 2, "decoder": 1}
    assert set(factors(1.0).values()) == {1}
