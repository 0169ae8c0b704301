"""Budgets of real models: files, names and Python entries; nightly as commands of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import log
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

import dippm
from dippm.cli.app import app
from dippm.decide.budgets import Tolerance, check, read_budgets
from dippm.decide.budgets.checking import UNITS
from dippm.errors import BudgetError
from dippm.estimate.models.targets import Interval
from dippm.show.report import check_formats

ROOT = Path(__file__).resolve().parents[3]
NET = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))

def fails():
    raise KeyError("weights")
"""
PARAMETERS = 64 * 32 + 32 + 32 * 8 + 8
BUDGETS = """
[defaults]
device = "A100"
input = "64"

[models.mine]
python = "net:build"
batch = 4
limits = {{ {limits} }}
"""

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


def closed(required: str, **properties: object) -> dict[str, object]:
    """Return the schema of an object that has these properties alone, the first ones always."""
    rest = {"required": required.split(), "additionalProperties": False}
    return {"type": "object", "properties": properties, **rest}


def listed(of: dict[str, object]) -> dict[str, object]:
    return {"type": "array", "items": of}


PLACE = closed(
    "artifactLocation",
    artifactLocation=closed("uri", uri={"type": "string", "pattern": r"^[^\s\\]+$"}),
    region=closed("startLine", startLine={"type": "integer", "minimum": 1}),
)
RULE = closed("id", id={"type": "string"}, shortDescription=TEXT)
SARIF = closed(
    "version runs",
    **{"$schema": {"type": "string", "format": "uri"}},
    version={"enum": ["2.1.0"]},
    runs=listed(
        closed(
            "tool",
            tool=closed(
                "driver",
                driver=closed(
                    "name", name={"type": "string"}, version={"type": "string"}, rules=listed(RULE)
                ),
            ),
            results=listed(
                closed(
                    "message",
                    message=TEXT,
                    ruleId={"type": "string"},
                    ruleIndex={"type": "integer", "minimum": -1},
                    level={"enum": ["none", "note", "warning", "error"]},
                    locations=listed(closed("", physicalLocation=PLACE)),
                )
            ),
        )
    ),
)
"""What OASIS's schema of SARIF 2.1.0 says of the properties that are written."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("net", None)


def written(folder: Path, limits: str = "", more: str = "") -> Path:
    path = folder / "budgets.toml"
    path.write_text(BUDGETS.format(limits=limits) + more)
    return path


def finding(found, quantity, model=0):
    return next(f for f in found.models[model].findings if f.quantity == quantity)


def dippm_in_its_process(*words: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dippm", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["check", *words])


def test_what_is_held_to_a_limit_is_the_upper_end_unless_the_value_is_asked_for(folder):
    told = dippm.predict(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)),
        input="64", batch=4, device="A100",
    )  # fmt: skip
    high = told.intervals["latency_ms"].high
    between = (told.latency_ms + high) / 2
    path = written(folder, f"latency_ms = {between}, memory_mb = 40000, parameters = {PARAMETERS}")
    over = finding(check(path, trust=True), "latency_ms")
    assert (over.value, over.held) == (told.latency_ms, high)
    assert "the limit is" in over.reason
    path.write_text(path.read_text().replace('device = "A100"', 'device = "A100"\nat = "value"'))
    found = check(path, trust=True)
    assert found.passed
    assert finding(found, "memory_mb").held == told.memory_bound_mb
    assert finding(found, "parameters").value == PARAMETERS
    assert finding(found, "macs").value == 4 * (64 * 32 + 32 * 8)
    assert found.raise_if_not() is found


def test_a_slice_is_held_to_its_size_and_memory_always_to_that_of_the_gpu(folder):
    found = check(written(folder, 'slice = "1g.5gb"'), trust=True)
    assert finding(found, "slice").passed
    assert finding(found, "memory_mb").limit == 40_960
    big = 'model = "timm:resnet18"\ninput = "3,224,224"\nbatch = 512'
    more = f'[models.big]\n{big}\nlimits = {{ slice = "1g.5gb" }}'
    reason = finding(check(written(folder, "", more), trust=True), "slice", 1).reason
    assert "the limit is 1g.5gb" in reason
    unknown = finding(check(written(folder, 'slice = "9g.5gb"'), trust=True), "slice")
    assert "has no slice 9g.5gb" in unknown.reason
    nothing = written(folder, 'slice = "1g.5gb"')
    nothing.write_text(nothing.read_text().replace("A100", "T4"))
    assert "T4 has no slice" in finding(check(nothing, trust=True), "slice").reason


def test_a_quantity_that_is_not_known_does_not_pass_its_limit(folder):
    path = written(folder, "energy_j = 1")
    path.write_text(path.read_text().replace('"A100"', '"cpu"'))
    found = finding(check(path, trust=True), "energy_j")
    assert found.value is None
    assert "not known" in found.reason


def test_a_baseline_tolerates_per_cent_or_standard_deviations(folder):
    path = written(folder, "latency_ms = 100")
    document = check(path, trust=True).to_dict()
    assert check(path, trust=True, baseline=document).passed
    for one in document["models"][0]["findings"]:
        one["value"] = one["value"] if isinstance(one["value"], str) else one["value"] / 1.2
    over = check(path, trust=True, baseline=document)
    failed = {f.quantity for f in over.models[0].findings if not f.passed}
    assert failed == {"latency_ms", "memory_mb", "energy_j", "parameters", "macs"}
    assert finding(over, "macs").change_percent == pytest.approx(20)
    assert "+20.0 % from" in finding(over, "macs").reason
    assert check(path, trust=True, baseline=document, tolerance="21%").passed
    by_spread = check(path, trust=True, baseline=document, tolerance="2sd")
    failed = {f.quantity for f in by_spread.models[0].findings if not f.passed}
    assert {"parameters", "macs"} <= failed
    assert "latency_ms" not in failed
    with pytest.raises(BudgetError, match="budgets are exceeded; the first, mine"):
        over.raise_if_not()


def test_the_standard_deviation_is_that_of_the_logarithm():
    interval = Interval(1.0, 4.0, 0.9)
    most = Tolerance.parse("1sd").most(2.0, interval)
    assert log(most / 2.0) == pytest.approx(log(4.0) / (2 * 1.6448536))
    assert Tolerance.parse(" 2.5 % ").most(2.0, None) == pytest.approx(2.05)
    assert Tolerance.parse("3sd").most(2.0, None) == 2.0


def test_what_changed_beside_the_model_is_told(folder):
    path = written(folder)
    document = json.loads(json.dumps(check(path, trust=True).to_dict()))
    document["models"][0]["checkpoint"] = "hybrid-gpu 0.1.0"
    document["models"][0]["conditions"]["batch"] = 9
    document["models"].append({**document["models"][0], "name": "old"})
    more = '[models.new]\nmodel = "timm:resnet18"\ninput = "3,64,64"'
    remarks = check(written(folder, "", more), trust=True, baseline=document).remarks
    said = " ".join(remarks)
    for words in ("old is in the baseline only", "new is new", "now hybrid-gpu", "conditions"):
        assert words in said


def test_a_model_that_cannot_be_had_fails_and_leaves_the_others(folder):
    more = """
