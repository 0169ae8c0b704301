"""Inputs whose kind is said (bool, int, float), and what is taken where nothing says it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dippm.errors import ConversionError, InputShapeError
from dippm.model import frontends
from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.input_shapes import with_full_masks
from dippm.model.graph import ModelGraph, build
from tests.samples import sampled

ROWS = 12 * 16 * 16
"""MACs of the layer over all 12 rows."""


class Selects(nn.Module):
    """Keeps some rows, or gathers rows: the code does not tell which."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(x[which])


class Masked(Selects):
    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(torch.masked_select(x, ~which[..., None]).reshape(-1, 16))


class Inner(Selects):
    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(x[:, which])


class Fills(Selects):
    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(x.masked_fill(~which[..., None], 0.0))


class Index(Selects):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.layer(x[index])


class Table(Selects):
    """Takes positions alone: no row of the table belongs to a row of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(50, 16))

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(x + self.table[which])


def graph_of(module: nn.Module, given: object) -> ModelGraph:
    return build(pytorch.convert_module(module.eval(), InputSpec.parse(given)))


@pytest.mark.parametrize(
    ("given", "text"),
    sampled(
        [
            ("keep=bool:12", "keep=bool:12"),
            ({"keep": "bool:12"}, "keep=bool:12"),
            ({"keep": ("bool", 12)}, "keep=bool:12"),
            ({"x": ["float", 3, 224, 224]}, "x=float:3,224,224"),
            ("int:128", "int:128"),
            (("int", 128), "int:128"),
            ("keep=bool:fixed:12", "keep=bool:fixed:12"),
            ("keep=bool:4,N", "keep=bool:4,N"),
            ("t=int:", "t=int:"),
        ],
        pytest.mark.nightly(part="frontends"),
        every=3,
    ),
)
def test_kinds_are_read_and_written_alike(given, text):
    spec = InputSpec.parse(given)
    assert str(spec) == text
    assert InputSpec.parse(str(spec)) == spec
    assert InputSpec.from_dict(spec.to_dict()) == spec


def test_a_kind_is_part_of_the_key():
    keys = {InputSpec.parse(text).key() for text in ("k=12", "k=bool:12", "k=int:12", "k=float:12")}
    assert len(keys) == 4


@pytest.mark.parametrize("given", ["k=text:12", "k=bool:value:3", "k=bool:int:3", "k=:3"])
def test_other_kinds_are_refused(given):
    with pytest.raises(InputShapeError, match="bool"):
        InputSpec.parse(given)


def test_the_kind_decides():
    rows = graph_of(Selects(), "x=12,16;which=bool:12")
    places = graph_of(Selects(), {"x": ("float", 12, 16), "which": ("int", 12)})
    assert rows.at_batch(4).macs == 4 * ROWS
    assert any("upper bound" in note for note in rows.notes)
    assert places.at_batch(1).macs == 12 * ROWS
    assert [t.dtype for t in (*rows.inputs[1:], *places.inputs[1:])] == ["bool", "int64"]


@pytest.mark.parametrize(
    ("module", "given"),
    [(Selects, "x=12,16;which=12"), (Index, "x=12,16;index=12"), (Masked, "x=12,16;which=bool:12"),
     (Inner, "x=12,16;which=fixed:12"), (Fills, "x=12,16;which=12")],
)  # fmt: skip
def test_what_fits_as_truth_values_is_taken_so(module, given):
    """Whatever the input is called: a name is no evidence."""
    graph = graph_of(module(), given)
    assert graph.inputs[1].dtype == "bool"
    assert graph.at_batch(2).macs == 2 * ROWS
    said = [note for note in graph.notes if "taken for truth values" in note]
    assert bool(said) == (module not in (Fills, Masked))
    for note in said:
        example = note.split('"')[1]
        other = graph_of(module(), f"x=12,16;{example}")
        assert other.inputs[1].dtype == "int64"


def test_positions_stay_positions():
    for module, given in ((Table(), "x=12,16;which=12"), (Inner(), "x=12,16;which=fixed:5")):
        graph = graph_of(module, given)
        assert graph.inputs[1].dtype == "int64"
        assert not graph.notes


@pytest.mark.filterwarnings("ignore")
def test_files_that_state_the_kind_agree_or_are_refused(tmp_path):
    example = torch.zeros(2, 12, 16), torch.zeros(2, 12, dtype=torch.int64)
    module, given = Table().eval(), "x=12,16;which={}:12"
    torch.export.save(torch.export.export(module, example), tmp_path / "model.pt2")
    torch.onnx.export(module, example, tmp_path / "model.onnx", dynamo=False,
                      input_names=["x", "which"])  # fmt: skip
    torch.jit.script(module).save(tmp_path / "model.pt")
    for name in ("model.pt2", "model.onnx"):
        with pytest.raises(InputShapeError, match="given as bool, and the file states int64"):
            frontends.load(tmp_path / name, given.format("bool"), trust=True)
        raw = frontends.load(tmp_path / name, given.format("int"), trust=True)
        assert build(raw).inputs[1].dtype == "int64"
    script = frontends.load(tmp_path / "model.pt", given.format("int"), trust=True)
    assert {t.name: t.dtype for t in build(script).inputs}["which"] == "int64"


class Nonzero(Selects):
    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        found = torch.where(torch.logical_not(which))
        return self.layer(x[found[0], found[1]])


class Either(Selects):
    def forward(self, x: Tensor, which: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x[which | mask])


class Holder(Selects):
    """Has a script for a part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(self.part(x, which))


