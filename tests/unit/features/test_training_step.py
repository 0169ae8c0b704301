"""Kernels of a training step: rule by rule, and held against PyTorch's own of small models."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset.measured.nodes import GraphBuilder
from dippm.estimate.conditions import Optimizer, Precision
from dippm.estimate.features.kernel import PARTS, Kernel
from dippm.estimate.features.kernel_table import QUANTITIES, KernelTable
from dippm.estimate.features.kernels import KERNEL_VERSION, launched, sequence_of, training_step
from dippm.estimate.features.kernels.backward.gradients import blocks_of
from dippm.estimate.features.kernels.optimizers import UPDATES, launches_over, update
from dippm.estimate.models.training_memory import TrainingMemory
from dippm.model.graph import build
from dippm.model.graph.model_graph import ModelGraph
from dippm.model.relax.raw_graph import RawGraph
from tests.unit.graph.sketch import BATCH, Sketch
from training.studies.training_steps import PASSES, StepTotals, ours, ratios

RECORDINGS = Path(__file__).parents[2] / "recordings"
STEPS = json.loads((RECORDINGS / "training_step" / "steps.json").read_text())["steps"]
WITHIN, LAUNCHES_WITHIN, SAVED_WITHIN = 0.05, 0.1, 0.02
INFERENCE = {
    "timm:regnetx_002@224": "5b572cdf5c32911e",
    "timm:flexivit_base@240": "54a813fa41eb6035",
    "timm:lcnet_100@224": "796327fce1103265",
    "transformers:gpt2@256": "63c026125ff22ff6",
}
"""Hash of the kernels of inference by model, which rules of training may not change."""


def recorded(spec: str) -> ModelGraph:
    file = RECORDINGS / "live_memory" / f"{spec.replace(':', '.')}.json.gz"
    return build(RawGraph.from_json(gzip.decompress(file.read_bytes())))


def dense(features: int = 256) -> ModelGraph:
    b = GraphBuilder(batch=840)
    attributes = {"in_features": features, "out_features": 128}
    x = b.add("relu", [b.input((840, features))], (840, features))
    first = b.add("dense", [x], (840, features),
                  attributes={"in_features": features, "out_features": features},
                  weights=features * features)  # fmt: skip
    y = b.add("gelu", [first], (840, features))
    b.add("dense", [y], (840, 128), attributes=attributes, weights=features * 128)
    return b.graph(batch_is_symbolic=True)


def few_channels() -> ModelGraph:
    """Return a convolution of large images, and its batch norm."""
    b = GraphBuilder(batch=840)
    shape = (840, 16, 112, 112)
    conv = {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1),
            "groups": 1, "in_channels": 16, "out_channels": 16}  # fmt: skip
    image = b.input(shape)
    b.add("conv2d", [image], shape, attributes=conv, weights=2304, absorbed=("batch_norm",))
    return b.graph(batch_is_symbolic=True)


def step_of(graph: ModelGraph, batch: int, *args: Any) -> list[Kernel]:
    return training_step(sequence_of(graph).at_batch(batch), *args).kernels


@pytest.mark.parametrize("recording", STEPS, ids=lambda r: f"{r['spec']}-{r['precision']}")
def test_bytes_kernels_and_saved_tensors_are_pytorchs(recording: dict[str, Any]) -> None:
    seen = StepTotals(**recording)
    graph = recorded(seen.spec)
    found = ratios(ours(graph, seen.spec, seen.batch, seen.precision, seen.optimizer), seen)
    assert found["bytes"] == pytest.approx(1.0, rel=WITHIN)
    assert found["kernels"] == pytest.approx(1.0, rel=LAUNCHES_WITHIN)
    assert found["saved"] == pytest.approx(1.0, rel=SAVED_WITHIN)
    assert all(found[f"{name} bytes"] == pytest.approx(1.0, rel=0.1) for name in PASSES)


@pytest.mark.parametrize("spec", INFERENCE)
def test_kernels_of_inference_are_as_they_were(spec: str) -> None:
    digest = hashlib.sha256()
    graph = recorded(spec).at_batch(4)
    for kernel in (k for p in ("fp32", "amp") for k in launched(graph, p)):  # type: ignore[arg-type]
        assert kernel.part == "forward"
        values = [getattr(kernel, name) for name in kernel._fields if name != "part"]
        digest.update(repr(values).encode())
    assert KERNEL_VERSION == "12", "with other kernels, hash anew"
    assert digest.hexdigest()[:16] == INFERENCE[spec]


def test_a_product_is_multiplied_twice_on_the_way_back() -> None:
    kernels = step_of(dense(), 32, "fp16")
    products = Counter(k.part for k in kernels if k.kind == "gemm")
    # Nobody asks for the gradient of the input, which is what the first layer is given.
    assert products == Counter(forward=2, backward_input=1, backward_weight=2)
    by_part = {
        part: [(k.m, k.n, k.k) for k in kernels if k.kind == "gemm" and k.part == part]
        for part in PARTS
    }
    assert by_part["backward_input"] == [(32, 256, 128)]
    assert by_part["backward_weight"] == [(256, 128, 32), (256, 256, 32)]


def test_autocast_casts_the_gradient_of_each_weight_back() -> None:
    casts = [k for k in step_of(dense(), 32, "amp") if k.kind == "cast" and "weight" in k.part]
    assert [(k.in_bytes, k.out_bytes) for k in casts] == [(2, 4), (2, 4)]
    assert [k.write_bytes for k in casts] == [4 * 256 * 128, 4 * 256 * 256]


def test_what_is_saved_is_what_gradients_read() -> None:
    step = training_step(sequence_of(dense()).at_batch(32), "fp32")
    layers = 4 * 32 * 256 * 3  # arguments of both products, and of the activation between them
    loss = 4 * 32 * 128 + 8 * 32
    assert step.saved_bytes == layers + loss


def test_the_weights_of_experts_get_a_gradient_each_from_its_rows() -> None:
    """Weights lie (experts, out, in) and are turned for the product, as in transformers."""
    experts, rows, width, out = 4, 8, 32, 16
    s = Sketch()
    x = s.call("nn.relu", [s.input(BATCH, rows, width)], BATCH, rows, width)
    x = s.call("reshape", [x], BATCH * rows, width)
    first = s.call("matmul", [x, s.weight(width, width)], BATCH * rows, width)
    weight = s.call("permute_dims", [s.weight(experts, out, width)], experts, width, out,
                    axes=(0, 2, 1))  # fmt: skip
    y = s.call("aten._grouped_mm", [first, weight], BATCH * rows, out)
    eager = replace(s.raw(y), called=("",))  # which turns weights on every pass
    step = training_step(sequence_of(build(eager)).at_batch(16), "fp32")
    groups = [k for k in step.kernels if "gemm" in k.kind and k.part.startswith("backward")][:2]
    assert [k.part for k in groups] == ["backward_input", "backward_weight"]
    assert [k.flops for k in groups] == [2 * 16 * rows * width * out] * 2
    assert groups[1].write_bytes == 4 * experts * out * width


@pytest.mark.parametrize(
    ("precision", "channels_last", "walks"),
    [
        *((name, False, True) for name in ("bf16", "fp16", "amp-bf16")),
        *((name, False, False) for name in ("amp", "fp32", "tf32")),
        ("bf16", True, False),
    ],
)
def test_pytorchs_own_batch_norm_walks_each_channel(
    precision: Precision, channels_last: bool, walks: bool
) -> None:
    sequence = sequence_of(few_channels()).at_batch(128)
    kernels = training_step(sequence, precision, channels_last=channels_last).kernels
    norms = [k for k in kernels if k.kind == "batch_norm"]
    loads = 128 * 25 if walks else 0
    assert [(k.part, k.inner_launches, k.serial) for k in norms] == [
        ("forward", 2 if walks else 0, pytest.approx(1.3 * loads)),
        ("backward_input", 0, pytest.approx(2.9 * loads)),
    ]


def test_products_without_a_rule_are_repeated_for_each_argument() -> None:
    b = GraphBuilder(batch=840)
    image = b.add("relu", [b.input((840, 8, 16, 16))], (840, 8, 16, 16))
    conv = {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1),
            "groups": 1, "in_channels": 8, "out_channels": 18}  # fmt: skip
    offsets = b.add("conv2d", [image], (840, 18, 16, 16), attributes=conv, weights=18 * 72)
    deformed = conv | {"out_channels": 4}
    b.add("deform_conv2d", [image, offsets], (840, 4, 16, 16), attributes=deformed, weights=288)
    step = step_of(b.graph(batch_is_symbolic=True), 2)
    products = 2 * 2 * 4 * 256 * 72
    forward = next(k for k in step if k.kind == "other")
    again = [k for k in step if k.kind == "other" and k.part.startswith("backward")]
    assert forward.flops >= products
    assert len(again) == 2  # of offsets and weight: no parameter made the image
    assert all(k.flops >= products for k in again)


def test_the_gradient_of_a_reduction_without_a_rule_has_the_size_of_its_argument() -> None:
    b = GraphBuilder(batch=840)
    attributes = {"in_features": 8, "out_features": 8}
    x = b.add("dense", [b.input((840, 8, 8))], (840, 8, 8), attributes=attributes, weights=64)
    b.add("factorise", [x], (840,))
    written = [k.write_bytes for k in step_of(b.graph(batch_is_symbolic=True), 2)
               if k.kind == "other"]  # fmt: skip
    assert written == [4 * 2, 4 * 2 * 64]


def test_logits_are_held_four_times_where_the_backward_pass_begins() -> None:
    step = training_step(sequence_of(dense()).at_batch(32), "fp32")
    assert step.loss_bytes == 3 * 4 * 32 * 128  # the fourth are the likelihoods, which are saved


@pytest.mark.parametrize("tokens", [8, 64])
def test_the_head_of_a_language_model_has_a_cross_entropy(tokens: int) -> None:
    b = GraphBuilder(batch=840)
    x = b.add("relu", [b.input((840, tokens, 16))], (840, tokens, 16))
    head = {"in_features": 16, "out_features": 1000}
    b.add("dense", [x], (840, tokens, 1000), attributes=head, weights=16_000)
    step = training_step(sequence_of(b.graph(batch_is_symbolic=True)).at_batch(2), "fp32")
    logits = 4 * 2 * tokens * 1000
    assert step.loss_bytes == 3 * logits
    assert step.saved_bytes == logits + 4 * 2 * tokens * 16 + 8 * 2 * tokens
    assert sum(k.kind == "softmax" for k in step.kernels) == 2


def test_a_result_that_no_head_made_has_a_mean_square() -> None:
    b = GraphBuilder(batch=840)
    dense = {"in_features": 16, "out_features": 32}
    x = b.add("dense", [b.input((840, 8, 16))], (840, 8, 32), attributes=dense, weights=512)
    b.add("gelu", [x], (840, 8, 32))
    step = training_step(sequence_of(b.graph(batch_is_symbolic=True)).at_batch(2), "fp32")
    assert step.loss_bytes == 3 * 4 * 2 * 8 * 32
    assert not any(k.kind == "softmax" for k in step.kernels)


@pytest.mark.parametrize(("optimizer", "reads", "writes"), [("sgd", 5, 3), ("adamw", 12, 8)])
def test_an_update_passes_over_parameters(optimizer: Optimizer, reads: int, writes: int) -> None:
    kernels = update(optimizer, (1000, 24), 4)
    assert sum(k.read_bytes for k in kernels) == reads * 4 * 1024
    assert sum(k.write_bytes for k in kernels) == writes * 4 * 1024
    assert {k.part for k in kernels} == {"optimizer"}
    assert len(kernels) == len(UPDATES[optimizer].passes)


@pytest.mark.parametrize(
    ("sizes", "lists", "expected"),
    [
        ((), 1, 0),
        ((10,), 1, 1),
        ((10,) * 110, 1, 1),
        ((10,) * 111, 1, 2),
        ((10,) * 37, 4, 2),
        ((65_536 * 320,), 1, 1),
        ((65_536 * 320 + 1,), 1, 2),
        ((0, 10), 2, 1),
        ((65_536 * 320 + 1, *(10,) * 109), 1, 2),
        ((65_536 * 320 + 1, *(10,) * 110), 1, 3),
        ((65_536 * 320, *(10,) * 110), 1, 2),
        ((65_536 * 319, 65_536 * 2, 10), 1, 2),
        ((2**60,), 1, 2**44 // 320 + 1),  # a file may say so, and it is not counted one by one
    ],
)
def test_launches_take_so_many_tensors_and_blocks(
    sizes: tuple[int, ...], lists: int, expected: int
) -> None:
    assert launches_over(sizes, lists) == expected


@pytest.mark.parametrize("batch", [3, 32, 257])
def test_table_at_any_batch_equals_a_step_at_that_batch(batch: int) -> None:
    graph = recorded("timm:regnetx_002@224")
    table = KernelTable.of_training(graph, "amp", "adamw")
    sequence = sequence_of(graph).at_batch(batch)
    direct = training_step(sequence, "amp", optimizer="adamw").kernels
    expected = np.array([[getattr(k, q) for q in QUANTITIES] for k in direct])
    np.testing.assert_allclose(table.quantities(batch), expected, rtol=1e-9)
    assert [PARTS[i] for i in table.part] == [k.part for k in direct]


def test_sources_come_before_what_reads_them() -> None:
    kernels = step_of(recorded("timm:flexivit_base@240"), 4, "amp")
    assert all(source < i for i, k in enumerate(kernels) for source in k.sources)
    back = [k for k in kernels if k.part == "backward_input"]
    assert sum(bool(k.sources) for k in back) > 0.9 * len(back)


def test_checkpointing_keeps_less_and_memory_grows_with_the_optimiser() -> None:
    graph = recorded("timm:flexivit_base@240")
    plain, again = (
        TrainingMemory.of(graph, 8, "amp", "adamw", checkpointing=c) for c in (False, True)
    )
    tokens = 8 * 226 * 768 * 4
    assert 12 * tokens < again.saved_bytes < 0.35 * plain.saved_bytes
    assert plain.optimizer_bytes == 2 * plain.weight_bytes == 2 * plain.gradient_bytes
    assert plain.weight_bytes == pytest.approx(4 * 86.6e6, rel=0.01)


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("blocks.3.mlp.fc1", "blocks.3"),
        ("layer1.0.downsample.0", "layer1.0"),
        ("stages.0.blocks.2.conv_dw", "stages.0.blocks.2"),
        ("blocks.2.3.se.conv_reduce", "blocks.2.3"),
        ("encoder.layer.11.attention.self.query", "encoder.layer.11"),
        ("stages.1.downsample.0", ""),
        ("patch_embed.proj", ""),
        ("", ""),
    ],
)
def test_a_block_is_a_numbered_part(path: str, block: str) -> None:
    others = ("blocks.2.0.conv", "stages.1.blocks.0.norm", "layer1.0.conv1")
    assert blocks_of((path, *others))[path] == block
