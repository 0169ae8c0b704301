"""Every command with --json, on real small files, against the schemas that the package ships."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.measure import selftest
from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import Span
from tests import collected_rows
from tests.run_folders import START_NS, make_run
from tests.samples import sampled
from tests.unit.colocation.test_slowdown import SHARED, SOLO, kept
from tests.unit.plans.desks import Desk, next_line
from tests.unit.tracking.test_run_comparison import PREDICTION
from tests.unit.umlaut.test_import import UUID, made

SCHEMAS = json.loads((files("dippm") / "schemas.json").read_text(encoding="utf-8"))
PRICES = Path(__file__).resolve().parents[3] / "examples" / "prices.toml"
CARBON = PRICES.with_name("carbon.toml")
SPACE = """
models = ["net.onnx"]
batch = [1, 8]
device = ["A100"]
objectives = ["latency_ms", "throughput"]
"""
BUDGETS = """
[models.net]
model = "net.onnx"
limits = { latency_ms = 9, energy_j = 9, macs = 1, slice = "1g.5gb" }
[models.gone]
model = "gone.onnx"
"""
STAGES = """
[[stages]]
name = "first"
model = "net.onnx"
[[stages]]
name = "second"
model = "net.onnx"
repeat = 3
after = ["first"]
"""
LLAMA = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"},
    **{"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4},
    **{"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000},
    **{"max_position_embeddings": 4096, "tie_word_embeddings": False},
}
QUICK = "--device cpu --repeat 3 --warm-up 1 --energy-window-s 0"
COMMANDS = {
    "predict": ("net.onnx --tree", "net.onnx --device A100 --mig 1g.5gb",
                "net.onnx --device cpu", "net.onnx --phase train --dataset-size 9 --host 12",
                "net.onnx --autograd --context-mb 1800"),
    "predict ": ("net.onnx --device T4 --precision all",),
    "compare": ("net.onnx bad.onnx --device A100,cpu --batch 1,5000",
                "net.onnx --phase train --mig full,1g.5gb", "net.onnx --autograd --context-mb 900"),
    "sweep": ("net.onnx --batch 1:8", "net.onnx --batch 1:2 --device cpu",
              "net.onnx --batch 64 --power-limit 150:300"),
    "choose": (f"net.onnx --devices A100,T4 --by cost --prices {PRICES} --dataset-size 9",
               f"net.onnx --devices L4 --by carbon --carbon {CARBON} --region FR",
               "net.onnx --devices H100-NVL-94GB",
               "net.onnx --devices T4 --slo-ms 0.0001"),
    "check": ("budgets.toml", "first.toml --write net.onnx"),
    "cost": (f"net.onnx --prices {PRICES} --idle-hours 2 --g-per-kwh 50",
             "net.onnx --mig 1g.5gb --phase train --epochs 3"),
    "mig": ("net.onnx --slo-ms 50",),
    "request": ("net.onnx --slo-ms 50 --batch 4", "net.onnx --format slurm --no-slices"),
    "mig plan": ("net.onnx net.onnx bad.onnx",),
    "share": ("net.onnx net.onnx --mps 30,40", "net.onnx --copies 2 --sharing time-slicing",
              "net.onnx net.onnx --slices 3g.20gb,4g.20gb"),
    "explain": ("net.onnx", "net.onnx --phase train", "net.onnx --mig 1g.5gb"),
    "diff": ("net.onnx --device A100,H100", "net.onnx --mig full,1g.5gb"),
    "what-if": ("net.onnx",),
    "parallel": ("net.onnx --gpus 4", "net.onnx --tensor 2 --pipeline 2 --phase train"),
    "pipeline": ("stages.toml --tree", "stages.toml --offload --device L4", "--list"),
    "llm": ("llama.json --device L4", "llama.json --tensor-parallel 2 --software eager",
            "llama.json --context-mb 600"),
    "graph": ("net.onnx --tree",),
    "measure": (f"net.onnx {QUICK}", f"net.onnx {QUICK} --compare --operators 2"),
    "calibrate": ("rows.csv --save mine.toml",),
    "devices": ("", "mine.toml"),
    "hosts": ("",),
    "models": ("",),
    "doctor": ("",),
    "explore": ("space.toml --trials 2",),
    "plan show": ("plan.csv",),
    "plan run": ("plan.csv --dry-run",),
    "plan check": ("plan.csv --assume a100x4",),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import torch

    folder = tmp_path_factory.mktemp("documents")
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)]
    net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 8)).eval()
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    image = (torch.zeros(1, 3, 32, 32),)
    torch.onnx.export(net, image, folder / "net.onnx", dynamo=False, **names)
    (folder / "bad.onnx").write_text("nonsense")
    (folder / "llama.json").write_text(json.dumps(LLAMA))
    (folder / "space.toml").write_text(SPACE)
    (folder / "stages.toml").write_text(STAGES)
    (folder / "budgets.toml").write_text(BUDGETS)
    (folder / "rows.csv").write_text("model,batch,latency_ms\nnet.onnx,8,5.0\nnet.onnx,64,9.0\n")
    (folder / "plan.csv").write_text("Experiment,Workload,File,Params\n1,1,echo,a\n1,2,echo,b\n")
    return folder


def document(line: str) -> dict:
    """Run a command, and return its document, which its schema allows."""
    answer = CliRunner().invoke(app, [*line.split(), "--json"])
    assert answer.exit_code in (0, 1, 2), (line, answer.output)
    found = json.loads(answer.stdout)
    checked(found, line)
    return found


def checked(found: dict, line: str) -> None:
    name = re.fullmatch(r"dippm\.([\w-]+)/\d+", found["schema"])[1]
    name = {"mig": "choose"}.get(name, name)
    schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMAS["$defs"]}
    errors = [
        f"{line}: {'/'.join(map(str, e.absolute_path))}: {e.message[:200]}"
        for e in Draft202012Validator(schema).iter_errors(found)
    ]
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("command", sampled(COMMANDS, pytest.mark.nightly(part="answers"), every=3))
def test_a_command_prints_what_its_schema_allows(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    if "mine.toml" in COMMANDS[command] and not Path("mine.toml").exists():
        document("calibrate rows.csv --save mine.toml")
    for words in COMMANDS[command]:
        found = document(f"{command} {words}")
        assert found["schema"] != "dippm.error/1", (words, found)
        Draft202012Validator(SCHEMAS).validate(found)


def test_a_measurement_beside_what_was_foretold_has_a_schema_on_any_processor(folder, monkeypatch):
    """Of processors that a checkpoint knows there is a prediction, of others none."""
    monkeypatch.chdir(folder)
    foretold = document("predict net.onnx --device cpu")
    found = document(f"measure net.onnx {QUICK} --compare")
    del foretold["schema"]
    for prediction in (foretold, None):
        checked({**found, "prediction": prediction}, "measure --compare")


def test_errors_and_an_empty_store_have_schemas_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for line in ("predict none.onnx", "conquer", "predict net.onnx --device nothing"):
        assert document(line)["schema"] == "dippm.error/1"
    assert document(f"runs --store sqlite:///{folder}/store.db")["runs"] == []


def found_by(name: str, line: str) -> dict:
    """Run a command whose document is of this name, and return it."""
    found = document(line)
    assert found["schema"] == f"dippm.{name}/1", (line, found)
    Draft202012Validator(SCHEMAS).validate(found)
    return found


def test_what_is_said_of_runs_in_a_store(store_file, tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    monkeypatch.setenv("DIPPM_SPOOL", str(spool))
    told = {"batch": "8", "precision": "fp32", "device": PREDICTION["conditions"]["device"]}
    folder = RunFolder(make_run(spool, params=told, prediction=PREDICTION))
    for number in range(20):
        at = START_NS + (3 + number) * 1_000_000_000
        folder.span(Span(number + 5, "forward", at, at + 500_000_000))
    folder.close()
    uuid = folder.path.name
    shared = kept(spool, "0_A", 100, 20.0, SHARED)
    kept(spool, "0_B", 100, 20.0, SHARED)
    at = f"--store {store_file}"
    assert len(found_by("runs-attached", f"runs --attach {at}")["attached"]) == 3
    assert found_by("runs-one", f"runs {uuid} {at}")["comparison"] is None
    line = f"compare-run {uuid} --span forward {at}"
    assert "accepted" not in found_by("compare-run", line)
    assert found_by("compare-run", f"{line} --accept {tmp_path}/set")["accepted"] is True
    assert found_by("runs-one", f"runs {uuid} {at}")["comparison"]["uuid"] == uuid
    assert len(found_by("runs", f"runs {at}")["runs"]) == 3
    line = f"compare-run {shared} --co-located {at}"
    assert found_by("compare-collocated", line)["runs"][0]["alone"] is None
    kept(spool, "alone", 200, 10.0, SOLO)
    assert found_by("compare-collocated", line)["runs"][0]["slowdown"] == pytest.approx(2)
    trace = tmp_path / "trace.json"
    words = ["export-trace", uuid, "--out", str(trace), "--store", str(store_file)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert found_by("verify-trace", f"verify-trace {trace}")["spans"] == 24


def test_what_is_said_of_an_import(store_file, tmp_path, monkeypatch):
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    made(tmp_path / "old.db")
    line = f"import {tmp_path}/old.db --store {store_file}"
    assert found_by("import", line)["attached"] == 2
    assert len(found_by("import", line)["imported_before"]) == 2
    made(tmp_path / "damaged.db", [(UUID, 1.0, "time", "time", b"{", "sec", "f")])
    assert found_by("import", f"import {tmp_path}/damaged.db --store {store_file}")["notes"]


def test_what_is_said_of_a_collected_set(checkpoint_folder, tmp_path):
    from dataset.collected.join import build

    for energy in (True, False):
        records = [
            row | {"device": "A100-40GB", "device_kind": "cuda"}
            for row in collected_rows.rows(energy=energy)
        ]
        collected_rows.write(tmp_path / f"set-{energy}", records)
    absent = found_by("report", f"report {tmp_path}/set-False --no-predict")
    assert absent["distributions"]["energy_j"]["absent"]
    collected_rows.write_graphs(tmp_path / "graphs")
    build(tmp_path / "set-True", tmp_path / "graphs", tmp_path / "joined", workers=1)
    words = f"--joined {tmp_path}/joined --checkpoint {checkpoint_folder}"
    assert found_by("report", f"report {tmp_path}/set-True {words}")["predictions"]["errors"]


def test_what_the_selftests_say(monkeypatch):
    """Small ones; whether the costs keep their targets here is not the question."""
    short = partial(selftest.Plan, rates_hz=(10.0,), watch_s=0.1)
    monkeypatch.setattr(selftest, "Plan", short)
    line = "selftest overhead --sleep-s 0.05 --sort-mb 0 --matmul 0 --repeats 1 --quiet"
    assert found_by("selftest-overhead", line)["figures"][0]["low"] is None
    monkeypatch.setenv("DIPPM_ATTACH", "now")  # at once, however busy this machine is
    line = "selftest tracking --seconds 0.1 --repeats 2 --quiet"
    assert found_by("selftest-run", line)["figures"][0]["low"] is not None


def test_what_is_said_of_runs_and_plans_that_were_run(tmp_path, monkeypatch):
    desk = Desk(tmp_path)
    desk.rows("1,1,,,-,-,echo,-,hello", "1,2,,,-,-,false,-,")
    for name, code, line in (
        ("run", 3, "run --json -- sh -c 'exit 3'"),
        ("run", 0, "track --json true"),
        ("plan-outcome", 1, "plan run plan.csv --json"),
    ):
        words = [sys.executable, "-m", "dippm", *shlex.split(line)]
        given = {"cwd": desk.folder, "env": desk.environment, "capture_output": True}
        answer = subprocess.run(words, text=True, timeout=240, **given)
        assert answer.returncode == code, (line, answer.stderr)
        found = json.loads(answer.stdout)
        assert found["schema"] == f"dippm.{name}/1"
        assert (answer.stdout.count("\n") == 1) == (name == "run")
        Draft202012Validator(SCHEMAS).validate(found)
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.state))
    monkeypatch.setenv("DIPPM_SPOOL", str(desk.spool))
    assert found_by("plan-recover", f"plan recover {desk.plan}")["done"] == []
    desk.rows("1,1,,,-,-,sh -c,-,'echo begun; sleep 1000'")
    scheduler = desk.start()
    try:
        next_line(scheduler, "line")
        scheduler.kill()
        scheduler.wait()
        assert found_by("plan-recover", f"plan recover {desk.plan}")["done"]
    finally:
        desk.clear()


def test_every_schema_is_one_and_every_key_of_it_says_what_it_is():
    Draft202012Validator.check_schema(SCHEMAS)

    def keys(schema: dict, path: str):
        for name, one in schema.get("properties", {}).items():
            yield f"{path}.{name}", one
            yield from keys(one, f"{path}.{name}")
        for inner in (schema.get("items"), *schema.get("anyOf", ())):
            if isinstance(inner, dict):
                yield from keys(inner, path)

    for name, schema in SCHEMAS["$defs"].items():
        assert schema["title"], name
        silent = [path for path, one in keys(schema, name) if not one.get("description")]
        assert not silent


def test_a_document_that_breaks_its_schema_is_found(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = document("predict net.onnx")
    for change in ({"fits": "yes"}, {"latency": 3.0}, {"schema": "dippm.compare/1"}):
        with pytest.raises(AssertionError):
            checked({**found, **change}, "predict")


def test_the_page_of_the_documentation_has_every_key():
    from scripts.site.documents import pages

    ((_, text),) = pages().values()
    for name, schema in SCHEMAS["$defs"].items():
        assert f"\n## {name}\n" in text
        section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for key in schema["properties"]:
            assert f"| `{key}` |" in section, (name, key)
