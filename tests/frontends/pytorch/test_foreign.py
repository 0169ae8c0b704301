"""Operators that another library registers in the caller's process, and mixtures of experts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dippm import read_graph
from dippm.model.frontends import load
from dippm.model.graph import build


@torch.library.custom_op("dippm_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


@torch.library.custom_op("dippm_tests::conv2d", mutates_args=())
def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    return x * 2


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


@conv2d.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(scaled(x, 2.0))


class Slices(Scaled):
    """Writes into a slice, so that the program has to be made functional."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, :8] = scaled(x, 2.0)[:, 8:]
        return self.head(y)


class Namesake(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight)


@pytest.mark.parametrize("kind", [Scaled, Slices])
def test_a_custom_operator_is_named_and_priced_as_unknown(kind):
    graph = build(load(kind(), (16,))).at_batch(3)
    assert graph.unknown_ops == {"dippm_tests::scaled": 1}
    assert graph.macs == 3 * 16 * 8


def test_a_namesake_of_an_operator_of_torch_is_not_taken_for_it():
    graph = build(load(Namesake(), (3, 8, 8)))
    assert graph.unknown_ops == {"dippm_tests::conv2d": 1}
    assert graph.macs == 0


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
TOKENS, LAYERS = 16, 2
ATTENTION = TOKENS * (64 * 64 + 2 * 64 * 32 + 64 * 64) + 2 * 4 * TOKENS * TOKENS * 16
HEAD = TOKENS * 64 * 100
EXPERTS = {
    # router, then the matrices of each chosen expert; Qwen adds a shared one with its gate
    "Mixtral": (
        {"intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2},
        TOKENS * (64 * 4 + 2 * 3 * 64 * 96),
    ),
    "Qwen2Moe": (
        {
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "num_experts": 4,
            "num_experts_per_tok": 3,
        },
        TOKENS * (64 * 4 + 3 * 3 * 64 * 32 + 3 * 64 * 48 + 64),
    ),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_a_mixture_of_experts_costs_what_its_chosen_experts_do(name):
    transformers = pytest.importorskip("transformers")
    more, macs = EXPERTS[name]
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    config.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    graph = build(load(model, {"input_ids": (TOKENS,)})).at_batch(1)
    assert not graph.unknown_ops
    assert graph.macs == LAYERS * (ATTENTION + macs) + HEAD


class Sampled(nn.Module):
    """Uses torchvision's operators on its own, as detectors of our own do."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Conv2d(3, 18, 3, padding=1)
        self.weight = nn.Parameter(torch.rand(8, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        from torchvision.ops import deform_conv2d, roi_align

        y = deform_conv2d(x, self.offsets(x), self.weight, padding=1)
        return roi_align(y, torch.zeros(4, 5, device=x.device), 7)


def test_a_worker_brings_the_operators_of_torchvision(vision, tmp_path, monkeypatch) -> None:
    """Neither a module nor a program says that torchvision must be imported to read it."""
    monkeypatch.setenv("DIPPM_CACHE_DIR", str(tmp_path / "cache"))
    module, macs = Sampled().eval(), 256 * 27 * (18 + 8)
    assert read_graph(module, input="3,16,16").at_batch(2).macs == 2 * macs
    torch.export.save(torch.export.export(module, (torch.rand(2, 3, 16, 16),)), tmp_path / "m.pt2")
    assert read_graph(tmp_path / "m.pt2", input="3,16,16", trust=True).macs == 2 * macs
