"""One bad model does not lose the rest; models may bring inputs and batches of their own."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.devices import find
from dippm.errors import (
    ConditionsError,
    ModelFileError,
    UnknownNameError,
    UnsupportedPrecisionError,
)
from dippm.estimate.conditions import Conditions, same_arithmetic, supported_precisions
from dippm.estimate.model_list import Candidate, ModelListError, batches_of, candidates_of


@pytest.fixture
def bad_file(tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_text("nonsense")
    return path


@pytest.fixture
def any_size_file(tmp_path):
    import torch

    path = tmp_path / "net.pt"
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), path)
    return path


def test_a_bad_model_is_a_row_with_its_reason(onnx_file, bad_file):
    table = dippm.compare([bad_file, onnx_file, "none.onnx"], batch=[1, 8])
    assert [p.provenance.source for p in table] == ["small.onnx"] * 2
    assert [(f.source, f.conditions) for f in table.failures] == [
        ("bad.onnx", None),
        ("none.onnx", None),
    ]
    rows = table.rows()
    assert [row["source"] for row in rows] == ["bad.onnx", "small.onnx", "small.onnx", "none.onnx"]
    assert [row["error"] is None for row in rows] == [False, True, True, False]
    assert "unknown format" in rows[0]["error"]
    assert rows[0]["latency_ms"] is None


def test_a_point_that_cannot_be_predicted_leaves_the_others(onnx_file):
    table = dippm.compare([onnx_file], device=["cpu", "A100"], precision=["fp32", "fp16"])
    assert [(p.conditions.device.name, p.conditions.precision) for p in table] == [
        ("CPU-AMD-EPYC-2c", "fp32"),
        ("A100-40GB", "fp32"),
        ("A100-40GB", "fp16"),
    ]
    (failure,) = table.failures
    assert failure.conditions == Conditions(device=find("cpu"), precision="fp16")
    assert "fp16" in failure.error.message
    assert [row["error"] is None for row in table.rows()] == [True, False, True, True]


def test_strict_raises(onnx_file, bad_file):
    with pytest.raises(ModelFileError):
        dippm.compare([onnx_file, bad_file], strict=True)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"device": "A1000"}, UnknownNameError),
        ({"batch": 0}, ConditionsError),
        ({"precision": "fp12"}, ConditionsError),
        ({"mig": "9g.99gb"}, UnknownNameError),
        ({"device": []}, ConditionsError),
        ({"mig": []}, ConditionsError),
        ({"precision": ()}, ConditionsError),
        ({"batch": range(0)}, ConditionsError),
    ],
)
def test_what_is_wrong_for_every_model_is_raised(onnx_file, wrong, error):
    with pytest.raises(error):
        dippm.compare([onnx_file], **wrong)


def test_a_fault_of_ours_in_one_model_does_not_lose_the_rest(onnx_file, monkeypatch):
    from dippm.estimate import options

    read = options.read_graph

    def faulty(source, *arguments, **given):
        if source == "faulty":
            raise ZeroDivisionError("division by zero")
        return read(source, *arguments, **given)

    monkeypatch.setattr(options, "read_graph", faulty)
    table = dippm.compare(["faulty", onnx_file])
    assert len(table) == 1
    assert "ZeroDivisionError" in table.failures[0].error.message
    assert "report" in table.failures[0].error.hint


def test_candidates_bring_their_own_input_and_batches(any_size_file):
    own = Candidate(any_size_file, "3,64,64", (2, 4))
    table = dippm.compare([own, any_size_file], batch=3, input="3,32,32")
    assert [(p.conditions.batch, p.graph.inputs[0].shape) for p in table] == [
        (2, (2, 3, 64, 64)),
        (4, (4, 3, 64, 64)),
        (3, (3, 3, 32, 32)),
    ]


def test_two_files_of_one_name_are_told_apart(onnx_file, tmp_path):
    other = tmp_path / onnx_file.name
    other.write_bytes(onnx_file.read_bytes())
    table = dippm.compare([onnx_file, other])
    assert [p.provenance.source for p in table] == [str(onnx_file), str(other)]


def test_objects_of_one_class_are_told_apart():
    import torch

    modules = [torch.nn.Sequential(torch.nn.Linear(8, n)) for n in (2, 4)]
    table = dippm.compare(modules, input=(8,))
    assert [p.provenance.source for p in table] == ["Sequential #1", "Sequential #2"]


def test_sorting_puts_failures_last_and_csv_has_them(onnx_file, bad_file):
    table = dippm.compare([bad_file, onnx_file], batch=[4096, 1]).sorted_by("memory_mb")
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["batch"] for row in rows] == ["1", "4096", ""]
    assert float(rows[0]["latency_ms"]) == table[0].latency_ms
    assert "unknown format" in rows[-1]["error"]


def test_no_cell_is_a_formula(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("=1+1.onnx").write_bytes(b"no model")
    table = dippm.compare(["=1+1.onnx"])
    (row,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert row["source"] == "'=1+1.onnx"
    assert table.rows()[0]["source"] == "=1+1.onnx"


def test_all_precisions_are_those_of_the_hardware(onnx_file):
    table = dippm.compare([onnx_file], device=["P4", "T4", "A100", "cpu"], precision="all")
    found: dict[str, list[str]] = {}
    for p in table:
        found.setdefault(p.conditions.device.name, []).append(p.conditions.precision)
    assert found == {
        "P4": ["fp32", "fp32-ieee", "fp16", "amp"],
        "T4": ["fp32", "fp32-ieee", "fp16", "amp"],
        "A100-40GB": ["fp32", "fp32-ieee", "tf32", "fp16", "bf16", "amp", "amp-bf16"],
        "CPU-AMD-EPYC-2c": ["fp32"],
    }
    assert not table.failures
    reasons = {(f.device, f.precision): f.error.message for f in table.absent}
    assert [p for device, p in reasons if device == "T4"] == ["tf32", "bf16", "amp-bf16"]
    assert "no hardware for bf16" in reasons["T4", "bf16"]
    assert "not trained for fp16" in reasons["CPU-AMD-EPYC-2c", "fp16"]
    assert not any(device == "A100-40GB" for device, _ in reasons)
    row = table.rows()[-1]
    assert (row["precision"], row["latency_ms"], row["batch"]) == ("amp-bf16", None, None)
    assert row["error"]
    assert list(supported_precisions(find("A100"))) == found["A100-40GB"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FP16", "fp16"),
        ("Amp", "amp"),
        ("BF16", "bf16"),
        ("float32", "fp32"),
        ("AMP_BF16", "amp-bf16"),
    ],
)
def test_case_does_not_matter(written, meant):
    conditions = Conditions(device=find("a100"), precision=written, mode="Eager", timer="Wall")
    assert (conditions.precision, conditions.mode, conditions.timer) == (meant, "eager", "wall")


def test_a_wrong_precision_is_not_guessed():
    with pytest.raises(ConditionsError, match="fp61") as caught:
        Conditions(device=find("A100"), precision="fp61")  # type: ignore[arg-type]
    assert "Did you mean fp16?" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", (8,)),
        ("1,8, 32", (1, 8, 32)),
        ("1:8", (1, 2, 4, 8)),
        ("3:20", (3, 4, 8, 16, 20)),
        ("8:32:8", (8, 16, 24, 32)),
        ("1,1:4", (1, 2, 4)),
        ("5:5", (5,)),
    ],
)
def test_batches(text, sizes):
    assert batches_of(text) == sizes


@pytest.mark.parametrize("text", ["", "many", "8:1", "0:4", "1:8:0", "1:2:3:4", "1:1000000:1"])
def test_wrong_batches_are_refused(text):
    with pytest.raises(ConditionsError) as caught:
        batches_of(text)
    assert "1:1024" in caught.value.hint


def test_a_list_of_models():
    assert candidates_of("# mine\na b.onnx\n\ntimm:resnet18\n") == (
        Candidate("a b.onnx"),
        Candidate("timm:resnet18"),
    )
    table = 'Model,batch,input,framework\nx.onnx,"1,8","3,224,224",\ny.pb,,,tensorflow\n'
    assert candidates_of(table) == (
        Candidate("x.onnx", "3,224,224", (1, 8)),
        Candidate("y.pb", framework="tensorflow"),
    )
    assert candidates_of("model\tinput\nx.onnx\t3,224,224\n") == (Candidate("x.onnx", "3,224,224"),)


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "model,size\na,1", "model,model\na,b", "model,input\na,3,224,224",
     "model,batch\na,many", "model,input\n,3"],
)  # fmt: skip
def test_a_wrong_list_says_what_is_wrong(text):
    with pytest.raises(ModelListError) as caught:
        candidates_of(text)
    assert caught.value.hint


def run(*words, **options):
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def test_the_command_keeps_what_works(onnx_file, any_size_file, bad_file, tmp_path):
    page, table = tmp_path / "out.html", tmp_path / "out.csv"
    listed = f'model,batch,input\n{any_size_file},"1,8","3,64,64"\n{bad_file},,\n'
    words = ["compare", onnx_file, "--from", "-", "--mig", "full,1g.5gb", "--timer", "kernel"]
    words += ["--html", page, "--csv", table, "--sort", "latency_ms"]
    answer = run(*words, input=listed)
    assert answer.exit_code == 0, answer.output
    assert "failed: bad.onnx" in answer.stderr
    assert "bad.onnx" not in answer.stdout
    assert "1g.5gb" in answer.stdout
    assert "unknown format" in page.read_text()
    assert len(table.read_text().splitlines()) == 1 + 2 + 4 + 1
    assert run(*words, "--strict", input=listed).exit_code == 1
    rows = json.loads(run(*words, "--json", input=listed).stdout)["rows"]
    assert len(rows) == 7
    assert rows[0]["error"] is None
    assert rows[-1]["error"]["type"] == "UnknownFormatError"
    assert rows[-1]["error"]["hint"]


def test_the_command_fails_if_everything_failed(bad_file):
    answer = run("compare", bad_file)
    assert answer.exit_code == 1
    assert "failed: bad.onnx" in answer.stderr
    assert answer.stdout == ""


def test_no_model_is_a_usage_error(tmp_path):
    assert run("compare").exit_code == 2
    lost = run("compare", "--from", tmp_path / "none.txt", "--json")
    assert lost.exit_code == 1
    assert json.loads(lost.stdout)["error"]["type"] == "ModelListError"


def test_predict_shows_every_precision_in_one_answer(onnx_file):
    answer = run("predict", onnx_file, "--device", "T4", "--precision", "all")
    assert answer.exit_code == 0, answer.output
    words = [line.split()[0] for line in answer.stdout.splitlines() if line.strip()]
    assert [word for word in words if word.startswith(("fp", "amp"))] == [
        "fp32",
        "fp32-ieee",
        "fp16",
        "amp",
    ]
    documents = json.loads(run("predict", onnx_file, "-p", "FP32,FP16", "--json").stdout)[
        "predictions"
    ]
    assert [d["conditions"]["precision"] for d in documents] == ["fp32", "fp16"]


@pytest.mark.parametrize("option", ["--device", "--precision", "--mig", "--batch"])
def test_a_list_of_nothing_is_an_error(onnx_file, option):
    answer = run("compare", onnx_file, option, ",", "--json")
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["error"]["type"] == "ConditionsError"


def test_hostile_lists_end_with_an_error(tmp_path):
    (tmp_path / "list").mkdir()
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "escape").write_text("\x1b[2Jmodel.onnx\n")
    for name in (tmp_path / "list", "/dev/zero", tmp_path / "noise", tmp_path / "escape"):
        answer = run("compare", "--from", name)
        assert answer.exit_code == 1, answer.output
        assert "\x1b" not in answer.output
        assert "Traceback" not in answer.output


def test_what_fails_cannot_pass_for_another_line(tmp_path):
    answer = run("compare", f"{tmp_path}/x\n failed: other.onnx: because.onnx")
    assert answer.exit_code == 1
    assert "\n failed: other" not in answer.stderr


def test_a_framework_for_all_models(onnx_file):
    answer = run("compare", onnx_file, "--framework", "paddle", "--json")
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["rows"][0]["error"]["message"]
    assert run("compare", onnx_file, "--framework", "onnx").exit_code == 0


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("P100", "tf32"),
        ("P100", "bf16"),
        ("T4", "amp-bf16"),
        ("V100", "bf16"),
        ("MI250X", "tf32"),
        ("MI300X", "tf32"),
    ],
)
def test_what_the_hardware_lacks_is_refused(device, precision):
    with pytest.raises(UnsupportedPrecisionError, match=f"no hardware for {precision}") as caught:
        Conditions(device=find(device), precision=precision)
    for has in supported_precisions(find(device)):
        assert has in caught.value.hint


def test_a_precision_that_one_device_lacks_leaves_the_others(onnx_file):
    asked = {"device": ["T4", "A100"], "precision": ["fp16", "tf32"]}
    table = dippm.compare([onnx_file], **asked)
    found = [(p.conditions.device.name, p.conditions.precision) for p in table]
    assert found == [("T4", "fp16"), ("A100-40GB", "fp16"), ("A100-40GB", "tf32")]
    (failure,) = table.failures
    assert (failure.device, failure.precision) == ("T4", "tf32")
    assert isinstance(failure.error, UnsupportedPrecisionError)
    with pytest.raises(UnsupportedPrecisionError):
        dippm.compare([onnx_file], **asked, strict=True)
    with pytest.raises(UnsupportedPrecisionError):
        dippm.compare([onnx_file], device="T4", precision=["tf32", "bf16"])


def test_all_precisions_of_one_model_name_those_that_are_not_there(onnx_file):
    command = ["predict", str(onnx_file), "--device", "T4", "--precision", "all"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0
    documents = json.loads(done.stdout)["predictions"]
    absent = {d["conditions"]["precision"]: d["error"] for d in documents if "error" in d}
    assert set(absent) == {"tf32", "bf16", "amp-bf16"}
    assert absent["tf32"]["type"] == "UnsupportedPrecisionError"
    assert all(d["latency_ms"] is None for d in documents if "error" in d)
    assert "T4 has no hardware for tf32" in CliRunner().invoke(app, command).stderr


def test_fp32_is_ieee_where_there_is_no_tf32():
    assert same_arithmetic(find("T4"), "fp32") == ("fp32", "fp32-ieee")
    assert same_arithmetic(find("A100"), "fp32") == ("fp32",)
    assert same_arithmetic(find("T4"), "fp16") == ("fp16",)


def test_a_slice_that_is_not_known_is_not_said_to_be_too_small():
    from dippm.estimate.prediction import _advise

    mig, reason = _advise(107_553.0, Conditions(device=find("B200")))
    assert mig is None
    assert "7g.180gb of B200" in reason
    assert "not known" in reason
    with pytest.raises(UnknownNameError) as caught:
        dippm.compare(["none.onnx"], device="B200", mig="7g.180gb")
    assert "not known here" in caught.value.hint
