"""Every bad input is a typed error with a next step, exit code 1 and one JSON document."""

from __future__ import annotations

import json
import os
import pickle
import signal
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.errors import (
    ConditionsError,
    ConversionError,
    InputShapeError,
    ModelFileError,
    ModelNotFoundError,
    UnknownFormatError,
    UnknownNameError,
    UnsafeModelError,
)

IMAGE = "3,32,32"


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return Path.touch, (self.proof,)


@pytest.fixture
def fails(checkpoint_folder):
    """Ask API and command line, check the error's form on both, return the error."""

    def ask(model, error_type, *, device="A100", checkpoint=checkpoint_folder, **asked):
        with pytest.raises(error_type) as caught:
            dippm.predict(model, device=device, checkpoint=checkpoint, **asked)
        words = ["predict", model, "--device", device, "--checkpoint", checkpoint, "--json"]
        for name, value in asked.items():
            words += ["--" + name.replace("_", "-"), value]
        answer = CliRunner().invoke(app, [str(word) for word in words])
        assert answer.exit_code == 1
        document = json.loads(answer.stdout)
        assert list(document) == ["schema", "error"]
        assert document["error"]["type"] == type(caught.value).__name__
        assert document["error"]["message"]
        assert document["error"]["hint"], "every error names the next step"
        return caught.value

    return ask


def test_missing_file(fails, tmp_path):
    assert "no.onnx" in fails(tmp_path / "no.onnx", ModelNotFoundError).message


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".keras", ".h5", ".json", ".txt"])
def test_text_in_a_model_file(fails, tmp_path, suffix):
    path = tmp_path / f"notes{suffix}"
    path.write_text("These are notes.\n")
    fails(path, UnknownFormatError)


@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_empty_file(fails, tmp_path, suffix):
    path = tmp_path / f"empty{suffix}"
    path.touch()
    fails(path, ModelFileError)


