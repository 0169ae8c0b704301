"""Numbers and tables from text: what people write is read, what only Python takes is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dippm.base.written import csv_rows, decimal_number, is_finite, whole_number
from dippm.cli.app import app
from dippm.decide.power_sweep import limits_of
from dippm.devices.hosts import host_of
from dippm.errors import ConditionsError, InputShapeError, UnknownNameError
from dippm.estimate.model_list import ModelListError, batches_of, candidates_of
from dippm.model.frontends import InputSpec

ODD = ("1_0", "1_000", "٣", "³", "1 0", "", "-", "0x10", "1e", "1__0", "NaN٣")


def test_a_number_that_no_float_holds_is_not_finite():
    assert all(map(is_finite, (0, -3, 1.5, 10**300)))
    assert not any(map(is_finite, (True, "3", None, math.inf, math.nan, 10**400, -(10**400))))


def test_numbers():
    assert [whole_number(text) for text in ("10", " +7 ", "-3", "0" * 40 + "5")] == [10, 7, -3, 5]
    assert [decimal_number(text) for text in ("1e-3", " .5", "-2.", "inf")] == [
        0.001,
        0.5,
        -2.0,
        math.inf,
    ]
    for text in ODD:
        for read in (whole_number, decimal_number):
            with pytest.raises(ValueError, match=r"."):
                pytest.fail(f"{text!r} is {read(text)}")
    with pytest.raises(ValueError, match="more than 18 digits"):
        whole_number("9" * 1_000_000)


def test_every_door_refuses_them():
    for text in ("1_0", "٣"):
        for read, error in (
            (batches_of, ConditionsError),
            (limits_of, ConditionsError),
            (host_of, UnknownNameError),
            (InputSpec.parse, InputShapeError),
            (lambda text: InputSpec.parse(f"n=value:{text}"), InputShapeError),
            (lambda text: candidates_of(f"model,batch\nx,{text}"), ModelListError),
        ):
            with pytest.raises(error):
                pytest.fail(f"{text!r} is {read(text)}")
        for words in (
            ["predict", "x.onnx", "--batch", text],
            ["predict", "x.onnx", f"--timeout-s={text}"],
            ["predict", "x.onnx", "-b", text],
            ["measure", "x.onnx", "--repeat", text],
            ["llm", "x", "--prompt", text],
        ):
            answer = CliRunner().invoke(app, words)
            assert answer.exit_code == 2, (words, answer.output)


@pytest.mark.parametrize(
    "given",
    [
        np.ones((4, 3, 8)),
        np.ones((4, 1), np.int64),
        np.ones(4),
        {"x": np.ones((4, 3, 8))},
        [(3, 8), np.ones((4, 3, 8))],
        torch.ones(4, 3, 8),
    ],
)
def test_data_is_no_list_of_sizes(given):
    with pytest.raises(InputShapeError, match=r"is a .* of sizes \(4") as error:
        InputSpec.parse(given)
    assert len(str(error.value)) < 250
    assert "dippm.fits(module, sample)" in error.value.hint


def test_a_flat_array_of_whole_numbers_is_a_list_of_sizes():
    assert InputSpec.parse(np.array([3, 224, 224])) == InputSpec.parse("3,224,224")
    assert InputSpec.parse((np.int64(3), np.int32(8))) == InputSpec.parse("3,8")


def test_tables():
    assert csv_rows('a,"b\nc"\n\n1,2') == [["a", "b\nc"], [], ["1", "2"]]
    with pytest.raises(ValueError, match="line 1: field larger than field limit"):
        csv_rows("x" * 200_000)
    with pytest.raises(ModelListError, match="field larger than"):
        candidates_of("model\tbatch\n" + "x" * 200_000 + "\t1")
