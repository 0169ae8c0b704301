"""`dippm share`, as a user has it: in a process of its own, on a real file."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dippm.cli.app import app


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("share") / "net.onnx"
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 8)).eval()
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    torch.onnx.export(model, (torch.zeros(1, 3, 32, 32),), path, dynamo=False, **names)
    return path


def test_a_set_is_one_document_that_its_schema_allows(net: Path) -> None:
    words = f"share {net} {net} --mps 50,50% --batch 8,16 --device A100 --json"
    command = [sys.executable, "-m", "dippm", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    schemas = json.loads((files("dippm") / "schemas.json").read_text(encoding="utf-8"))
    Draft202012Validator(schemas).validate(document)
    assert document["schema"] == "dippm.share/1"
    assert [process["batch"] for process in document["processes"]] == [8, 16]
    assert [process["share"] for process in document["processes"]] == [0.5, 0.5]
    assert not document["measured"]


def ask(line: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, line.split())
    return answer.exit_code, answer.output


def test_a_set_prints_as_a_table(net: Path) -> None:
    code, text = ask(f"share {net} --copies 3 --mps all --device A100")
    assert code == 0
    assert text.count("net.onnx") == 3
    assert "90 % interval" in text
    code, text = ask(f"share {net} --copies 2 --sharing time-slicing --device A100")
    assert "bounds" in text
    code, text = ask(f"share {net} {net} --slices 3g.20gb,4g.20gb --device A100")
    assert (code, text.count("g.20gb") >= 2) == (0, True)


def test_a_set_that_will_not_fit_is_exit_code_1(net: Path) -> None:
    code, text = ask(f"share {net} --copies 40 --device T4")
    assert code == 1
    assert "will not fit" in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("{net} {net} --mps 80,80", 1, "more than 100"),
        ("{net} --sharing turns", 1, "way to share"),
        ("{net} --slices 9g.90gb", 1, "9g.90gb"),
        ("", 2, "no model"),
        ("{net} --mps half", 2, "numbers"),
        ("{net} --mps 50:halfmb", 2, "numbers"),
        ("{net} {net} --mps 50,4096mb", 2, "not one percentage"),
        ("{net} {net} --mps 50:1024mb,50 --device A100", 1, "its limit is 1,024 MB"),
        ("{net} {net} --mps 4096mb --device A100", 1, "1 memory limits"),
        ("{net} --batch many", 2, "numbers"),
        ("{net} --mps 50 --slices 1g.5gb", 2, "exclude each other"),
    ],
)
def test_bad_words_are_answered(net: Path, words: str, code: int, says: str) -> None:
    found, text = ask("share " + words.format(net=net))
    assert found == code
    assert says in " ".join(text.split())


def test_a_list_of_models_brings_batches_of_its_own(net: Path, tmp_path: Path) -> None:
    listed = tmp_path / "models.csv"
    listed.write_text(f"model,batch\n{net},4\n{net},8\n")
    code, text = ask(f"share --from {listed} --device A100 --json")
    assert code == 0
    document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert [process["batch"] for process in document["processes"]] == [4, 8]