def test_truncated_onnx(fails, onnx_file, tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(onnx_file.read_bytes()[:-200])
    fails(path, ModelFileError)


def test_truncated_archive(fails, tmp_path):
    whole = tmp_path / "whole.pt"
    torch.save(torch.nn.Linear(4, 4), whole)
    path = tmp_path / "cut.pt"
    path.write_bytes(whole.read_bytes()[:-300])
    fails(path, ModelFileError, input="4")


def test_state_dict(fails, tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(torch.nn.Linear(4, 4).state_dict(), path)
    error = fails(path, ModelFileError, input="4")
    assert "state" in str(error)


@pytest.mark.parametrize("legacy", [False, True])
def test_malicious_pickle_is_not_run(fails, tmp_path, legacy):
    proof, path = tmp_path / "ran", tmp_path / "model.pt"
    torch.save(Trap(proof), path, _use_new_zipfile_serialization=not legacy)
    fails(path, UnsafeModelError, input="4")
    assert not proof.exists()


def test_the_trap_would_have_sprung(tmp_path):
    proof = tmp_path / "ran"
    pickle.loads(pickle.dumps(Trap(proof)))
    assert proof.exists()


def test_malicious_exported_program_is_not_run(fails, tmp_path):
    proof, path = tmp_path / "ran", tmp_path / "model.pt2"
    program = torch.export.export(torch.nn.Linear(4, 4), (torch.zeros(2, 4),))
    torch.export.save(program, path)
    poisoned = tmp_path / "poisoned.pt2"
    trap = tmp_path / "trap.pt"
    torch.save(Trap(proof), trap)
    swapped = 0
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(poisoned, "w") as new:
        for name in old.namelist():
            is_pickle = name.endswith(".pt") or "sample_inputs" in name
            swapped += is_pickle
            new.writestr(name, trap.read_bytes() if is_pickle else old.read(name))
    assert swapped
    with pytest.raises(ModelFileError) as caught:
        dippm.read_graph(poisoned)
    assert "may not" not in caught.value.message  # as the sandbox would say of what was tried
    assert not proof.exists()


def test_unsupported_operator_is_named(tmp_path, checkpoint_folder):
    from onnx import TensorProto, helper, save

    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x", "y")]
    model = helper.make_model(
        helper.make_graph([node], "custom", value[:1], value[1:]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)],
    )
    save(model, path := tmp_path / "custom.onnx")
    try:
        told = " ".join(dippm.predict(path, checkpoint=checkpoint_folder).warnings)
    except ConversionError as error:
        told = str(error)
    assert "Frobnicate" in told


@pytest.mark.parametrize("shape", ["3,32", "3,32,32,32", "3"])
def test_wrong_rank(fails, onnx_file, shape):
    fails(onnx_file, InputShapeError, input=shape)


@pytest.mark.parametrize("shape", ["3,zwei,32", "3,-1,32", "3,0,32", "3,1.5,32", ";", "y=3,32,32"])
def test_sizes_that_are_none(fails, onnx_file, shape):
    fails(onnx_file, InputShapeError, input=shape)


@pytest.fixture
def table_per_sample_file(fixed_batch_file, tmp_path):
    """A file for four samples that adds other numbers to each: no other batch has a meaning."""
    model = onnx.load(fixed_batch_file)
    table = onnx.numpy_helper.from_array(np.ones((4, 10), np.float32), "table")
    model.graph.initializer.append(table)
    model.graph.node[-1].output[0] = "product"
    model.graph.node.append(onnx.helper.make_node("Add", ["product", "table"], ["y"]))
    onnx.save(model, tmp_path / "table.onnx")
    return tmp_path / "table.onnx"


def test_batch_baked_in(fails, table_per_sample_file):
    error = fails(table_per_sample_file, dippm.DippmError, batch=32)
    assert "4" in str(error)


@pytest.mark.parametrize("batch", [0, -1, 10**9])
def test_batch_out_of_range(fails, onnx_file, batch):
    fails(onnx_file, ConditionsError, batch=batch)


@pytest.mark.parametrize(("asked", "value"), [("precision", "fp31"), ("mode", "fast")])
def test_unknown_conditions(fails, onnx_file, asked, value):
    assert "Known:" in fails(onnx_file, ConditionsError, **{asked: value}).hint


def test_a_context_that_is_no_memory(fails, onnx_file):
    for wrong in ("-1", "nan", "inf", "1e7", "1_800", "", "cuda-12", "x" * 5000, "\x1b[2J"):
        error = fails(onnx_file, ConditionsError, context_mb=wrong)
        assert "lazy" in error.hint
        assert len(error.message) < 200
        assert error.message.isprintable()
    assert "Did you mean lazy?" in fails(onnx_file, ConditionsError, context_mb="lasy").hint


def test_unknown_names_get_a_guess(fails, onnx_file):
    assert "A100" in fails(onnx_file, UnknownNameError, device="A1000").hint
    assert "1g.5gb" in fails(onnx_file, UnknownNameError, mig="1g.6gb").hint
    assert "onnx" in fails(onnx_file, UnknownNameError, framework="onyx").hint
    fails(onnx_file, UnknownNameError, checkpoint="hybird")
    assert len(fails(onnx_file, UnknownNameError, device="A" * 5000).message) < 200


def test_slice_of_a_gpu_without_slices(fails, onnx_file):
    assert "cannot be sliced" in fails(onnx_file, UnknownNameError, device="T4", mig="1g.5gb").hint


@pytest.mark.parametrize(
    ("asked", "value"),
    [("timeout_s", 0.0), ("timeout_s", float("nan")), ("memory_limit_mb", 0)],
)
def test_limits_that_are_none(fails, onnx_file, asked, value):
    assert asked in fails(onnx_file, ConditionsError, **{asked: value}).hint


def test_no_time_limit(onnx_file, checkpoint_folder):
    words = ["predict", onnx_file, "--checkpoint", checkpoint_folder, "--timeout-s", "inf"]
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, answer.output


def test_time_limit(fails, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Sequential(torch.nn.Linear(4, 4)), path)
    error = fails(path, ConversionError, input="4", timeout_s=0.01)
    assert "longer than 0.01 s" in error.message


def test_memory_limit(fails, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Sequential(torch.nn.Linear(4, 4)), path)
    error = fails(path, ConversionError, input="4", memory_limit_mb=64)
    assert "64 MB" in str(error)


def test_converter_crash(fails, onnx_file, monkeypatch, tmp_path):
    monkeypatch.setenv("DIPPM_CACHE_DIR", str(tmp_path))
    from dippm.model.frontends import worker

    def killed(self, request, *, timeout_s):
        os.kill(self._pipes.pid, signal.SIGKILL)
        return convert(self, request, timeout_s=timeout_s)

    convert = worker.Worker.convert
    monkeypatch.setattr(worker.Worker, "convert", killed)
    assert "killed" in fails(onnx_file, ConversionError).message


def test_a_path_may_begin_at_home(onnx_file, tmp_path, monkeypatch):
    """In every argument that is a path, of Python and of the command line."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.onnx").write_bytes(onnx_file.read_bytes())
    (tmp_path / "list.txt").write_text("~/m.onnx\n")
    (tmp_path / "prices.toml").write_text("[per_hour]\nA100-40GB = 1.5\n")
    known = dippm.predict(onnx_file).latency_ms
    assert dippm.predict("~/m.onnx").latency_ms == known
    assert dippm.predict(Path("~/m.onnx")).latency_ms == known
    assert next(iter(dippm.compare(["~/m.onnx"]))).latency_ms == known
    assert dippm.explain("~/m.onnx").latency_ms == known
    assert dippm.choose("~/m.onnx", devices="A100", by="cost", prices="~/prices.toml").best
    for words in (
        ["predict", "~/m.onnx", "--html=~/page.html"],
        ["compare", "--from", "~/list.txt", "--csv", "~/rows.csv"],
        ["choose", "~/m.onnx", "--devices", "A100", "--by", "cost", "--prices=~/prices.toml"],
        ["graph", "~/m.onnx"],
    ):
        answer = CliRunner().invoke(app, words)
        assert answer.exit_code == 0, answer.output
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "rows.csv").exists()
    with pytest.raises(ModelNotFoundError, match="~nobody-of-this-name"):
        dippm.predict("~nobody-of-this-name/m.onnx")


def test_what_is_no_model_says_what_it_is(onnx_file):
    with pytest.raises(UnknownFormatError, match=r"Linear is a class, not a model") as error:
        dippm.predict(torch.nn.Linear, input="3")
    assert error.value.hint == "Give an object of it: Linear(...)."
    with pytest.raises(ConditionsError, match="no model to compare"):
        dippm.compare([])
    with pytest.raises(ConditionsError) as error:
        dippm.predict(onnx_file, mode="tensorrt")
    assert "use runtime=tensorrt" in error.value.hint


def test_several_inputs_may_be_given_in_their_order(tmp_path):
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(33, 334)

        def forward(self, x, y):
            return self.layer(x) @ y.transpose(-1, -2)

    module, tensors = Two().eval(), (torch.randn(1, 12, 33), torch.randn(1, 7, 334))
    named = dippm.predict(module, input={"x": (12, 33), "y": (7, 334)})
    for given in ([(12, 33), (7, 334)], ["12,33", "7,334"], ([12, 33], "7,334"), "0=12,33;1=7,334"):
        assert dippm.predict(module, input=given).graph == named.graph
    onnx_, exported, traced = (tmp_path / n for n in ("m.onnx", "m.pt2", "m.pt"))
    axes = {"p": {0: "n"}, "q": {0: "n"}}
    torch.onnx.export(
        module, tensors, onnx_, dynamo=False, input_names=["p", "q"], dynamic_axes=axes
    )
    torch.export.save(torch.export.export(module, tensors), exported)
    torch.jit.trace(module, tensors).save(traced)
    for path in (onnx_, exported, traced):
        found = dippm.predict(path, input=[(12, 33), (7, 334)], trust=True)
        assert found.graph.macs == named.graph.macs, path
    with pytest.raises(InputShapeError, match="no shape for input y"):
        dippm.predict(module, input=[(12, 33)])
    with pytest.raises(InputShapeError):
        dippm.predict(module, input=[(12, 33), (7, 334), (1, 2)])
    assert dippm.predict(torch.nn.Conv2d(3, 4, 3), input=[3, 32, 32]).latency_ms
    assert dippm.predict(torch.nn.Conv2d(3, 4, 3), input=["3", "32", "32"]).latency_ms
