"""What Python prints of an answer is a short table, and so is what a notebook shows."""

from __future__ import annotations

import pytest

import dippm
from dippm.decide.choice import pack


@pytest.fixture(scope="module")
def answers():
    import torch

    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)]
    net = torch.nn.Sequential(*layers)
    asked = {"input": "3,64,64", "batch": 32}
    power = dippm.sweep_power(net, limits_w="200:400", **asked)
    return {
        "diff": dippm.diff(net, device=("A100", "H100"), **asked),
        "explain": dippm.explain(net, **asked),
        "what_if": dippm.what_if(net, **asked),
        "power": power,
        "point": power.thriftiest,
        "parallel": dippm.parallelize(net, gpus=4, phase="train", **asked),
        "pack": pack([net, net], **asked),
        "best": dippm.smallest_slice(net, **asked).best,
    }


def test_answers_print_as_tables(answers, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for name, answer in answers.items():
        text = str(answer)
        assert not text.startswith(type(answer).__name__), name
        assert len(text) < 6_000, (name, len(text))
        assert all(len(line) <= 100 for line in text.splitlines() if "!" not in line), name
        assert "<" not in text, name
    words = {
        "diff": "of before", "explain": "module", "what_if": "as asked", "power": "limit W",
        "point": "power limit", "parallel": "all, estimated", "pack": "2 of 2 models",
        "best": "A100-40GB 1g.5gb",
    }  # fmt: skip
    for name, word in words.items():
        assert word in str(answers[name]), (name, str(answers[name]))


def test_notebooks_show_tables(answers):
    for name, answer in answers.items():
        html = answer._repr_html_()
        assert "<table" in html, name
        assert "</table>" in html, name


def test_what_an_answer_carries_is_still_in_its_repr(answers):
    for answer in answers.values():
        assert repr(answer).startswith(type(answer).__name__ + "(")
