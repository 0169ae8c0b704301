"""`flex_attention` is one attention, whatever it does to scores; slices start before an axis."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dippm
from tests.samples import sampled

TOKENS, WIDTH = 6, 32


def causal(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return row >= column


class Flexible(nn.Module):
    """Two heads of attention.

    Args:
        kind: of what is done to the scores.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.project, self.kind = nn.Linear(WIDTH, 3 * WIDTH), kind
        self.mask = create_block_mask(causal, None, None, TOKENS, TOKENS, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        settings = {
            "scores": {"score_mod": lambda score, b, h, i, j: score + (i - j)},
            "kept mask": {"block_mask": self.mask},
            "groups": {"enable_gqa": True},
        }.get(self.kind)
        if settings is None:
            mask = create_block_mask(causal, None, None, TOKENS, TOKENS, device=x.device)
            settings = {"block_mask": mask}
        if self.kind == "groups":
            key, value = key[:, :1], value[:, :1]
        return flex_attention(query, key, value, **settings).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "kind",
    sampled(
        ["scores", "kept mask", "groups", "mask made in forward"],
        pytest.mark.nightly(part="frontends"),
    ),
)
def test_flex_attention_is_attention(kind: str) -> None:
    graph = dippm.read_graph(Flexible(kind).eval(), input="6,32")
    macs = TOKENS * WIDTH * 3 * WIDTH + 2 * TOKENS * TOKENS * WIDTH
    assert [graph.at_batch(b).macs for b in (1, 3)] == [macs, 3 * macs]
    assert graph.histogram()["attention"] == 1
    assert any("flex_attention was read as attention" in note for note in graph.notes)
    assert not graph.unknown_ops


class FlexibleAlone(nn.Module):
    """Returns what flex attention gives, without a layer after it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        found = flex_attention(query, key, value)
        return found, flex_attention(found, key, value)


def test_flex_attention_may_be_a_result() -> None:
    graph = dippm.read_graph(FlexibleAlone().eval(), input=[(2, TOKENS, 16)] * 3)
    assert graph.at_batch(3).macs == 3 * 2 * 2 * 2 * TOKENS * TOKENS * 16
    assert graph.histogram()["attention"] == 2


class Window(nn.Module):
    """Takes more of the end than there is, as attention over chunks does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x[:, -9:]), self.layer(x[:, -9:-2])], 1)


def test_slices_that_start_before_their_axis_take_all_of_it() -> None:
    graph = dippm.read_graph(Window().eval(), input="6,8")
    assert graph.at_batch(2).macs == 2 * (6 + 4) * 8 * 4
