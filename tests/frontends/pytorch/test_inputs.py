"""Which inputs a module takes: types, names, several of them, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dippm.errors import ConversionError, InputShapeError
from dippm.model import frontends


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 8)
        self.dense = nn.Linear(8, 4)

    def forward(self, x):
        return self.dense(self.words(x))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6)
        self.dense = nn.Linear(3, 6)

    def forward(self, tokens, image, *, scale=None):
        out = self.words(tokens).sum(1) + self.dense(image)
        return out if scale is None else out * scale


def input_types(raw):
    return {raw.values[i].name: raw.values[i].dtype for i in raw.inputs}


def test_token_inputs_become_integers():
    assert list(input_types(frontends.load(Tokens(), "16")).values()) == ["int64"]


def test_floats_take_the_type_of_the_weights():
    raw = frontends.load(nn.Linear(4, 4).half(), "4")
    assert list(input_types(raw).values()) == ["float16"]


def test_several_and_keyword_inputs():
    raw = frontends.load(Two(), "tokens=9;image=3;scale=6")
    assert list(input_types(raw).values()) == ["int64", "float32", "float32"]
    assert [raw.values[i].shape for i in raw.inputs] == [(1009, 9), (1009, 3), (1009, 6)]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [("9", "image"), (None, "tokens"), ("tokens=9;picture=3", "picture")],
)
def test_missing_and_unknown_inputs(inputs, words):
    with pytest.raises(InputShapeError, match=words) as caught:
        frontends.load(Two(), inputs)
    assert "tokens" in caught.value.hint


@pytest.mark.parametrize(
    ("inputs", "words"),
    [("8,8,3", "try 3,8,8"), ("3,8", "Conv2d"), ("4,8,8", "input=3,H,W"), ("1,3,8,8", "Conv2d")],
)
def test_shapes_that_do_not_fit(inputs, words):
    with pytest.raises(InputShapeError) as caught:
        frontends.load(nn.Sequential(nn.Conv2d(3, 4, 3)), inputs)
    assert words in caught.value.hint


def test_control_flow_on_data_is_a_conversion_error(capfd):
    class Branch(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ConversionError) as caught:
        frontends.load(Branch(), "4")
    assert caught.value.__cause__ is not None
    assert capfd.readouterr() == ("", "")


def test_plain_attributes_and_uncopyable_modules():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.ones(4, 1, 1)
            self.steps = (i for i in range(3))  # generators cannot be copied
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x) * self.scale + torch.arange(6)

    raw = frontends.load(Odd(), "3,8,8")
    assert raw.values[raw.outputs[0]].shape == (1009, 4, 6, 6)
