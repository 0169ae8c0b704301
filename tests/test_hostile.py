"""The matrix of hostile and broken inputs: each case by name, with the answer that it must get.

A case makes an input, calls the command line, and gets a typed error or an answer: exit code,
non-empty hint, one JSON document under --json, two parts without it, never a traceback.

Cases that need what another test file has stand in `ELSEWHERE` with the test that tries them.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.errors import PluginWarning
from dippm.estimate.pretrained import store
from dippm.estimate.pretrained.checkpoint import MAX_HEADER_BYTES, open_weights
from dippm.model.frontends import registry
from tests.samples import sampled

ROOT = Path(__file__).resolve().parents[1]
ESCAPES = "a\x1b[31mred\x07\x9b2J\u202egnp\u2066\r"
"""Colour, bell, clear the screen, right to left, isolate, carriage return."""

LONG = "n" * 300
NO_TEXT = os.fsdecode(b"caf\xe9-\xff")


def run(*words: Any):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(error: str, *words: Any, says: str = "", in_words: bool = True) -> dict[str, str]:
    """Check an error as a document and, if asked, in words; return the document."""
    answer = run(*words, "--json")
    assert answer.exit_code == 1, answer.stdout
    assert "Traceback" not in answer.stderr
    document = json.loads(answer.stdout)
    assert list(document) == ["schema", "error"]
    found: dict[str, str] = document["error"]
    assert found["type"] == error, found
    assert says in found["message"]
    assert found["hint"]
    if not in_words:
        return found
    plain = run(*words)
    assert plain.exit_code == 1
    assert plain.stdout == ""
    assert plain.stderr.startswith("error: ")
    assert len(plain.stderr.splitlines()) >= 2
    assert plain.stderr.replace("\n", "").isprintable()
    assert "Traceback" not in plain.stderr
    return found


def answered(*words: Any) -> Any:
    """Check that a command answers in both forms, and return its document."""
    answer = run(*words, "--json")
    assert answer.exit_code == 0, answer.stdout
    plain = run(*words)
    assert plain.exit_code == 0, plain.stderr
    assert plain.stdout.replace("\n", "").isprintable()
    return json.loads(answer.stdout)


def left_out(*words: Any) -> None:
    """Check that a comparison of one model is a row with a reason."""
    answer = run(*words, "--json")
    assert answer.exit_code == 1
    (row,) = json.loads(answer.stdout)["rows"]
    assert row["error"]
    assert row["latency_ms"] is None
    plain = run(*words)
    assert plain.exit_code == 1
    assert plain.stderr.replace("\n", "").isprintable()
    assert "Traceback" not in plain.stderr


LIFETIME = "frontends/pytorch/test_lifetime.py::"
FILES = "frontends/test_model_files.py::"
CACHE = "frontends/pytorch/test_cache.py::"
UNSAFE = "frontends/pytorch/test_unsafe.py::"
OUTPUT = "unit/cli/test_output.py::"
ELSEWHERE = {
    "the caller is killed, ended or hung up": LIFETIME + "test_a_killed_caller_leaves_nothing",
    "the caller sleeps": LIFETIME + "test_a_worker_ends_itself_when_its_caller_sleeps",
    "the command is ended": LIFETIME + "test_a_command_that_is_ended_says_so",
    "a conversion never ends": LIFETIME + "test_a_time_limit_ends_what_the_worker_started",
    "the worker is killed": "test_bad_input.py::test_converter_crash",
    "the worker lacks memory": "frontends/pytorch/test_worker.py::"
    "test_memory_trouble_retires_the_process",
    "time limits that are none": LIFETIME + "test_time_limits_that_are_none",
    "an infinite time limit": "test_bad_input.py::test_no_time_limit",
    "memory limits that are none": LIFETIME + "test_memory_limits_that_are_none",
    "pipes, sockets and devices as model files": FILES + "test_what_is_no_file_is_not_opened",
    "pipes and devices in folders": FILES + "test_a_folder_with_something_else_in_it",
    "a pipe in a folder that is hashed": FILES + "test_folders_are_hashed_without_waiting",
    "pipes and devices as configurations": FILES + "test_a_config_that_is_no_file",
    "the memory file of the process": FILES + "test_files_that_the_kernel_makes_up_are_empty",
    "archives of 70,000 members": FILES + "test_an_archive_of_very_many_members_is_not_indexed",
    "fields without end": FILES + "test_fields_without_end_are_not_read_to_their_end",
    "files without the right to read": FILES + "test_a_file_that_must_not_be_read",
    "folders without the right to read": FILES + "test_a_folder_that_must_not_be_read",
    "configurations without the right to read": FILES
    + "test_a_configuration_that_must_not_be_read",
    "names too long": FILES + "test_names_that_no_file_has",
    "links out of the model's folder": FILES + "test_a_link_out_of_the_folder_is_not_followed",
    "external data outside": "frontends/onnx/test_bad_files.py::"
    "test_external_data_outside_of_the_folder_is_not_read",
    "damaged entries of the cache": CACHE + "test_a_damaged_entry_counts_as_absent",
    "a pipe in the cache": CACHE + "test_an_entry_that_is_no_file_counts_as_absent",
    "a raw graph that does not hold together": "unit/graph/test_raw_graph.py::"
    "test_what_does_not_hold_together_is_refused",
    "200,000 operators": "frontends/test_large_graphs.py::test_two_hundred_thousand_operators",
    "deep nesting": "frontends/test_large_graphs.py::test_deep_nesting_ends",
    "functions that grow without bound": "frontends/onnx/test_bad_files.py::"
    "test_functions_that_grow_without_bound_are_refused_at_once",
    "a pickle that runs code": UNSAFE + "test_a_malicious_pickle_does_not_run",
    "a .pt2 file that runs code": UNSAFE + "test_a_malicious_pt2_does_not_run",
    "a Keras file that runs code": "frontends/tensorflow/test_bad_input.py::"
    "test_code_in_a_file_does_not_run",
    "damaged Keras and HDF5 files": "frontends/tensorflow/test_bad_input.py::"
    "test_damaged_configurations_have_a_next_step",
    "hidden characters on a terminal": OUTPUT + "test_nothing_hidden_reaches_a_terminal",
    "hints in the words of the command": OUTPUT + "test_hints_speak_the_language_of_the_command",
    "an error without a hint": OUTPUT + "test_every_error_names_the_next_step",
    "an error that nobody foresaw": OUTPUT + "test_the_last_resort_is_one_error_and_a_report",
    "flipped bytes": "frontends/onnx/test_bad_files.py::test_flipped_bytes_give_only_our_errors",
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_cases_that_other_files_try(case):
    file, _, name = ELSEWHERE[case].partition("::")
    assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text()


# Names and places of model files ----------------------------------------------------------------


def a_link_to_itself(folder: Path) -> Path:
    (folder / "loop.onnx").symlink_to(folder / "loop.onnx")
    return folder / "loop.onnx"


def a_link_to_nothing(folder: Path) -> Path:
    (folder / "lost.onnx").symlink_to(folder / "nowhere.onnx")
    return folder / "lost.onnx"


def an_empty_folder(folder: Path) -> Path:
    (folder / "model.onnx").mkdir()
    return folder / "model.onnx"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "model.onnx"


PLACES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "no such file": ("ModelNotFoundError", lambda folder: folder / "no.onnx"),
    "no such folder": ("ModelNotFoundError", lambda folder: folder / "no" / "no.onnx"),
    "below a file": ("ModelNotFoundError", below_a_file),
    "a name of 300 bytes": ("", lambda folder: folder / (LONG + ".onnx")),
    "a path of 10,000 bytes": ("", lambda folder: folder.joinpath(*["d" * 99] * 100)),
    "escapes in a missing name": ("ModelNotFoundError", lambda folder: folder / ESCAPES),
    "escapes in a missing folder": ("ModelNotFoundError", lambda folder: folder / ESCAPES / "x"),
    "lines in a missing name": ("ModelNotFoundError", lambda folder: folder / "a\nerror: b\nc"),
    "a missing name that is no text": ("ModelNotFoundError", lambda folder: folder / NO_TEXT),
    "a link to itself": ("", a_link_to_itself),
    "a link to nothing": ("ModelNotFoundError", a_link_to_nothing),
    "an empty folder": ("UnknownFormatError", an_empty_folder),
    "a config of transformers in no home": ("", lambda _: Path("hf-config:~nobody-here/x")),
    "a config of transformers, too long": ("", lambda _: Path("hf-config:/" + LONG)),
}


@pytest.mark.parametrize("name", sampled(PLACES, pytest.mark.nightly(part="hostile"), every=3))
@pytest.mark.parametrize("command", ["predict", "graph", "compare"])
def test_places_of_models(tmp_path, name, command):
    error, make = PLACES[name]
    words = [command, make(tmp_path)]
    if command == "compare":
        left_out(*words)
        return
    if not error:
        error = json.loads(run(*words, "--json").stdout)["error"]["type"]
        assert issubclass(getattr(dippm.errors, error), dippm.errors.ModelFileError)
    refused(error, *words)


REFUSALS = [errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE]


@pytest.mark.parametrize("number", REFUSALS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("step", ["find", "key"])
def test_what_the_file_system_refuses(onnx_file, monkeypatch, number, step):
    def refuse(*_args, **_kwargs):
        raise OSError(number, os.strerror(number), str(onnx_file))

    where = registry if step == "find" else dippm.frontends.graph_cache
    monkeypatch.setattr(where, step, refuse)
    found = refused("ModelFileError", "predict", onnx_file, says=os.strerror(number))
    assert onnx_file.name in found["message"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_no_right_to_read(onnx_file, tmp_path, what):
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir()
    shutil.copy(onnx_file, path)
    closed = path if what == "file" else path.parent
    closed.chmod(0)
    try:
        refused("ModelFileError", "predict", path)
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("name", [ESCAPES, NO_TEXT, "a\nb", "[b]:smile:[", "-", "é ×"])
def test_odd_names_are_read(onnx_file, tmp_path, name):
    path = tmp_path / f"{name}.onnx"
    shutil.copy(onnx_file, path)
    document = answered("predict", path, "--operators", "2")
    assert document["source"] == path.name
    answered("graph", path)
    assert answered("compare", path)
    page = tmp_path / "page.html"
    assert run("predict", path, "--html", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_odd_names_inside_of_a_model(tmp_path):
    from onnx import TensorProto, helper, save

    node = helper.make_node("Relu", ["x"], ["y"], name=ESCAPES)
    odd = helper.make_node(f"<script>{ESCAPES}[/b]", ["y"], ["z"], domain=ESCAPES)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xz"]
    model = helper.make_model(
        helper.make_graph([node, odd], ESCAPES, value[:1], value[1:]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ESCAPES, 1)],
    )
    save(model, path := tmp_path / "odd.onnx")
    answer = run("graph", path, "--json")
    document = json.loads(answer.stdout)
    if "error" in document:
        refused(document["error"]["type"], "graph", path)
    else:
        answered("graph", path)
        answered("predict", path, "--operators", "9")
        page = tmp_path / "page.html"
        assert run("predict", path, "--html", page).exit_code == 0
        assert "<script>" not in page.read_text()


# Sizes, views and nothing at all ----------------------------------------------------------------


def onnx_model(path: Path, kind: str, sizes: list[int], *, result: list[int] | None = None) -> Path:
    from onnx import TensorProto, helper, save

    shapes = {"x": ["batch", *sizes], "y": ["batch", *(sizes if result is None else result)]}
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    nodes = [helper.make_node(kind, ["x"], ["y"])] if kind else []
    model = helper.make_model(
        helper.make_graph(nodes, "g", value[:1], value[1:] if kind else value[:1]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    save(model, path)
    return path


@pytest.mark.parametrize(
    "sizes",
    [[2**62], [2**62, 2**62], [2**63 - 1], [2**31 - 1, 2**31 - 1], [2**40, 2**20], [2**20] * 3],
    ids=lambda sizes: "×".join(f"2^{size.bit_length()}" for size in sizes),
)
def test_sizes_that_no_machine_holds(tmp_path, sizes):
    path = onnx_model(tmp_path / "huge.onnx", "Relu", sizes)
    refused("InputShapeError", "predict", path)
    refused("InputShapeError", "graph", path)


def test_a_result_that_no_machine_holds(tmp_path):
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    sizes = numpy_helper.from_array(np.array([2**40, 2**40]), "s")
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Expand", ["x", "s"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [sizes],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    save(model, path := tmp_path / "huge.onnx")
    error = json.loads(run("predict", path, "--json").stdout)["error"]["type"]
    assert issubclass(getattr(dippm.errors, error), dippm.errors.ModelFileError)
    refused(error, "predict", path)


@pytest.mark.parametrize("timer", ["wall", "kernel", "wall+copy"])
def test_a_model_that_only_views_its_input(tmp_path, timer):
    path = onnx_model(tmp_path / "view.onnx", "Flatten", [3, 8, 8], result=[192])
    document = answered("predict", path, "--timer", timer, "--operators", "3")
    if timer == "wall+copy":
        assert document["latency_ms"] > 0
    else:
        assert document["latency_ms"] is None
        assert "nothing of the model runs" in document["absent"]["latency_ms"]
    assert document["memory_mb"] > 0
    answered("graph", path)
    assert answered("compare", path)
    assert run("predict", path, "--html", tmp_path / "view.html").exit_code == 0
    cpu = ("--device", "CPU-AMD-EPYC-2c", "--checkpoint", "pmgns-cpu-epyc")
    assert answered("predict", path, *cpu)["latency_ms"] is None


def test_a_model_without_nodes(tmp_path):
    path = onnx_model(tmp_path / "nothing.onnx", "", [3, 8])
    for command in ("predict", "graph"):
        refused("ModelFileError", command, path)
    left_out("compare", path)


def test_a_model_without_operators(tmp_path):
    path = onnx_model(tmp_path / "nothing.onnx", "Identity", [3, 8])
    document = answered("predict", path)
    assert document["latency_ms"] is None
    assert "no operator computes" in document["absent"]["latency_ms"]
    assert any("no operators" in words for words in document["warnings"])
    answered("graph", path)
    assert answered("compare", path)


def test_no_elements(tmp_path):
    import torch

    class Empty(torch.nn.Module):
        def forward(self, x):
            return x[:, :0].relu() @ torch.ones(4, 2)

    answer = dippm.predict(Empty(), input=(6, 4))
    assert answer.to_dict()
    assert str(answer)
    assert answer._repr_html_()


# Input sizes and limits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    sampled([
        "", ";", "=", "x=", "=3", "0", "-1", "1e9", "nan", "٣,٤", "3," * 2000 + "3", "x=3;x=3",
        ESCAPES, NO_TEXT, "9" * 5000, "16777216,16777216,16777216", "value:nan", "fixed:",
    ], pytest.mark.nightly(part="hostile"), every=3),
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_input_sizes(onnx_file, text):
    answer = run("predict", onnx_file, f"--input={text}", "--json")
    document = json.loads(answer.stdout)
    assert answer.exit_code == 1
    assert issubclass(getattr(dippm.errors, document["error"]["type"]), dippm.DippmError)
    assert document["error"]["hint"]


# Checkpoints ------------------------------------------------------------------------------------

MISSING = object()
KINDS = {"hybrid": "hybrid-gpu", "pmgns": "pmgns-cpu-epyc"}
ODD_VALUES = {
    "null": None,
    "a text": "text",
    "a number": 3,
    "true": True,
    "minus one": -1,
    "a list": [1],
    "a mapping": {"a": 1},
    "huge": 10**400,
    "escapes": ESCAPES,
    "missing": MISSING,
}
KEYS = {
    "hybrid": [
        "kind", "sha256", "graph_version", "feature_version", "law", "law.members",
        "law.network_weight", "law.tree_depth", "law.tree_reach", "law.range",
        "law.effects", "law.default_effects", "law.effect_spread", "host", "host.launch_ms",
        "memory", "memory.context_mb", "power", "power.coefficients",
        "intervals", "intervals.latency_ms", "intervals.latency_ms.coefficients",
        "intervals.latency_ms.quantile", "seen", "seen.devices", "seen.often", "seen.batch_range",
        "seen.kernel_classes", "name", "version", "card",
    ],
    "pmgns": [
        "network", "network.hidden", "network.targets", "network.gnn", "network.dropout",
        "conditions", "conditions.devices", "conditions.precision", "residuals",
        "residuals.latency_ms", "residuals.latency_ms.low", "seen", "seen.operators", "seen.batch",
        "absent",
    ],
}  # fmt: skip
MAY_BE = {
    ("host.launch_ms", "a number"), ("memory.context_mb", "a number"),
    ("law.members", "a number"), ("law.tree_depth", "a number"), ("law.tree_reach", "a number"),
    ("network.gnn", "missing"), ("network.dropout", "missing"), ("residuals", "missing"),
    ("network.targets", "missing"), ("network.hidden", "missing"),
    ("residuals.latency_ms", "missing"), ("card", "missing"), ("name", "missing"),
    ("version", "missing"), ("name", "null"), ("version", "null"), ("name", "a text"),
    ("version", "a text"), ("absent", "missing"), ("residuals.latency_ms.low", "minus one"),
}  # fmt: skip
"""Changes that leave a document which can be right; then an error or an answer will do."""


@pytest.fixture
def checkpoint(tmp_path, request):
    """Return a copy of a shipped checkpoint that a test may damage."""

    def copy(kind: str) -> Path:
        target = tmp_path / "name" / "1.0.0"
        return Path(shutil.copytree(store.find(KINDS[kind]).path, target))

    return copy


def ask(onnx_file: Path, folder: Path, kind: str = "hybrid") -> list[Any]:
    device = "A100" if kind == "hybrid" else "CPU-AMD-EPYC-2c"
    return ["predict", onnx_file, "--device", device, "--checkpoint", folder]


def change(folder: Path, key: str, value: Any, *, file: str = "config.json") -> None:
    document = json.loads((folder / file).read_text())
    *path, last = key.split(".")
    part = document
    for name in path:
        part = part[name]
    if value is MISSING:
        part.pop(last, None)
    else:
        part[last] = value
    (folder / file).write_text(json.dumps(document))


def odd_keys():
    """Yield every key with every value; one value of each second key is tried by day."""
    keys = [(kind, key) for kind, names in KEYS.items() for key in names]
    for place, (kind, key) in enumerate(keys):
        for number, value in enumerate(ODD_VALUES):
            is_sample = place % 2 == 0 and number == place // 2 % len(ODD_VALUES)
            marks = () if is_sample else pytest.mark.nightly(part="hostile")
            yield pytest.param(kind, key, value, marks=marks, id=f"{kind}-{key}-{value}")


@pytest.mark.parametrize(("kind", "key", "value"), odd_keys())
def test_a_key_of_a_configuration(checkpoint, onnx_file, kind, key, value):
    folder = checkpoint(kind)
    change(folder, key, ODD_VALUES[value])
    words = ask(onnx_file, folder, kind)
    if (key, value) in MAY_BE and run(*words, "--json").exit_code == 0:
        answered(*words)
    else:
        refused("CheckpointError", *words, in_words=value == "escapes")


DOCUMENTS = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"text"',
    "nested 100,000 deep": b'{"card":' + b"[" * 100_000,
    "nested 100,000 deep and closed": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "not UTF-8": b'{"kind": "\xff"}',
    "NUL bytes": bytes(1000),
    "a number of 5,000 digits": b'{"kind":' + b"9" * 5000 + b"}",
    "NaN": b'{"kind": NaN}',
    "40 MB": b'{"kind":"' + b"x" * (40 << 20) + b'"}',
}


@pytest.mark.parametrize("name", sampled(DOCUMENTS, pytest.mark.nightly(part="hostile")))
@pytest.mark.parametrize("file", ["config.json", "metrics.json"])
def test_a_document_of_a_checkpoint(checkpoint, onnx_file, file, name):
    folder = checkpoint("hybrid")
    (folder / file).write_bytes(DOCUMENTS[name])
    refused("CheckpointError", *ask(onnx_file, folder), says=file)


@pytest.mark.parametrize(
    ("key", "value"),
    sampled([
        ("summary", None), ("summary", 3), ("summary", {}), ("summary", [None]),
        ("summary", [{"n": -1}]), ("summary", [{"mape": -1}]), ("summary", [{"n": True}]),
        ("summary", [{"mape": "much"}]), ("other", 3), ("other", [[1]]), ("other", [{"a": {}}]),
    ], pytest.mark.nightly(part="hostile"), every=3),
)  # fmt: skip
def test_a_key_of_the_metrics(checkpoint, onnx_file, key, value):
    folder = checkpoint("hybrid")
    change(folder, key, value, file="metrics.json")
    refused("CheckpointError", *ask(onnx_file, folder), says="metrics.json")


def sparse(folder: Path) -> None:
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(40 << 30)


def sparse_with_a_header(folder: Path) -> None:
    size = (1 << 30) - 4096
    tensor = {"mean": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(tensor).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(40 << 30)


def half_a_file(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def a_deep_header(folder: Path) -> None:
    header = b"[" * 100_000
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def a_folder_in_its_place(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def a_pipe_in_its_place(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def a_loop_in_its_place(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "config.json")


def other_weights(folder: Path) -> None:
    """Weights of another shape, with their own hash: damaged by somebody who knows how."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"mean": np.zeros(3, np.float32)}, folder / "model.safetensors")
    seal(folder)


