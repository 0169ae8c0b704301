"""Rows of a plan that share a GPU are predicted, and their runs keep what was foretold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.errors import PlanError, UnknownNameError
from dippm.runs.colocation.predicted_slowdowns import predict_slowdowns
from dippm.runs.plans.assumed import AssumedBoards
from dippm.runs.plans.predicted import predict_shared_rows
from dippm.runs.plans.row import model_of
from dippm.runs.plans.sweep import read_sweep
from dippm.runs.plans.table import read_table, write_table
from dippm.runs.plans.workload import workloads
from tests.unit.cli.test_schemas import SCHEMAS

HEAD = "Experiment,Workload,Devices,Collocation,File,Model\n"


@pytest.fixture
def folder(tmp_path: Path, onnx_file: Path) -> Path:
    shutil.copy(onnx_file, tmp_path / "net.onnx")
    return tmp_path


def predicted(folder: Path, lines: str, gpus: str = "a100x2"):
    rows = read_table((HEAD + lines).encode())[0]
    chosen = [(workload, workload.rows) for workload in workloads(rows)]
    return list(predict_shared_rows(chosen, folder, AssumedBoards.parse(gpus)))


@pytest.mark.nightly(part="answers")
def test_rows_that_share_a_gpu_are_what_share_predicts(folder):
    net = folder / "net.onnx"
    alone, together = "1,1,0,-,echo,net.onnx\n", "1,2,1,mps,echo,net.onnx --batch {}\n"
    (found,) = predicted(folder, alone + together.format(8) + together.format(16))
    assert [row.number for row in found.rows] == [2, 3]
    expected = dippm.share([net, net], device="A100", batch=[8, 16])
    assert found.shared is not None
    assert found.shared.rows() == expected.rows()
    (halves,) = predicted(folder, "1,1,0,mps:50%,echo,net.onnx\n" * 2)
    assert [one.part for one in halves.shared.processes] == ["50 % threads"] * 2
    (limited,) = predicted(folder, "1,1,0,mps:1024mb,echo,net.onnx\n" * 2)
    assert any("its limit is 1,024 MB" in why for why in limited.shared.misfits)
    slices = "1,1,0,{},echo,net.onnx --precision fp16\n"
    (apart,) = predicted(folder, slices.format("3g.20gb") + slices.format("4g.20gb"))
    assert [one.part for one in apart.shared.processes] == ["3g.20gb", "4g.20gb"]
    (turns,) = predicted(folder, "1,1,0,-,echo,net.onnx --device T4\n" * 2)
    assert (turns.shared.device.name, turns.shared.sharing) == ("T4", "time-slicing")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("1,1,0,mps,echo,net.onnx\n1,1,0,mps,echo,\n", "says nothing of row 2"),
        ("1,1,0,mps,echo,-\n1,1,0,mps,echo,-\n", "says nothing of row 1 and 2"),
        ("1,1,0,-,echo,net.onnx\n1,1,0+1,-,echo,net.onnx\n", "several GPUs"),
        (
            "1,1,0,mps,echo,net.onnx\n1,1,0,mps,echo,net.onnx --precision fp16\n",
            "different conditions",
        ),
        ("1,1,0,mps,echo,gone.onnx\n1,1,0,mps,echo,net.onnx\n", "there is no model gone.onnx"),
        ("1,1,0,mps,echo,net.onnx --device A1000\n" * 2, "A1000"),
    ],
)
def test_what_is_not_predicted_has_its_reason(folder, lines, reason):
    (found,) = predicted(folder, lines)
    assert found.shared is None
    assert reason in found.reason


def test_on_a_machine_without_a_gpu_it_is_said(folder):
    rows = read_table((HEAD + "1,1,0,mps,echo,net.onnx\n" * 2).encode())[0]
    (workload,) = workloads(rows)
    (found,) = predict_shared_rows([(workload, rows)], folder)
    assert "no GPU can be used" in found.reason


def test_a_check_prints_it(folder, monkeypatch):
    monkeypatch.chdir(folder)
    line = "1,1,0,mps,echo,net.onnx --batch 8\n"
    Path("plan.csv").write_text(HEAD + 2 * line + 2 * "1,2,1,mps,echo,\n")
    words = ["plan", "check", "plan.csv", "--assume", "a100x2"]
    text = CliRunner().invoke(app, words).stdout
    assert "workload 1/1 on 0, A100-40GB by mps, predicted:" in text
    assert text.count(") ms, × ") == 2
    assert "workload 1/2 on 1 is not predicted: the column Model says nothing of row 3" in text
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    Draft202012Validator(SCHEMAS).validate(document)
    first, second = document["predicted"]
    assert [one["row"] for one in first["processes"]] == first["rows"] == [1, 2]
    assert (second["processes"], second["device"]) == ([], None)
    assert document["rows"][0]["model"] == "net.onnx --batch 8"


def test_runs_keep_the_prediction_that_they_are_held_against(desk, onnx_file):
    shutil.copy(onnx_file, desk.folder / "net.onnx")
    line = "1,1,-,-,echo,net.onnx --batch 8 --device A100\n"
    desk.plan.write_text(HEAD + 2 * line + "1,2,-,-,echo,gone.onnx\n")
    told = desk.run()
    assert told[-1]["well"]
    said = [one["say"] for one in told if "say" in one]
    assert ["gone.onnx" in text for text in said] == [True]
    runs = [desk.recorded(row.run).start for row in desk.read().rows]
    assert [run.prediction is None for run in runs] == [False, False, True]
    document = runs[0].prediction
    assert document["conditions"]["batch"] == 8
    shared = [
        SimpleNamespace(
            uuid=run.uuid,
            prediction=run.prediction,
            start=SimpleNamespace(tags={"collocation": "mps"}),
        )
        for run in runs[:2]
    ]
    held = predict_slowdowns(shared)
    expected = dippm.share([onnx_file], copies=2, batch=8, device="A100").processes[0]
    assert held[runs[0].uuid].slowdown == pytest.approx(expected.slowdown)


def test_a_cell_is_a_model_with_its_conditions():
    asked = 'net.onnx --batch 8 --input "3,64,64" --device H100'
    assert model_of(asked) == (
        "net.onnx",
        {"batch": 8, "input": "3,64,64", "device": "H100"},
    )
    with pytest.raises(UnknownNameError, match="--bach"):
        model_of("net.onnx --bach 8")
    for wrong in ("net.onnx 8", "net.onnx --batch", "net.onnx --batch eight", "''"):
        with pytest.raises(PlanError):
            model_of(wrong)


def test_tables_and_sweeps_keep_the_model():
    rows = read_table((HEAD + '1,1,0,mps,echo,"net.onnx --input 3,64,64"\n').encode())[0]
    assert rows[0].model == "net.onnx --input 3,64,64"
    assert read_table(write_table(rows))[0] == rows
    assert b"Model" not in write_table([rows[0]._replace(model="")])
    sweep = b"file: echo\nmodel: net.onnx\nparameters:\n  lr: {values: [1, 2]}\n"
    assert [row.model for row in read_sweep(sweep)] == ["net.onnx"] * 2
