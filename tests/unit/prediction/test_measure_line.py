"""The line that would check an answer is one that the command line takes, and checks it."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
import torch
import typer.main
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.estimate.measure_line import Asked, measure_line
from dippm.measure import subject
from dippm.measure.subject import load_subject
from dippm.show.report.predictions import render_report
from tests import cuda_stand_in
from tests.samples import sampled

pytestmark = pytest.mark.usefixtures("own_garbage")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
QUICK = "--repeat 2 --warm-up 1 --energy-window-s 0 --json".split()
MODEL = ("timm:resnet18", "3,64,64")


def answered(words: list[str]):
    return CliRunner().invoke(app, words)


def predicted(*words: str) -> dict:
    answer = answered(["predict", MODEL[0], "--input", MODEL[1], *words, "--json"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_the_line_measures_on_the_cpu_and_holds_the_prediction_against_it():
    line = predicted("--device", "cpu", "--batch", "2")["verify"]
    words = shlex.split(line)
    assert words[:3] == ["dippm", "measure", MODEL[0]]
    assert words[-1] == "--compare"
    answer = answered([*words[1:], *QUICK])
    found = json.loads(answer.stdout)
    assert found["schema"] == "dippm.measure-compare/1", found
    assert found["measurement"]["batch"] == 2
    # of a CPU that no checkpoint was trained on, and beside one that was, the measurement stands
    assert bool(found["checks"]) != bool(found["absent"])


def test_the_line_measures_on_a_gpu_and_holds_the_prediction_against_it():
    """On a stand-in, whose figures mean nothing: what is seen is that the two are compared."""
    told = predicted("--device", "A100", "--batch", "4", "--host", "12", "--context-mb", "1800")
    words = shlex.split(told["verify"])
    at = words.index("--device")
    assert words[at + 1] == str(cuda_stand_in.DEVICE)

    def on_the_cpu(*given, device, **rest):
        return load_subject(*given, device=torch.device("cpu"), **rest)

    with (
        cuda_stand_in.gpu(),
        mock.patch.object(subject, "device_of", lambda name: torch.device(name)),
        mock.patch.object(subject, "load_subject", on_the_cpu),
    ):
        torch.cuda.get_device_properties(0).name = "NVIDIA A100-SXM4-40GB"
        answer = answered([*words[1:], *QUICK])
    found = json.loads(answer.stdout)
    assert answer.exit_code == 0, found
    checked = {check["target"]: check for check in found["checks"]}
    assert checked["latency_ms"]["predicted"] == told["latency_ms"]
    assert checked["memory_mb"]["predicted"] == told["memory_mb"]
    assert checked["latency_ms"]["measured"] > 0
    assert found["prediction"]["verify"] == told["verify"]


OPTIONS = [
    [],
    ["--batch", "7", "--precision", "amp-bf16"],
    ["--mode", "compiled", "--channels-last"],
    ["--phase", "train", "--host", "server-2022"],
    ["--host", "12.5", "--context-mb", "lazy"],
    ["--mig", "2g.10gb"],
    ["--checkpoint", "hybrid-gpu"],
]


@pytest.mark.parametrize(
    "given", sampled(OPTIONS, pytest.mark.nightly(part="answers")), ids=" ".join
)
def test_the_command_line_takes_every_word_of_it(given):
    command = typer.main.get_command(app)
    measure = command.commands["measure"]
    words = shlex.split(predicted(*given)["verify"])[2:]
    with measure.make_context("measure", words) as context:
        asked = context.params
    assert asked["compare"]
    assert asked["device"] == "cuda:0"
    for option, value in pairwise(given):
        if option in ("--batch", "--precision", "--mode", "--phase", "--checkpoint"):
            assert str(asked[option[2:]]) == value


def test_names_with_spaces_quotes_and_dashes_come_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a b's.pt", "-net.pt"):
        torch.save(torch.nn.Linear(8, 4), tmp_path / name)
        told = dippm.predict(name, input="8", batch=3)
        words = shlex.split(told.verify)
        assert dippm.predict(words[2], input=words[6], batch=3).latency_ms == told.latency_ms
        answer = answered([*words[1:], *QUICK, "--device", "cpu"])
        assert "schema" in json.loads(answer.stdout), answer.output
        assert json.loads(answer.stdout)["schema"] == "dippm.measure-compare/1"


def test_a_home_folder_is_expanded_where_the_line_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(torch.nn.Linear(8, 4), tmp_path / "net.pt")
    words = shlex.split(dippm.predict("~/net.pt", input="8").verify)
    assert words[2] == "~/net.pt"
    answer = answered([*words[1:], *QUICK, "--device", "cpu"])
    assert json.loads(answer.stdout)["schema"] == "dippm.measure-compare/1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timer": "kernel"}, "timer kernel"),
        ({"device": str(EXAMPLES / "my_gpu.toml")}, "a device file"),
        ({"attention": "unfused"}, "unfused attention"),
        ({"autograd": True}, "autograd"),
        ({"phase": "train", "optimizer": "adam"}, "trains with sgd"),
        ({"phase": "train", "checkpointing": True}, "checkpoint activations"),
    ],
)
def test_what_cannot_be_measured_has_no_line_and_a_reason(given, said):
    found = dippm.predict(MODEL[0], input=MODEL[1], **given)
    assert found.verify is None
    assert said in found.to_dict()["absent"]["verify"]
    assert said in found.verify_line


def test_objects_and_files_of_other_runtimes_have_no_line_and_a_reason(tmp_path):
    module = torch.nn.Linear(8, 4)
    told = dippm.predict(module, input="8")
    assert told.verify is None
    assert "dippm.measure_model" in told.to_dict()["absent"]["verify"]
    torch.onnx.export(module, (torch.zeros(1, 8),), tmp_path / "net.onnx", dynamo=False)
    told = dippm.predict(tmp_path / "net.onnx")
    assert "runs in onnxruntime" in told.to_dict()["absent"]["verify"]
    (tmp_path / "net.onnx").unlink()
    gone = Asked.of(tmp_path / "net.onnx")
    assert "nothing that is known" in measure_line(gone, told.conditions, ("torch",))[1]


COMMANDS = [
    "predict {} --tree", "explain {}", "compare {}", "sweep {} --batch 1,2", "cost {}",
    "diff {} --device A100,H100", "what-if {}", "parallel {} --gpus 2",
    "sweep {} --batch 4 --power-limit 200:300",
    "choose {} --devices A100 --no-slices", "mig {} --device A100",
]  # fmt: skip


@pytest.mark.parametrize("words", sampled(COMMANDS, pytest.mark.nightly(part="answers")))
def test_it_is_printed_last_and_stands_in_the_document(words):
    words = words.format(f"{MODEL[0]} --input {MODEL[1]}").split()
    shown = answered([*words, "--quiet"])
    assert shown.exit_code == 0, shown.output
    last = shown.stdout.rstrip().splitlines()[-1]
    assert re.match(r" verify +dippm measure timm:resnet18 .* --compare$", last), last
    document = json.loads(answered([*words, "--json"]).stdout)
    inner = {"compare": ("rows", 0), "diff": ("after",), "what-if": ("baseline",)}
    told = document
    for key in {**inner, "parallel": ("one_gpu",)}.get(words[0], ()):
        told = told[key]
    assert told["verify"] == last.split(maxsplit=1)[1]


PAGES = [
    "predict {}", "explain {}", "compare {}", "sweep {} --batch 1,2", "what-if {}",
    "choose {} --devices A100 --no-slices", "parallel {} --gpus 2",
]  # fmt: skip


@pytest.mark.parametrize("words", sampled(PAGES, pytest.mark.nightly(part="answers")))
def test_pages_have_it_once(words, tmp_path):
    words = words.format(f"{MODEL[0]} --input {MODEL[1]}").split()
    page = tmp_path / "page.html"
    shown = answered([*words, "--quiet", "--html", str(page)])
    assert shown.exit_code == 0, shown.output
    line = shown.stdout.rstrip().splitlines()[-1].split(maxsplit=1)[1]
    assert page.read_text().count(f"<p>verify: <code>{line}</code></p>") == 1


def test_notebooks_and_pages_say_why_there_is_none():
    found = dippm.predict(MODEL[0], input=MODEL[1])
    assert f"<p>verify: <code>{found.verify}</code></p>" in found._repr_html_()
    without = dippm.predict(MODEL[0], input=MODEL[1], timer="kernel")
    assert "verify: dippm measure times" in without._repr_html_()
    assert "verify: no command: dippm measure times" in render_report(without)


def test_host_and_context_are_of_the_prediction_alone():
    answer = answered(["measure", MODEL[0], "--host", "12"])
    assert answer.exit_code == 2
    assert "--compare" in answer.output