def weights_that_are_no_numbers(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    arrays = load_file(folder / "model.safetensors")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and name != "measured.shares":
            arrays[name] = array * array.dtype.type("nan")
    save_file(arrays, folder / "model.safetensors")
    seal(folder)


def shares_that_are_no_numbers(folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    arrays = load_file(folder / "model.safetensors")
    arrays["measured.shares"] = arrays["measured.shares"] * np.float16("nan")
    save_file(arrays, folder / "model.safetensors")
    seal(folder)


def seal(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    change(folder, "sha256", hashlib.sha256(content).hexdigest())


def nothing(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "damage",
    sampled([
        sparse, sparse_with_a_header, half_a_file, a_deep_header, a_folder_in_its_place,
        a_pipe_in_its_place, a_loop_in_its_place, other_weights, nothing,
    ], pytest.mark.nightly(part="hostile"), every=3),
    ids=lambda damage: damage.__name__.replace("_", " "),
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_checkpoint(checkpoint, onnx_file, damage, kind):
    folder = checkpoint(kind)
    damage(folder)
    refused("CheckpointError", *ask(onnx_file, folder, kind))


@pytest.mark.parametrize("name", ["config.json", "metrics.json", "model.safetensors", "."])
def test_a_checkpoint_that_must_not_be_read(as_nobody, name):
    home, begin = as_nobody
    folder = shutil.copytree(store.find(KINDS["hybrid"]).path, home / "name" / "1.0.0")
    for path in (folder.parent, folder, *folder.iterdir()):
        path.chmod(0o755)
    (folder / name).chmod(0)
    begin()
    with pytest.raises(dippm.errors.CheckpointError, match="ermission") as caught:
        dippm.load(str(folder))
    assert caught.value.hint


def test_shares_that_are_no_numbers(checkpoint, onnx_file):
    folder = checkpoint("hybrid")
    shares_that_are_no_numbers(folder)
    refused("CheckpointError", *ask(onnx_file, folder), says="measured.shares")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_no_numbers(checkpoint, onnx_file, kind):
    folder = checkpoint(kind)
    weights_that_are_no_numbers(folder)
    document = answered(*ask(onnx_file, folder, kind))
    assert document["latency_ms"] is None
    assert "no finite number" in document["absent"]["latency_ms"]


def test_a_network_that_asks_for_all_memory(checkpoint, onnx_file):
    folder = checkpoint("pmgns")
    change(folder, "network.hidden", 16384)
    change(folder, "network.layers_per_block", 64)
    refused("CheckpointError", *ask(onnx_file, folder, "pmgns"), says="do not fit")


@pytest.mark.parametrize("name", ["/" + LONG, f"~nobody-of-this-name/{LONG}", f"/{ESCAPES}/x"])
def test_the_path_of_a_checkpoint(onnx_file, name):
    refused("CheckpointError", *ask(onnx_file, Path(name)))


@pytest.mark.parametrize("name", [LONG, ESCAPES, NO_TEXT, "@", "hybrid-gpu@", "hybrid-gpu@9"])
def test_the_name_of_a_checkpoint(onnx_file, name):
    words = ["predict", onnx_file, f"--checkpoint={name}"]
    if run(*words).exit_code == 0:
        answered(*words)
    else:
        refused("UnknownNameError", *words)


def test_texts_of_a_card_are_shown_without_escapes(checkpoint, monkeypatch):
    folder = checkpoint("hybrid")
    change(folder, "card.summary", f"{ESCAPES}[/b]")
    monkeypatch.setattr("dippm.estimate.pretrained.store.roots", lambda: (folder.parents[1],))
    (row,) = answered("models")["models"]
    assert row["summary"] == f"{ESCAPES}[/b]"


def test_the_doctor_lists_a_damaged_checkpoint(checkpoint, monkeypatch):
    folder = checkpoint("hybrid")
    (folder / "config.json").write_text("null")
    monkeypatch.setattr("dippm.estimate.pretrained.store.roots", lambda: (folder.parents[1],))
    answer = run("doctor", "--json")
    assert answer.exit_code == 1
    broken = [f for f in json.loads(answer.stdout)["findings"] if f["state"] == "broken"]
    assert any(str(folder) in finding["what"] for finding in broken)
    assert run("models").exit_code == 0


def test_weights_are_not_read_before_their_size(checkpoint, monkeypatch):
    folder = checkpoint("hybrid")
    sparse(folder)
    reads: list[int] = []

    class Counting(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            reads.append(-1 if size is None else size)
            return super().read(size)

    monkeypatch.setattr(Path, "open", lambda path, mode: Counting(io.FileIO(path, "r")))
    with pytest.raises(dippm.errors.CheckpointError), open_weights(folder):
        pass
    assert sum(reads) <= MAX_HEADER_BYTES
    assert -1 not in reads


# Answers that cannot be written -----------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    ["no/such/folder.html", f"{LONG}.html", ".", "/dev/full"],
    ids=["no folder", "a long name", "a folder", "a full device"],
)
def test_pages_that_cannot_be_written(onnx_file, tmp_path, place):
    refused("DippmError", "predict", onnx_file, "--html", tmp_path / place, says="cannot write")


# Plug-ins ---------------------------------------------------------------------------------------

BROKEN = {
    "import fails": "import a_package_that_nobody_has",
    "no Python": "def accepts(path:",
    "a key error": "{}['key']",
    "an exit": "raise SystemExit(3)",
    "a stack without end": "def f(): f()\nf()",
    "nothing inside": "",
    "accepts raises": "def accepts(path): raise KeyError(path)\ndef load(): ...",
    "accepts exits": "def accepts(path): raise SystemExit\ndef load(): ...",
    "an error that cannot be shown": (
        "class E(Exception):\n  def __str__(self): raise E\n"
        "def accepts(path): raise E\ndef load(): ..."
    ),
    "accepts never answers": (
        "import threading\ndef accepts(path): threading.Event().wait()\ndef load(): ..."
    ),
}


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """Install a plug-in with this code, for this test."""
    site = tmp_path / "site"
    names: list[str] = []

    def install(code: str, *, name: str = "") -> str:
        name = name or f"plug{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}{len(names)}"
        names.append(name)
        information = site / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (site / f"{name}.py").write_text(code)
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        (information / "entry_points.txt").write_text(
            f"[{registry.PLUGIN_GROUP}]\n{name} = {name}\n"
        )
        registry.entries.cache_clear()
        return name

    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(registry, "PLUGIN_LIMIT_S", 0.5)
    monkeypatch.setattr(registry, "_faults", {})
    yield install
    monkeypatch.undo()
    registry.entries.cache_clear()
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_harms_no_other_file(plugged, onnx_file, tmp_path, kind):
    name = plugged(BROKEN[kind])
    assert registry.find(onnx_file).framework == "onnx"
    answered("predict", onnx_file)
    path = tmp_path / "file.of-nobody"
    path.write_text("something")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        found = refused("UnknownFormatError", "predict", path)
        assert name in found["hint"]
        asked = refused("UnknownFormatError", "predict", path, "--framework", name)
        assert name in asked["hint"]


def test_a_broken_plugin_blocks_no_other_plugin(plugged, tmp_path):
    broken = plugged("1 / 0", name="aaa_broken")
    whole = plugged("def accepts(path): return True\ndef load(): ...", name="zzz_whole")
    path = tmp_path / "file.toy"
    path.write_text("something")
    with pytest.warns(PluginWarning, match=broken):
        assert registry.find(path).framework == whole


def test_a_plugin_that_names_the_fault_of_a_file(plugged, tmp_path):
    plugged(
        "from dippm.errors import ModelFileError\n"
        "def accepts(path): raise ModelFileError('half a file', 'Copy it again.')\n"
        "def load(): ..."
    )
    path = tmp_path / "file.toy"
    path.write_text("something")
    refused("ModelFileError", "predict", path, says="half a file")


@pytest.mark.parametrize("kind", [k for k in BROKEN if not k.startswith(("accepts", "an error"))])
def test_the_doctor_names_a_broken_plugin(plugged, kind):
    name = plugged(BROKEN[kind])
    answer = run("doctor", "--json")
    assert answer.exit_code == 1
    (finding,) = [
        f for f in json.loads(answer.stdout)["findings"] if f["what"] == f"plug-in {name}"
    ]
    assert finding["state"] == "broken"
    assert finding["detail"]


def test_metadata_that_cannot_be_read(plugged, tmp_path, onnx_file, monkeypatch):
    def damaged(**_wanted):
        raise ValueError("not enough values to unpack")

    monkeypatch.setattr(registry, "entry_points", damaged)
    registry.entries.cache_clear()
    with pytest.warns(PluginWarning, match="metadata"):
        assert registry.find(onnx_file).framework == "onnx"


# Real processes: streams that fail --------------------------------------------------------------


def process(*words, **options):
    command = [sys.executable, "-m", "dippm", *words]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, **options)


@pytest.mark.parametrize("words", [["devices"], ["devices", "--json"]])
def test_a_full_device_is_one_error(words):
    with open("/dev/full", "wb") as full:
        answer = process(*words, stdout=full)
    assert answer.returncode == 1
    assert answer.stderr.decode().splitlines()[0] == (
        "error: cannot write the answer: No space left on device"
    )
    assert b"Traceback" not in answer.stderr
    assert b"Exception ignored" not in answer.stderr


def test_a_reader_that_went_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        for words in (["devices"], ["devices", "--json"]):
            answer = process(*words, stdout=gone)
            assert answer.returncode == 128 + signal.SIGPIPE
            assert answer.stderr == b""


def test_a_closed_stdout_is_no_error():
    answer = process("devices", preexec_fn=lambda: os.close(1))
    assert (answer.returncode, answer.stderr) == (0, b"")


def test_ascii_gets_its_table(onnx_file):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ["predict", onnx_file, "--operators", "2"]
    answer = process(*words, stdout=subprocess.PIPE, env=environment)
    assert answer.returncode == 0, answer.stderr
    assert "small.onnx | batch 1 | A100-40GB" in answer.stdout.decode("ascii")
    answer = process(*words[:2], "--json", stdout=subprocess.PIPE, env=environment)
    assert json.loads(answer.stdout.decode("ascii"))["source"] == "small.onnx"


PATTERNS = r"""
import io

import onnx

from dippm.cli.output import OPTIONS, Option, on_command_line
from dippm.errors import RunError
from dippm.estimate.features.kernels.backward.gradients import blocks_of
from dippm.runs.plans.plan import records
from dippm.model.relax.onnx.tracing import path_of
from dippm.show.report.console import console, print_text
from dippm.runs.store import query
from dippm.runs.store.query import mlflow_key as key, mlflow_keys as keys
from dippm.runs.store.location import StoreLocation
from dippm.base.printable import legible
from dippm.show.ui.selection import filter_runs

N = 300_000
query.LONGEST = 10 * N  # the pattern alone, then with its limit
gap, digits = "a>" + " " * N + "!", "a>" + "1" * N + "x"
for text in (" " * N + "a", "a " * N, "<" * N, "= " * N, gap, digits):
    try:
        raise SystemExit(f"{text[:9]} is {query.Condition.parse(text)}")
    except RunError:
        pass
query.LONGEST = 500
for search, condition in (("", " " * 501 + "a"), ("", "a>1," * 200), ("w " * 300, "")):
    try:
        raise SystemExit(str(filter_runs([], search, "", condition)))
    except RunError as error:
        assert "characters" in str(error), error
for kind, name in (
    ("(a+)+!", "/x/" + "a" * 2000),
    ("My(Op", "/block/My(Op_1"),
    ("*", "/block/*"),
    ("Conv", "/" + "a." * N + "/Conv"),
    ("Conv", "/a/" + "Conv_" * 800),
):
    path_of(onnx.helper.make_node(kind, [], [], name=name), ["w_1." * N, "a." * N])
assert path_of(onnx.helper.make_node("My(Op", [], [], name="/block/My(Op_1"), []) == "block"
out = io.StringIO()
print_text("x" + " " * N + "y", out)
console(out).print("x" + " " * N + "y", markup=False, soft_wrap=True)
StoreLocation("://:" * N).shown()
assert StoreLocation("postgresql://me:secret@host/runs").shown() == "postgresql://me:***@host/runs"
assert len(keys(f"{n}?" + "x" * 300 for n in range(2000))) == 2000
assert len(keys("x" * 250 + str(n) for n in range(20_000))) == 20_000
for text in (". " * N, "./" * N, "/" * N):
    key(text)
blocks_of(["a." * N, "1." * N, "blocks" * N, "a.1." * N])
OPTIONS.set({"a": Option("--a", False)})
for text in ("a=" + "." * N + "x", "a=(" * N, "a='" * N, '"' * N, "_" * N):
    on_command_line(legible(text))
for text in (b'"' * N, b'"a"",' * N, b'"a"" ""' * N, b" " * N + b"x", b'""a,' * N, b'"\n' * N):
    try:
        records(text)
    except ValueError:
        pass
print("all of them")
"""


def test_no_pattern_takes_more_than_one_pass():
    """Texts of 300,000 characters: a quadratic pattern would take hours, so it is ended."""
    ended = subprocess.run(
        [sys.executable, "-c", PATTERNS], capture_output=True, text=True, timeout=240, cwd=ROOT
    )
    assert ended.stdout == "all of them\n", ended.stderr


def test_what_a_message_repeats_is_cut(onnx_file):
    """Attributes keep the exact name; what is shown of it, also as JSON, is short."""
    for words in (
        ("predict", onnx_file, "--input", "3,32,32" * 20_000),
        ("predict", onnx_file, "--input", f"{'n' * 100_000}=3,32,32"),
        ("predict", onnx_file, "--device", "d" * 100_000),
        ("predict", onnx_file, "--checkpoint", "c" * 100_000),
        ("predict", "m" * 100_000),
        ("runs", "--where", "w" * 100_000),
        ("import", "i" * 100_000),
    ):
        for form in ((), ("--json",)):
            answer = run(*words, *form)
            assert answer.exit_code == 1, words[:2]
            assert len(answer.stdout + answer.stderr) < 5000, words[2][:20]
    error = dippm.errors.DippmError("x" * 10**6, "y " * 10**6)
    assert (len(error.message), len(error.hint)) == (10**6, 2 * 10**6)
    assert len(str(error)) < 10_000
    assert "(999,700 characters)" in str(error)