[models.gone]
model = "gone.onnx"
[models.broken]
python = "net:fails"
[models.nowhere]
python = "no.such.module:build"
[models.place]
model = "timm:resnet18"
device = "A10000"
input = "3,64,64"
"""
    found = check(written(folder, "", more), trust=True)
    assert [model.passed for model in found.models] == [True, False, False, False, False]
    said = [type(model.error).__name__ for model in found.models[1:]]
    assert said == ["ModelNotFoundError", "BudgetError", "BudgetError", "UnknownNameError"]
    assert "KeyError" in found.models[2].error.message
    untrusted = check(written(folder)).models[0].error
    assert "trust=True" in untrusted.hint
    assert "net" in sys.modules
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no model"),
        ("models = 3", "models is not a table"),
        ("[models.a]\nmodel = 3", "model is 3"),
        ("[models.a]", "names no model"),
        ('[models.a]\nmodel = "a"\npython = "b:c"', "names two models"),
        ('[models.a]\npython = "import os"', "python is"),
        ('[models.a]\nmodel = "a"\nbacth = 3', "unknown key 'bacth'"),
        ('[models.a]\nmodel = "a"\nbatch = true', "batch is True"),
        ('[models.a]\nmodel = "a"\nchannels_last = "yes"', "channels_last is"),
        ('[models.a]\nmodel = "a"\nat = "mean"', "at is"),
        ('[models.a]\nmodel = "a"\ntolerance = "5"', "a: the tolerance is"),
        ('[models.a]\nmodel = "a"\nlimits = 3', "limits is not a table"),
        ('[models.a]\nmodel = "a"\nlimits = { latency = 3 }', "unknown key 'latency'"),
        ('[models.a]\nmodel = "a"\nlimits = { latency_ms = -3 }', "latency_ms is -3"),
        ('[models.a]\nmodel = "a"\nlimits = { latency_ms = nan }', "latency_ms is nan"),
        ('[models.a]\nmodel = "a"\nlimits = { slice = 3 }', "slice is 3"),
        ('[models."a\\u0007"]\nmodel = "a"', "not the name of a model"),
        ("[models.a\n", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("[models]\n" + "\n".join(f"m{i} = {{}}" for i in range(1001)), "1,001 models"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path, text, said):
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    with pytest.raises(BudgetError, match=said):
        read_budgets(path)


def test_files_that_are_missing_too_large_or_binary_are_refused(tmp_path):
    with pytest.raises(BudgetError, match="no such file") as refused:
        read_budgets(tmp_path / "none.toml")
    assert "write=True" in refused.value.hint
    path = tmp_path / "budgets.toml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(BudgetError, match="larger than 1 MiB"):
        read_budgets(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BudgetError, match="is not TOML"):
        read_budgets(path)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"models": [3]}', "[" * 10_000,
     '{"models": [{"name": "a", "conditions": null, "checkpoint": null, '
     '"findings": [{"quantity": "macs", "value": NaN}]}]}'],
)  # fmt: skip
def test_baselines_that_are_none_are_refused(folder, text):
    (folder / "main.json").write_text(text)
    with pytest.raises(BudgetError, match="json is no"):
        check(written(folder), baseline=folder / "main.json", trust=True)


def test_reports_name_models_quantities_and_lines(folder):
    more = '\n[models."x <&> | @me"]\nmodel = "gone.onnx"\n'
    found = check(written(folder, "macs = 1, parameters = 10000", more), trust=True)
    suites = ElementTree.fromstring(check_formats.junit(found)).findall("testsuite")
    assert [(s.get("name"), s.get("failures")) for s in suites] == [
        ("mine", "1"), ("x <&> | @me", "1")
    ]  # fmt: skip
    log_ = check_formats.sarif(found)
    run = log_["runs"][0]
    Draft202012Validator(SARIF).validate(log_)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {*UNITS, "parameters", "macs", "slice", "prediction"} == set(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    lines = (folder / "budgets.toml").read_text().splitlines()
    places = [r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in run["results"]]
    assert [lines[place - 1] for place in places] == ["[models.mine]", '[models."x <&> | @me"]']
    table = check_formats.markdown(found)
    assert "2 of 2 models exceed" in table
    assert "@me" not in table
    assert all(line.count(" | ") == 7 for line in table.splitlines() if line.startswith("| "))
    json.dumps(log_)


def test_the_command_is_a_gate_with_reports_and_a_document(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    written(folder, "macs = 100000, latency_ms = 100")
    passed = command("budgets.toml", "--trust", "--json")
    assert passed.exit_code == 0, passed.stderr
    (folder / "main.json").write_text(passed.stdout)
    schemas = json.loads((ROOT / "dippm" / "schemas.json").read_text(encoding="utf-8"))
    document = json.loads(passed.stdout)
    Draft202012Validator(schemas).validate(document)
    assert document["models"][0]["absent"]["verify"].startswith("a model in memory")
    written(folder, "macs = 1")
    words = "--junit j.xml --sarif s.json --markdown m.md --baseline main.json".split()
    failed = command("budgets.toml", "--trust", *words)
    assert failed.exit_code == 1
    assert "the limit is 1" in failed.stdout
    assert "a budget is exceeded" in failed.stdout
    assert " verify        no command: a model in memory" in failed.stdout
    assert all((folder / name).stat().st_size for name in ("j.xml", "s.json", "m.md"))


def test_the_command_says_what_it_cannot_do(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    written(folder, "macs = 1")

    missing = command("none.toml", "--json")
    assert missing.exit_code == 1
    assert json.loads(missing.stdout)["error"]["type"] == "BudgetError"
    untrusted = command("budgets.toml")
    assert untrusted.exit_code == 1
    assert "--trust" in untrusted.stdout
    assert command("budgets.toml", "model.onnx").exit_code == 2
    full = command("budgets.toml", "--trust", "--junit", "no/such/folder")
    assert full.exit_code == 1
    assert "cannot write" in full.stderr


def test_the_first_budgets_are_kept_and_never_replaced(folder):
    torch.onnx.export(
        torch.nn.Linear(8, 4), (torch.zeros(1, 8),), folder / "net.onnx", dynamo=False,
        dynamic_axes={"x": {0: "batch"}}, input_names=["x"],
    )  # fmt: skip
    words = ("first.toml", "--write", "net.onnx", "timm:resnet18", "--batch", "4")
    made = command(*words)
    assert made.exit_code == 0, made.stderr
    budgets = {budget.name: budget for budget in read_budgets("first.toml")}
    assert set(budgets) == {"net", "resnet18"}
    assert budgets["resnet18"].conditions["batch"] == 4
    assert 'model = "net.onnx"' in (folder / "first.toml").read_text()
    found = check("first.toml")
    assert found.passed
    assert finding(found, "parameters", 1).limit == finding(found, "parameters", 1).value
    again = command(*words)
    assert again.exit_code == 1
    assert "exists" in again.stderr
    empty = command("second.toml", "--write")
    assert empty.exit_code == 1
    assert "no model was given" in empty.stderr
    assert not (folder / "second.toml").exists()


def test_the_first_budgets_hold_in_another_checkout(folder):
    """Paths lead from the file to the model, also out of its folder; a device file's as well."""
    for name in ("ci", "models"):
        (folder / name).mkdir()
    torch.save(torch.nn.Linear(64, 8), folder / "models" / "net.pt")
    (folder / "my.toml").write_text((ROOT / "examples" / "my_gpu.toml").read_text())
    words = ("ci/first.toml", "--write", "models/net.pt", "--input", "64", "--device", "my.toml")
    made = command(*words)
    assert made.exit_code == 0, made.stderr
    moved = folder / "elsewhere"
    moved.mkdir()
    for part in ("ci", "models", "my.toml"):
        (folder / part).rename(moved / part)
    assert check(moved / "ci" / "first.toml").passed


