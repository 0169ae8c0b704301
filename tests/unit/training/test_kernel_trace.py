"""What eager PyTorch launches, worked out on fake CUDA tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from training.studies.traced_kernels import TracedKernel, traced


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, _ = x.shape
        parts = self.qkv(x).reshape(batch, rows, 3, 4, 16).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(*parts.unbind(0))
        return self.norm(out.transpose(1, 2).reshape(batch, rows, 64))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    )


def kinds(kernels: list[TracedKernel]) -> list[str]:
    return [kernel.kind for kernel in kernels]


def test_autocast_casts_weight_and_image_before_a_convolution() -> None:
    kernels = traced(images(), [torch.empty(2, 3, 8, 8)], "amp")
    assert kinds(kernels) == ["cast", "cast", "conv_spatial", "batch_norm", "activation", "pool"]
    weight, image, conv = kernels[:3]
    assert (weight.weight_bytes, weight.write_bytes) == (4 * 216, 2 * 216)
    assert image.read_bytes == 4 * 2 * 3 * 64
    assert (conv.read_bytes, conv.weight_bytes) == (2 * (2 * 3 * 64 + 216), 2 * 216)
    assert [k.path for k in kernels] == ["0", "0", "0", "1", "2", "3"]


def test_max_pooling_writes_the_positions_as_int64() -> None:
    pool = traced(images(), [torch.empty(2, 3, 8, 8)], "fp32")[-1]
    assert pool.write_bytes == 2 * 8 * 16 * (4 + 8)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_nothing_is_cast_without_autocast(precision: str) -> None:
    kernels = traced(images(), [torch.empty(2, 3, 8, 8)], precision)  # type: ignore[arg-type]
    assert "cast" not in kinds(kernels)


def test_fused_attention_is_one_kernel_and_its_result_a_view() -> None:
    kernels = traced(Attends(), [torch.empty(2, 10, 64)], "fp16")
    assert kinds(kernels) == ["gemm", "attention", "layer_norm"]


def test_a_norm_over_a_permuted_view_copies_it_first() -> None:
    class Permuted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.permute(0, 2, 3, 1))

    module, image = Permuted(), [torch.empty(2, 8, 4, 4)]
    assert kinds(traced(module, image, "fp32")) == ["copy", "layer_norm"]
    assert kinds(traced(Permuted(), image, "fp32", channels_last=True)) == ["layer_norm"]


def test_a_recurrent_layer_is_one_call() -> None:
    kernels = traced(nn.LSTM(8, 16, batch_first=True), [torch.empty(2, 5, 8)], "fp32")
    assert kinds(kernels).count("recurrent") == 1
    assert kernels[-1].shape == (5, 2, 16)
    assert "gemm" not in kinds(kernels)


def test_the_module_can_run_on_the_cpu_elsewhere() -> None:
    attention, passes = nn.functional.scaled_dot_product_attention, nn.Linear(2, 2)
    traced(nn.Linear(2, 2), [torch.empty(1, 2)], "amp")
    assert nn.functional.scaled_dot_product_attention is attention
    assert passes(torch.zeros(1, 2)).shape == (1, 2)
    assert not torch.is_autocast_enabled("cuda")
