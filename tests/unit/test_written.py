"""Numbers and tables from text: what people write is read, what only Python takes is refused."""

from __future__ import annotations

import math

import pytest
from typer.testing import CliRunner

from dippm.base.written import csv_rows, decimal_number, is_finite, whole_number
from dippm.cli.app import app
from dippm.decide.power_sweep import limits_of
from dippm.devices.hosts import host_of
from dippm.errors import ConditionsError, InputShapeError, UnknownNameError
from dippm.estimate.batches import batches_of
from dippm.estimate.model_list import ModelListError, candidates_of
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


def test_tables():
    assert csv_rows('a,"b\nc"\n\n1,2') == [["a", "b\nc"], [], ["1", "2"]]
    with pytest.raises(ValueError, match="line 1: field larger than field limit"):
        csv_rows("x" * 200_000)
    with pytest.raises(ModelListError, match="field larger than"):
        candidates_of("model\tbatch\n" + "x" * 200_000 + "\t1")
