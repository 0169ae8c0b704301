"""Axes and spaces: what may be written, what it means, and what is refused."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from dippm.decide.exploration import Architecture, Choices, ExploreError, Floats, Ints, Space
from dippm.decide.exploration.design import axis_of, label_of, values_of
from dippm.decide.exploration.study import every_design
from dippm.errors import ConditionsError, UnknownNameError
from tests.unit.exploration.networks import build


@pytest.mark.parametrize(
    ("given", "axis"),
    [
        ([8, 16], Choices((8, 16))),
        (range(8, 33, 8), Ints(8, 32, 8)),
        (range(4, 0, -2), Ints(2, 4, 2)),
        (range(3, 4), Ints(3, 3)),
        ("relu", Choices(("relu",))),
        (3, Choices((3,))),
        (Floats(0.1, 1.0, log=True), Floats(0.1, 1.0, log=True)),
        ((nn.ReLU, nn.GELU), Choices((nn.ReLU, nn.GELU))),
    ],
)
def test_axes_as_people_write_them(given, axis):
    assert axis_of("x", given) == axis


@pytest.mark.parametrize(
    "given",
    [[], range(0), {"a": 1}, [1, 1], [True, 1], [lambda: None], [float("nan")], object()],
)
def test_what_is_no_axis_is_named(given):
    with pytest.raises(ExploreError, match="parameter width"):
        axis_of("width", given)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Ints, {"low": 4, "high": 1}),
        (Ints, {"low": 1, "high": 8, "step": 2}),
        (Ints, {"low": 0, "high": 8, "log": True}),
        (Ints, {"low": 1, "high": 8, "step": 0}),
        (Ints, {"low": 0.5, "high": 8}),
        (Floats, {"low": 0.0, "high": float("inf")}),
        (Floats, {"low": 0.0, "high": 1.0, "step": -0.1}),
        (Floats, {"low": 0.1, "high": 1.0, "step": 0.1, "log": True}),
    ],
)
def test_ranges_that_are_none(kind, arguments):
    with pytest.raises(ExploreError):
        kind(**arguments)


def test_values_and_labels():
    assert values_of(Ints(2, 6, 2)) == [2, 4, 6]
    assert values_of(Floats(0.25, 1.0, 0.25)) == [0.25, 0.5, 0.75, 1.0]
    assert label_of((2, 2, 6)) == "[2, 2, 6]"
    assert Choices(((2, 2), (3, 4))).value("[3, 4]") == (3, 4)
    assert Choices((nn.ReLU, nn.GELU)).value("GELU") is nn.GELU
    with pytest.raises(ExploreError, match="no end"):
        values_of(Floats(0.0, 1.0))


def test_a_space_lists_each_design_once():
    space = Space(
        build,
        {"width": [8, 16], "depth": range(1, 4), "act": "relu"},
        batch=[1, 8],
        precision=["fp32", "fp16"],
        device=["A100", "T4"],
        mig=[None, "1g.5gb"],
    )
    designs = [space.design(chosen) for chosen in every_design(space)]
    assert len(designs) == space.size == 2 * 3 * 2 * 2 * 3  # a T4 has no slices
    assert len(set(map(str, designs))) == len(designs)
    assert "act" not in space.axes
    assert {d.parameters["act"] for d in designs} == {"relu"}
    assert {d.place for d in designs} == {"A100-40GB", "A100-40GB 1g.5gb", "T4"}
    assert len({d.built for d in designs}) == 6
    conditions = space.conditions(designs[-1])
    assert (conditions.device.name, conditions.batch, conditions.precision) == ("T4", 8, "fp16")


def test_architectures_of_several_kinds():
    space = Space(
        [
            "timm:resnet18",
            Architecture.of(build, {"width": [8, 16]}, name="own"),
            Architecture.of(functools.partial(build, depth=2), {"width": [8]}),
        ]
    )
    assert list(space.architectures) == ["timm:resnet18", "own", "build"]
    assert set(space.axes) == {"architecture", "own.width"}
    assert space.size == 4
    names = [str(space.design(chosen)) for chosen in every_design(space)]
    assert names[1] == "own(width=8) · batch 1 · A100-40GB · fp32"


def test_inputs_may_depend_on_parameters():
    space = Space(build, {"width": [8, 16]}, input=lambda p: (3, p["width"], p["width"]))
    assert [space.input_of(space.design(c)) for c in every_design(space)] == [
        (3, 8, 8),
        (3, 16, 16),
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"architectures": []}, ExploreError),
        ({"architectures": build, "parameters": {"batch": [1]}}, ExploreError),
        ({"architectures": "timm:resnet18", "parameters": {"width": [1]}}, ExploreError),
        ({"architectures": [build, build]}, ExploreError),
        ({"architectures": [build, "a.onnx"], "parameters": {"width": [1]}}, ExploreError),
        ({"architectures": build, "device": "A1000"}, UnknownNameError),
        ({"architectures": build, "mig": "9g.5gb"}, UnknownNameError),
        ({"architectures": build, "batch": [0]}, ConditionsError),
        ({"architectures": build, "batch": ["many"]}, ConditionsError),
        ({"architectures": build, "precision": "fp12"}, ConditionsError),
        ({"architectures": build, "precision": "bf16", "device": "T4"}, ConditionsError),
        ({"architectures": build, "mode": "lazy"}, ConditionsError),
    ],
)
def test_spaces_that_are_none(arguments, error):
    with pytest.raises(error):
        Space(**arguments)
