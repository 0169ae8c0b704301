"""Kernels of a pass: their work is that of the model, whichever software lists them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dippm.decide.language import read_decoder
from dippm.decide.language.kernels import Pass
from dippm.decide.language.memory import cache_bytes, weight_bytes
from dippm.decide.language.pass_kernels import (
    PLAIN,
    busy_experts,
    eager_kernels,
    engine_kernels,
    keys_per_query,
)
from dippm.decide.language.passes import OrderedSurface, exchange_ms, group_of, part_of
from dippm.decide.language.setting import format_of
from dippm.devices import find
from dippm.errors import ConditionsError, DeviceError
from training.language.shapes import SHAPES

DENSE = ("llama-2-7b", "llama-3.1-8b", "gpt2", "falcon-40b", "bloom-7b1", "opt-350m", "phi-2")


def decoder(name):
    return read_decoder(SHAPES[name])


def products(listed):
    return [(kernel, n) for (_, kernel), n in listed.counts.items() if kernel.kind == "gemm"]


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("list_kernels", [engine_kernels, eager_kernels])
def test_products_do_two_operations_for_each_weight_and_token(name, list_kernels):
    model, done = decoder(name), Pass(3, 17, 17, 17)
    flops = sum(kernel.flops * n for kernel, n in products(list_kernels(model, done, PLAIN)))
    width = model.embedding_width or model.hidden
    head = model.vocabulary * width
    turned = 0 if width == model.hidden else 2 * width * model.hidden
    assert flops == pytest.approx(2 * done.tokens * (model.quantisable + head + turned))


@pytest.mark.parametrize("name", DENSE)
def test_a_step_reads_every_matrix_once(name):
    model = decoder(name)
    listed = engine_kernels(model, Pass.decode(4, 100), PLAIN)
    read = sum(kernel.weight_bytes * n for kernel, n in products(listed))
    assert read >= 2 * model.quantisable
    int4 = format_of("int4", find("A100"))
    less = sum(
        k.weight_bytes * n for k, n in products(engine_kernels(model, Pass(4, 1, 100), int4))
    )
    saved = (2 - int4.bytes_each) * model.quantisable
    assert read - less == pytest.approx(saved)


def test_a_step_reads_the_cache_and_a_window_reads_less():
    def read(name, context, **more):
        listed = engine_kernels(decoder(name), Pass.decode(2, context), PLAIN, **more)
        found = [(k, n) for (_, k), n in listed.counts.items() if k.kind == "attention"]
        return sum(k.read_bytes * n for k, n in found)

    for name in ("llama-3.1-8b", "deepseek-v3"):
        kept = cache_bytes(decoder(name), 2, 9000)
        assert kept < read(name, 9000) < 1.3 * kept
    assert read("llama-3.1-8b", 9000, cache_width=1) < 0.6 * read("llama-3.1-8b", 9000)
    assert read("mistral-7b-v0.1", 9000) == read("mistral-7b-v0.1", 4096)
    assert read("mistral-7b-v0.3", 9000) > 2 * read("mistral-7b-v0.3", 4096)


def test_keys_of_a_windowed_prompt():
    attention = decoder("mistral-7b-v0.1").layers[0].attention
    assert keys_per_query(attention, Pass.prefill(1, 4096)) == 4096
    whole = sum(min(i, 4096) for i in range(1, 16_385))
    assert keys_per_query(attention, Pass.prefill(1, 16_384)) * 16_384 / 2 == pytest.approx(
        whole, rel=1e-3
    )


def test_latent_attention_keeps_little_and_expands_prompts():
    model = decoder("deepseek-v3")
    assert cache_bytes(model, 1, 1) == 61 * (512 + 64) * 2
    assert cache_bytes(model, 1, 1, software="eager") == 61 * 128 * (192 + 128) * 2
    names = {name for name, _ in engine_kernels(model, Pass.decode(1, 500), PLAIN).counts}
    assert "query to latent" in names
    names = {name for name, _ in engine_kernels(model, Pass.prefill(1, 500), PLAIN).counts}
    assert "key-value expansion" in names


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "falcon-7b", "gpt2"])
def test_the_cache_follows_its_formula(name):
    model = decoder(name)
    a = model.layers[0].attention
    expected = 2 * len(model.layers) * a.kv_heads * a.head_dim * 2 * 5 * 300
    assert cache_bytes(model, 5, 300) == expected
    assert cache_bytes(model, 5, 300, width=1) == expected / 2


def test_the_cache_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        kept = model(torch.ones(2, 11, dtype=torch.long), use_cache=True).past_key_values
    stored = sum(t.numel() * t.element_size() for x in kept.layers for t in (x.keys, x.values))
    assert cache_bytes(read_decoder(config), 2, 11, width=4, software="eager") == stored


def test_experts_wake_with_tokens():
    network = decoder("mixtral-8x7b").layers[0].feed_forward
    assert busy_experts(network, 1) == pytest.approx(2)
    assert busy_experts(network, 4) == pytest.approx(8 * (1 - 0.75**4))
    assert busy_experts(network, 10_000) == pytest.approx(8)
    few, many = (
        sum(
            k.weight_bytes * n
            for k, n in products(engine_kernels(decoder("mixtral-8x7b"), p, PLAIN))
        )
        for p in (Pass.decode(1, 10), Pass.decode(64, 10))
    )
    assert 3 < many / few < 4


def test_formats_by_device():
    assert format_of("fp8", find("H100")).unit == "int8"
    assert format_of("fp8", find("A100")).unit == "half"
    assert format_of("int4", find("A100")).bytes_each == pytest.approx(0.5195, abs=1e-3)
    with pytest.raises(ConditionsError, match="int5"):
        format_of("int5", find("A100"))


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"])
def test_parts_of_a_model_make_the_whole(name):
    model, plain = decoder(name), PLAIN
    parts = [weight_bytes(part_of(model, n), plain) for n in (1, 2, 4, 8)]
    assert parts == sorted(parts, reverse=True)
    assert parts[0] <= 8 * parts[3] < 1.2 * parts[0]
    whole, half = (
        sum(k.flops * n for k, n in products(engine_kernels(part, Pass(2, 50, 50, 50), plain)))
        for part in (model, part_of(model, 2))
    )
    assert whole <= 2 * half < 1.1 * whole


def test_keys_are_copied_where_there_are_more_gpus_than_heads():
    model = decoder("qwen2-7b")  # 4 heads of keys, 28 of queries
    assert part_of(model, 4).layers[0].attention.kv_heads == 1
    with pytest.raises(ConditionsError, match="28"):
        part_of(model, 8)
    with pytest.raises(ConditionsError, match="tensor_parallel=2"):
        part_of(model, 3)


def test_exchanges():
    device = find("H100")
    listed = engine_kernels(part_of(decoder("llama-3.1-70b"), 4), Pass.decode(8, 100), PLAIN)
    assert listed.reduced_bytes == [2 * 8 * 8192] * 160
    by = {n: exchange_ms(group_of(device, n, None), listed.reduced_bytes) for n in (1, 2, 4, 8)}
    assert by[1] == 0 < by[2] < by[4] < by[8]
    pcie = exchange_ms(group_of(device, 4, "pcie"), listed.reduced_bytes)
    assert pcie > by[4]
    with pytest.raises(ConditionsError, match="joins at most 8"):
        group_of(device, 16, None)
    with pytest.raises(DeviceError, match="NVLink"):
        group_of(find("L40S"), 2, "nvlink")


def test_an_unruly_law_is_put_in_order():
    surface = OrderedSurface(lambda b, t: 1 + (b * t) % 7 + (b * t) % 11)
    batches, tokens = range(1, 40), range(50, 3000, 97)
    for t in tokens:
        times = [surface.at(b, t) for b in batches]
        assert all(x <= y * 1.000001 for x, y in pairwise(times))
        speeds = [b / x for b, x in zip(batches, times, strict=True)]
        assert all(x <= y * 1.000001 for x, y in pairwise(speeds))
    for b in batches:
        times = [surface.at(b, t) for t in tokens]
        assert all(x <= y * 1.000001 for x, y in pairwise(times))


def test_an_orderly_law_is_left_alone():
    surface = OrderedSurface(lambda b, t: b**0.5 * t**2.0)
    assert surface.at(7, 777) == pytest.approx(7**0.5 * 777**2)
