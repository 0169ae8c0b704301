"""What a training step of eager PyTorch launches and keeps, worked out on fake CUDA tensors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from training.studies.traced_models import graph_of
from training.studies.traced_training import TracedStep, asks_the_driver, traced_step
from training.studies.training_steps import ours, ratios, theirs

pytestmark = pytest.mark.skipif(
    asks_the_driver(), reason="PyTorch was built for CUDA, and there is no GPU"
)
MODELS = (
    "resnet18", "efficientnet_b0", "vit_tiny_patch16_224", "convnext_atto", "levit_128s",
    "resmlp_12_224", "torchvision:shufflenet_v2_x0_5", "transformers:gpt2",
)  # fmt: skip
"""Of the 42 that `training.studies.training_steps` compares, small ones of other kinds."""


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    )


def kinds(step: TracedStep, part: str) -> Counter[str]:
    return Counter(kernel.kind for kernel in step.kernels if kernel.part == part)


def test_the_gradient_of_the_input_is_not_made() -> None:
    step = traced_step(images(), [torch.empty(2, 3, 8, 8)], "fp32")
    back = kinds(step, "backward")
    one_each = dict.fromkeys(("copy", "pool", "activation", "batch_norm", "conv_spatial"), 1)
    assert back == Counter(elementwise=2, **one_each)  # the sum's gradient is one number, copied
    assert kinds(step, "optimizer") == Counter(elementwise=3)


def test_saved_are_arguments_results_positions_and_statistics() -> None:
    step = traced_step(images(), [torch.empty(2, 3, 8, 8)], "fp32")
    image, made, pooled = 4 * 2 * 3 * 64, 4 * 2 * 8 * 64, 2 * 8 * 16
    assert step.saved_bytes == image + 2 * made + 8 * pooled + 2 * 4 * 8


def test_autocast_widens_the_gradient_of_a_weight() -> None:
    step = traced_step(nn.Linear(64, 32), [torch.empty(4, 64)], "amp")
    widened = [k for k in step.kernels if k.part == "backward" and k.kind == "cast"]
    assert [k.write_bytes for k in widened][1:] == [4.0 * 64 * 32, 4.0 * 32]


def test_fused_attention_has_one_kernel_each_way() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, rows, _ = x.shape
            parts = self.qkv(x).reshape(batch, rows, 3, 4, 16).permute(2, 0, 3, 1, 4)
            out = nn.functional.scaled_dot_product_attention(*parts.unbind(0))
            return out.transpose(1, 2).reshape(batch, rows, 64)

    step = traced_step(Attends(), [torch.empty(2, 10, 64)], "fp16")
    fused = [k for k in step.kernels if k.kind == "attention"]
    assert [k.part for k in fused] == ["forward", "backward"]
    one = 2 * 2 * 10 * 64
    assert [k.write_bytes for k in fused] == [one, 3 * one]


def test_torch_is_as_it_was_afterwards() -> None:
    before = torch.accelerator.current_accelerator()
    traced_step(nn.Linear(4, 4), [torch.empty(2, 4)], "fp32")
    assert torch.accelerator.current_accelerator() == before
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.nightly(part="zoo")
@pytest.mark.parametrize("spec", MODELS)
def test_our_step_is_that_of_eager_pytorch(spec: str, tmp_path: Path) -> None:
    graph = graph_of(spec, tmp_path)
    for precision in ("amp", "fp32"):
        seen = theirs(spec, 4, precision, "adamw", tmp_path)  # type: ignore[arg-type]
        found = ratios(ours(graph, spec, 4, precision, "adamw"), seen)  # type: ignore[arg-type]
        assert found["bytes"] == pytest.approx(1.0, rel=0.05)
        assert found["kernels"] == pytest.approx(1.0, rel=0.1)
        assert found["saved"] == pytest.approx(1.0, rel=0.05)
