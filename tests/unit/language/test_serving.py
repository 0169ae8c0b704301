"""The whole answer with the shipped checkpoint: physics, prints, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.decide.language import language_model
from dippm.errors import (
    CheckpointError,
    ConditionsError,
    DoesNotFitError,
    UnsupportedPrecisionError,
)
from tests.samples import sampled
from training.language.shapes import SHAPES

LLAMA = {**SHAPES["llama-3.1-8b"], "_name_or_path": "llama"}


def ask(config=LLAMA, **arguments):
    return language_model(config, **{"device": "H100", "prompt": 256, "generated": 64, **arguments})


@pytest.mark.parametrize(
    "software", sampled(["graph", "engine", "eager"], pytest.mark.nightly(part="answers"))
)
def test_longer_contexts_are_never_faster(software):
    steps = ask(software=software, batch=2).steps
    times = [step.cost.latency_ms.value for step in steps]
    assert times == sorted(times)
    assert [step.context for step in steps] == sorted(step.context for step in steps)
    prompts = [
        ask(software=software, prompt=p).first_token.latency_ms.value for p in (100, 130, 999)
    ]
    assert prompts == sorted(prompts)


@pytest.mark.parametrize(
    "software", sampled(["graph", "eager"], pytest.mark.nightly(part="answers"))
)
def test_a_larger_batch_is_never_less_throughput(software):
    answers = [ask(software=software, batch=b) for b in (1, 3, 8, 20, 64)]
    speeds = [answer.steps[0].tokens_per_s for answer in answers]
    assert speeds == sorted(speeds)
    times = [answer.steps[0].cost.latency_ms.value for answer in answers]
    assert times == pytest.approx(sorted(times), rel=1e-12)  # equal ones differ by their rounding
    assert answers[-1].tokens_per_s > answers[0].tokens_per_s


def test_fewer_bits_are_less_memory_and_room_for_more():
    plain, int8, int4 = (ask(weights=w) for w in ("bf16", "int8", "int4"))
    assert plain.memory.weights_mb > int8.memory.weights_mb > int4.memory.weights_mb
    assert plain.largest_batch < int8.largest_batch < int4.largest_batch
    assert plain.steps[0].cost.latency_ms.value > int4.steps[0].cost.latency_ms.value
    assert any("int4" in warning for warning in int4.warnings)
    small = ask(cache="fp8")
    assert small.memory.cache_mb == pytest.approx(plain.memory.cache_mb / 2)
    assert small.memory_context > plain.memory_context


def test_two_gpus_hold_more():
    one, two = ask(), ask(tensor_parallel=2)
    assert two.memory.weights_mb == pytest.approx(one.memory.weights_mb / 2, rel=0.02)
    assert two.largest_batch > one.largest_batch
    assert two.steps[0].cost.latency_ms.value < one.steps[0].cost.latency_ms.value
    assert two.steps[0].cost.exchange_ms > 0 == one.steps[0].cost.exchange_ms
    assert any("estimate" in warning for warning in two.warnings)


def test_what_fits_is_the_last_that_fits():
    largest = ask().largest_batch
    assert ask(batch=largest).memory.bound_mb <= 81_559
    with pytest.raises(DoesNotFitError, match="needs up to") as raised:
        ask(batch=largest + 1)
    assert f"batch={largest}" in raised.value.hint


@pytest.mark.nightly(part="answers")
def test_the_sum_of_all_steps():
    answer = ask(generated=100)
    first, last = answer.steps[0].cost.latency_ms.value, answer.steps[1].cost.latency_ms.value
    decode_ms = 1e3 * answer.generate_s - answer.first_token.latency_ms.value
    assert 99 * first <= decode_ms * 1.0001
    assert decode_ms <= 99 * last * 1.0001
    only = ask(generated=1)
    assert 1e3 * only.generate_s == pytest.approx(only.first_token.latency_ms.value)


def test_the_host_launches_where_no_graph_does():
    graph, engine, eager = (ask(software=s, host=50) for s in ("graph", "engine", "eager"))
    launches = [answer.steps[0].cost.launches for answer in (graph, engine, eager)]
    assert launches[0] == launches[1] < launches[2]
    assert engine.steps[0].cost.latency_ms.value == pytest.approx(launches[1] * 0.05, rel=0.1)
    assert graph.steps[0].cost.host_share == 0 < engine.steps[0].cost.host_share
    assert any("host decides" in warning for warning in eager.warnings)


@pytest.mark.parametrize("device", sampled(["L4", "RTX-4090"], pytest.mark.nightly(part="answers")))
def test_an_engine_with_graphs_never_loses_to_one_without_nor_that_to_eager(device):
    found = [
        ask(device=device, prompt=512, generated=4, software=name)
        for name in ("graph", "engine", "eager")
    ]
    for one, other in pairwise(found):
        first, later = one.first_token, other.first_token
        assert first.latency_ms.value <= later.latency_ms.value * (1 + 1e-9)
        steps = {step.context: step.cost.latency_ms.value for step in other.steps}
        alike = [step for step in one.steps if step.context in steps]  # one may hold more
        assert len(alike) > 2
        for step in alike:
            assert step.cost.latency_ms.value <= steps[step.context] * (1 + 1e-9)


def test_no_context_is_offered_that_the_model_was_not_made_for():
    short = {**LLAMA, "max_position_embeddings": 4096}
    found = ask(short, prompt=1024, generated=8)
    assert found.largest_context == 4096 < found.memory_context
    assert "or a context of 4,096, the model's longest; the memory would hold" in str(found)
    assert found.to_dict()["memory_context"] == found.memory_context
    assert max(step.context for step in found.steps) <= 4096
    unstated = {k: v for k, v in LLAMA.items() if k != "max_position_embeddings"}
    found = ask(unstated, prompt=1024, generated=8)
    assert found.decoder.longest is not None or found.largest_context == found.memory_context
    with pytest.raises(DoesNotFitError) as error:
        ask(short, prompt=3_000_000, generated=8)
    assert "4,096 tokens of prompt and answer fit" in error.value.hint


def test_power_stays_within_the_board():
    for answer in (ask(), ask(batch=64, prompt=2048)):
        for cost in (answer.first_token, answer.steps[0].cost):
            assert 70 <= cost.power_w.value <= 700
            expected = cost.power_w.value * cost.latency_ms.value / 1e3
            assert cost.energy_j.value == pytest.approx(expected)
            assert (
                cost.latency_ms.interval.low < cost.latency_ms.value < cost.latency_ms.interval.high
            )


@pytest.mark.nightly(part="answers")
def test_power_that_is_not_known_is_absent():
    h100 = dippm.devices.find("H100")
    from dataclasses import replace

    answer = ask(device=replace(h100, name="mine", power_limit_w=None, idle_power_w=None))
    assert answer.joules_per_token is None
    assert answer.steps[0].joules_per_token is None
    assert "power limit of mine" in answer.absent["energy"]
    assert "not available" in str(answer)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch": 0}, "batch"),
        ({"prompt": 0}, "prompt"),
        ({"generated": -3}, "generated"),
        ({"tensor_parallel": 3}, "heads of attention"),
        ({"tensor_parallel": 1000}, "tensor_parallel"),
        ({"precision": "fp32"}, "fp32"),
        ({"weights": "int3"}, "int3"),
        ({"weights": "fp16"}, "contradict"),
        ({"cache": "fp16"}, "contradict"),
        ({"cache": "int2"}, "int2"),
        ({"cache": "fp8", "software": "eager"}, "fp8"),
        ({"software": "magic"}, "magic"),
        ({"device": "cpu"}, "CPU"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments, said):
    with pytest.raises(ConditionsError, match=said) as raised:
        ask(**arguments)
    assert raised.value.hint


def test_formats_of_the_file_decide():
    quantised = {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert ask(quantised).setting.weights.name == "int4"
    with pytest.raises(ConditionsError, match="stored as int4"):
        ask(quantised, weights="bf16")
    with pytest.raises(ConditionsError, match="not known here"):
        ask({**LLAMA, "quantization_config": {"quant_method": "new"}})
    with pytest.raises(UnsupportedPrecisionError):
        ask(device="V100")


def test_a_model_that_fits_nowhere_names_the_way():
    with pytest.raises(DoesNotFitError) as raised:
        ask(SHAPES["llama-3.1-405b"])
    assert "int4" in raised.value.hint
    assert "tensor_parallel=2" in raised.value.hint


def test_warnings():
    assert any("131,072" in w for w in ask(prompt=140_000).warnings)
    assert any("equally likely" in w for w in ask(SHAPES["qwen3-30b-a3b"]).warnings)
    assert any("no fp8 unit" in w for w in ask(device="A100-80GB", weights="fp8").warnings)
    assert any("never measured" in w for w in ask(device="L4", weights="int8").warnings)


def test_it_prints_and_becomes_a_document():
    answer = dippm.language_model(LLAMA, device="H100", batch=8, prompt=1024, generated=256)
    text = str(answer)
    assert "llama · H100-SXM-80GB · batch 8 · 1,024 + 256 tokens" in text
    assert "8.03 B parameters, GQA" in text
    document = json.loads(json.dumps(answer.to_dict()))
    assert document["model"]["parameters"] == 8_030_261_248
    assert document["setting"]["software"] == "graph"
    assert document["steps"][0]["context"] == 1025
    assert document["steps"][0]["latency_ms"] > 0
    assert "<table>" in answer._repr_html_()


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(SHAPES["qwen2.5-0.5b"]))
    return path.parent


def run(*words):
    return CliRunner().invoke(app, ["llm", *map(str, words)])


def test_the_command_line(config, tmp_path):
    page = tmp_path / "page.html"
    answer = run(config, "--device", "A100", "--batch", 4, "--generate", 32, "--html", page)
    assert answer.exit_code == 0, answer.output
    for said in ("tiny · A100-40GB · batch 4", "first token", "J/token", "fits", "tokens/s"):
        assert said in answer.stdout
    assert "tiny" in page.read_text()


def test_the_command_line_as_json(config):
    answer = run(config, "--weights", "int4", "--software", "eager", "--host", 20, "--json")
    assert json.loads(answer.stdout)["setting"]["weights"] == "int4"
    refused = run(config, "--batch", 10**6, "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["error"]["type"] == "DoesNotFitError"
    assert "--batch" in json.loads(refused.stdout)["error"]["hint"]


def test_a_checkpoint_of_training_steps_serves_nothing():
    with pytest.raises(CheckpointError, match="predicts training steps"):
        dippm.language_model(LLAMA, checkpoint="hybrid-gpu-train")


def test_a_gpu_without_bf16_is_told_what_it_has(config):
    answer = run(config, "--device", "T4")
    assert answer.exit_code == 1
    assert "Say --precision fp16" in answer.stderr
    assert run(config, "--device", "T4", "--precision", "fp16").exit_code == 0
