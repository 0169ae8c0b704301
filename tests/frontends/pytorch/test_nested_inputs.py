"""Inputs that are not plain tensors: dictionaries, tuples, data classes, masks, numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from dippm.errors import InputShapeError
from dippm.model import frontends
from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import build


@dataclass
class Sample:
    image: torch.Tensor
    weight: torch.Tensor


class Couple(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 4)


class OfDictionary(Dense):
    def forward(self, batch: dict[str, torch.Tensor]):
        return self.dense(batch["image"]) * batch["weight"]


class OfDataClass(Dense):
    def forward(self, sample: Sample):
        return self.dense(sample.image) * sample.weight


class OfNamedTuple(Dense):
    def forward(self, couple: Couple):
        return self.dense(couple.left) * couple.right


class OfNesting(Dense):
    def forward(self, batch):
        image, (first, second) = batch["image"], batch["pair"]
        return self.dense(image) * first * second


class OfList(Dense):
    def forward(self, maps: list[torch.Tensor]):
        assert isinstance(maps, list)
        return self.dense(maps[0]) + self.dense(maps[1])


class OfPlaces(Dense):
    def forward(self, *tensors):
        return self.dense(tensors[0]) * tensors[1]


CASES = [
    (OfDictionary, "batch.image=8;batch.weight=4"),
    (OfDictionary, "image=8;weight=4"),
    (OfDataClass, "sample.image=8;sample.weight=4"),
    (OfDataClass, "image=8;weight=4"),
    (OfNamedTuple, "couple.left=8;couple.right=4"),
    (OfNesting, "batch.image=8;batch.pair.0=4;batch.pair.1=4"),
    (OfPlaces, "0=8;1=4"),
]


def convert(module, shapes):
    return pytorch.convert_module(module.eval(), InputSpec.parse(shapes))


@pytest.mark.parametrize(("kind", "shapes"), CASES)
def test_structures_are_named_with_dots(kind, shapes):
    raw = convert(kind(), shapes)
    assert raw.batch_is_symbolic
    assert build(raw).at_batch(3).macs == 3 * 8 * 4


def test_a_list_of_tensors_with_a_batch_each():
    raw = convert(OfList(), "maps.0=N,8;maps.1=N,8")
    assert build(raw).at_batch(3).macs == 2 * 3 * 8 * 4


def test_structures_cross_into_the_worker():
    raw = frontends.load(OfDataClass(), "image=8;weight=4")
    assert build(raw).at_batch(3).macs == 3 * 8 * 4


def test_unknown_parts_are_refused():
    with pytest.raises(InputShapeError):
        convert(OfDataClass(), "sample.image=8;sample.picture=4")


class Options(Dense):
    def forward(self, x, bias: torch.Tensor | None, *, mask, scale: float = 1.0):
        out = self.dense(x).masked_fill(mask, 0.0) * scale
        return out if bias is None else out + bias


def test_masks_numbers_and_none():
    raw = convert(Options(), "x=8;mask=4;scale=value:3")
    assert [raw.values[i].dtype for i in raw.inputs] == ["float32", "bool"]
    assert any(value.scalar == 3 for value in raw.values)
    assert len(convert(Options(), "x=8;mask=4;bias=4").inputs) == 3


def test_required_keywords_are_missed():
    with pytest.raises(InputShapeError, match="no shape for input mask"):
        convert(Options(), "x=8")


def test_masks_that_select():
    class Chosen(Dense):
        def forward(self, x, keep):
            return self.dense(torch.where(keep, x, 0.0)) * (~keep[:, :4])

    raw = convert(Chosen(), "x=8;keep=8")
    assert [raw.values[i].dtype for i in raw.inputs] == ["float32", "bool"]


def test_a_tensor_without_dimensions():
    class Timed(Dense):
        def forward(self, x, time):
            assert time.dim() == 0
            return self.dense(x) * time

    raw = convert(Timed(), "x=8;time=fixed:()")
    assert raw.batch_is_symbolic
    assert raw.values[raw.inputs[1]].shape == ()


def test_programs_with_nested_inputs(tmp_path):
    sample = {"image": torch.zeros(2, 8), "weight": torch.zeros(2, 4)}
    program = torch.export.export(OfDictionary(), (sample,))
    torch.export.save(program, tmp_path / "nested.pt2")
    raw = frontends.load(tmp_path / "nested.pt2", trust=True)
    assert raw.batch_is_symbolic
    assert build(raw).at_batch(3).macs == 3 * 8 * 4


def test_programs_with_numbers_and_none(tmp_path):
    arguments = {"mask": torch.zeros(2, 4, dtype=torch.bool), "scale": 3.0}
    program = torch.export.export(Options(), (torch.zeros(2, 8), None), arguments)
    torch.export.save(program, tmp_path / "options.pt2")
    raw = frontends.load(tmp_path / "options.pt2", trust=True)
    assert raw.batch_is_symbolic
    assert [raw.values[i].dtype for i in raw.inputs] == ["float32", "bool"]
    with pytest.raises(InputShapeError, match="no input 'picture'"):
        frontends.load(tmp_path / "options.pt2", "picture=8", trust=True)
