"""`dippm explore`: a file in, a table out, and nothing lost where nothing fits."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.decide.exploration import ExploreError
from dippm.decide.exploration.space_file import EXAMPLE, read_space

pytest.importorskip("optuna")
SPACE = """
models = ["{model}"]
batch = "1:16"
precision = ["fp32", "fp16"]
mig = ["full", "1g.5gb"]
objectives = ["latency_ms", "throughput"]
constraints = {{ latency_ms = {limit}, throughput = [1, inf] }}
"""


@pytest.fixture
def space(tmp_path, onnx_file):
    def write(limit):
        path = tmp_path / "space.toml"
        path.write_text(SPACE.format(model=onnx_file, limit=limit))
        return path

    return write


def run(*words):
    return CliRunner().invoke(app, ["explore", *map(str, words), "--workers", "0"])


def test_a_table_a_page_and_rows(space, tmp_path):
    rows, page = tmp_path / "rows.csv", tmp_path / "page.html"
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    answer = run(space(100), "--csv", rows, "--html", page, "--storage", storage)
    assert answer.exit_code == 0, answer.output
    assert "20 designs, 20 feasible" in answer.stdout
    assert len(list(csv.DictReader(rows.open()))) == 20
    assert "20 designs" in page.read_text(encoding="utf-8")
    again = run(space(100), "--storage", storage, "--json")
    document = json.loads(again.stdout)
    assert len(document["designs"]) == 20
    assert document["front"]
    assert document["verify"] is None
    assert "onnxruntime" in document["absent"]["verify"]
    assert "verify        no command: the file runs in onnxruntime" in answer.stdout
    assert "no command: the file runs in onnxruntime" in page.read_text(encoding="utf-8")


def test_the_first_of_the_front_says_what_would_check_it(tmp_path):
    path, model = tmp_path / "space.toml", tmp_path / "net.pt"
    torch.save(torch.nn.Linear(64, 8), model)
    path.write_text(
        f'models = ["{model}"]\ninput = "64"\nbatch = [1, 4]\nobjectives = ["throughput"]\n'
    )
    answer = run(path, "--json")
    assert answer.exit_code == 0, answer.output
    line = f"dippm measure {model} --batch 4 --input 64 --device cuda:0 --compare"
    assert json.loads(answer.stdout)["verify"] == line


def test_nothing_feasible_is_an_error_after_all_is_written(space, tmp_path):
    rows = tmp_path / "rows.csv"
    answer = run(space(1e-6), "--csv", rows, "--json")
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["error"]["type"] == "NoFeasibleDesignError"
    assert {row["state"] for row in csv.DictReader(rows.open())} == {"infeasible"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = ", "space.toml"),
        ("batch = 1", "models"),
        ('models = ["a"]\nbatches = 1', "batches"),
        ('models = ["a"]\nchannels_last = 1', "channels_last"),
        ('models = ["a"]\nobjectives = { latency_ms = "least" }', "objectives"),
    ],
)
def test_files_that_ask_nothing(tmp_path, text, words):
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(ExploreError, match=words) as error:
        read_space(path)
    assert EXAMPLE in error.value.hint


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ExploreError, match="no such file"):
        read_space(tmp_path / "space.toml")


def test_the_example_is_read(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(EXAMPLE)
    asked = read_space(path)
    assert asked.space.size == 3 * 7 * 3
    assert asked.constraints["throughput"] == (1000.0, None)