class OnData(Selects):
    """Selects by what it computes, which no input says."""

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.layer(x[which & (self.layer(x).sum(-1) > 0)])


class Branches(Selects):
    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        if bool(which.any()):
            x = self.layer(x)
        return self.layer(x)


@pytest.mark.filterwarnings("ignore")
def test_scripts_select_as_their_modules_do():
    given = "x=12,16;which=bool:12"
    cases = [(kind(), given) for kind in (Selects, Masked, Nonzero, Fills)]
    cases += [(Inner(), "x=12,16;which=bool:fixed:12"), (Selects(), "x=12,16;which=12")]
    cases += [(Either(), given + ";mask=bool:12"), (Table(), "x=12,16;which=12")]
    examples = torch.rand(2, 12, 16), *[torch.ones(2, 12, dtype=torch.bool)] * 2
    for module, text in cases:
        expected = graph_of(module, text)
        assert expected.at_batch(2).macs == 2 * ROWS
        number = 3 if isinstance(module, Either) else 2
        example = examples[:number]
        if isinstance(module, Inner):
            example = (examples[0], examples[1][0])
        scripts = [torch.jit.script(module)]
        if not isinstance(module, Table):
            scripts.append(torch.jit.trace(module, example, check_trace=False))
        for script in scripts:
            graph = graph_of(script, text)
            assert graph.at_batch(2).macs == 2 * ROWS, type(module)
            assert graph.inputs[1].dtype == expected.inputs[1].dtype
            assert graph.notes == expected.notes
    graph = graph_of(Holder(torch.jit.script(Selects().eval())), given)
    assert graph.at_batch(2).macs == 2 * 2 * ROWS
    assert any("upper bound" in note for note in graph.notes)


@pytest.mark.filterwarnings("ignore")
def test_scripts_that_select_by_data_name_line_and_next_step():
    for module, word in ((OnData(), ""), (Branches(), r"\(test_kinds\.py, line \d+: if bool")):
        with pytest.raises(ConversionError, match=rf"data-dependent.*{word}") as caught:
            graph_of(torch.jit.script(module), "x=12,16;which=bool:12")
        assert "fake_tensor.py" not in caught.value.message
        assert "give the module that was scripted" in caught.value.hint


def test_a_sample_without_padding_holds_what_was_said():
    """A mask of truth values that is tried with all of them true stays one of truth values."""
    for kind, value in (("bool:", True), ("", 1), ("int:", 1), ("float:", 1.0)):
        (held,) = with_full_masks(InputSpec.parse(f"x=3,4;mask={kind}2")).values["mask"]
        assert held == (value, value)
        assert type(held[0]) is type(value)