def test_a_checkpoint_of_a_file_lies_beside_it(folder):
    (folder / "ci").mkdir()
    path = folder / "ci" / "budgets.toml"
    path.write_text('[models.a]\nmodel = "net.onnx"\ncheckpoint = "mine/0.1.0"\n')
    (budget,) = read_budgets("ci/budgets.toml")
    assert budget.conditions["checkpoint"] == "ci/mine/0.1.0"
    path.write_text('[models.a]\nmodel = "net.onnx"\ncheckpoint = "hybrid-gpu"\n')
    assert read_budgets(path)[0].conditions["checkpoint"] == "hybrid-gpu"


def test_a_log_names_the_file_as_hosts_find_it(folder):
    def place(path):
        (result,) = check_formats.sarif(check(path, trust=True))["runs"][0]["results"]
        return result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]

    path = written(folder, "macs = 1")
    assert place(path) == "budgets.toml"
    odd = path.rename(folder / "50% of é#1.toml")
    assert place(odd.name) == "50%25%20of%20%C3%A9%231.toml"
    (folder / "sub").mkdir()
    os.chdir(folder / "sub")
    assert place(odd).startswith("file:///")


def test_the_example_is_a_file_of_budgets():
    names = [budget.name for budget in read_budgets(ROOT / "examples" / "budgets.toml")]
    assert names == ["resnet50", "mobilenet"]


def step_of_the_action(name: str) -> dict:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    return next(step for step in action["runs"]["steps"] if step["name"] == name)


@pytest.mark.nightly(part="processes")
def test_the_action_checks_as_a_runner_would(folder):
    """A runner's own work is to fill in the inputs and to keep the outputs."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = step_of_the_action("Hold models to their budgets")
    assert "${{" not in step["run"], "an input in a script could be code"
    inputs = {name: one["default"] for name, one in action["inputs"].items()} | {"trust": "true"}
    named = {name: text.removeprefix("${{ inputs.") for name, text in step["env"].items()}
    env = {name: inputs[text.removesuffix(" }}")] for name, text in named.items()}
    program = folder / "bin" / "dippm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dippm "$@"\n')
    program.chmod(0o755)
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    env |= {**files, "RUNNER_TEMP": str(folder / "temp"), "PYTHONPATH": str(ROOT)}
    env["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def run(**given):
        words = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        held = {**os.environ, **env, **given}
        return subprocess.run(words, capture_output=True, text=True, env=held)

    written(folder, "macs = 100000")
    passed = run()
    assert passed.returncode == 0, passed.stderr
    outputs = dict(line.split("=", 1) for line in (folder / "GITHUB_OUTPUT").read_text().split())
    assert set(outputs) == set(action["outputs"])
    assert all(Path(place).stat().st_size for place in outputs.values())
    assert "Every budget is kept" in (folder / "GITHUB_STEP_SUMMARY").read_text()
    written(folder, "macs = 1")
    failed = run(BASELINE=outputs["json"], TOLERANCE="5%")
    assert failed.returncode == 1
    assert "exceed their budgets" in failed.stdout
    assert run(BUDGETS="none.toml").returncode == 1


def test_the_action_is_one_by_the_schema_of_its_host(tmp_path):
    pytest.importorskip("check_jsonschema", reason="it carries the schema")
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions"]
    done = subprocess.run([*words, ROOT / "action.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly(part="processes")
def test_the_hook_of_pre_commit_is_one_and_runs(folder):
    hook = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
    written(folder)
    words = [*hook["entry"].split()[1:], *hook["args"]]
    assert dippm_in_its_process(*words, "--trust").returncode == 0
    assert dippm_in_its_process(*words).returncode == 1
    pytest.importorskip("pre_commit", reason="it says what a hook is")
    words = [sys.executable, "-m", "pre_commit", "validate-manifest"]
    done = subprocess.run([*words, ROOT / ".pre-commit-hooks.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
