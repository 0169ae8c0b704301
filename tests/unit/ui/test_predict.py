"""The Predict door without a browser: its questions, uploads in pieces, and who sends nonsense."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
import zipfile

import psutil
import pytest

pytest.importorskip("dash", reason="the page needs the extra ui")

from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.show.service.settings import Settings
from dippm.show.ui import predicting
from dippm.show.ui.authentication import PageAuthentication
from dippm.show.ui.library import Library
from dippm.show.ui.page.app import application
from dippm.show.ui.page.predict import PIECE_BYTES
from dippm.show.ui.predicting import PredictSessions
from tests.conftest import write_onnx
from tests.samples import sampled

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return write_onnx(tmp_path_factory.mktemp("net") / "net.onnx", batch="n").read_bytes()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    return Library(str(folder / "runs.db"), folder / "spool")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    place = tmp_path_factory.mktemp("uploads")
    found = PredictSessions(Settings(workers=1, upload_mb=8, folder=place))
    yield found
    found.close()
    assert list(place.iterdir()) == []


@pytest.fixture
def visitor(library, asked):
    return application(library, PageAuthentication(), asked).test_client()


def send(visitor, content, name="net.onnx", piece=PIECE_BYTES):
    """Upload as the page does; return the hash, or the answer that refuses it."""
    begun = visitor.post("/predict/uploads", query_string={"name": name})
    if begun.status_code != 200:
        return begun
    key = begun.json["id"]
    for at in range(0, len(content), piece):
        part = content[at : at + piece]
        answer = visitor.put(f"/predict/uploads/{key}", query_string={"at": at}, data=part)
        if answer.status_code != 200:
            return answer
        assert answer.json["bytes"] == at + len(part)
    answer = visitor.post(f"/predict/uploads/{key}/end")
    return answer.json["sha256"] if answer.status_code == 200 else answer


def ask(visitor, asked, kind="predict", name="net.onnx", **question):
    """Ask and wait; return what the page gets: the answer or the error, and the stages."""
    answer = visitor.post(f"/predict/ask/{kind}", query_string={"name": name}, json=question)
    found = answer.json
    if answer.status_code != 202:
        return found
    job = asked.service.job(found["job"]["id"])
    ended = threading.Event()

    class Loop:
        def call_soon_threadsafe(self, call):
            if job.ended:
                ended.set()

    _, end = job.listen(Loop())
    assert job.ended or ended.wait(120)
    end()
    told = visitor.get(f"/predict/jobs/{job.id}").json
    result = visitor.get(f"/predict/jobs/{job.id}/result").json
    part = "error" if told["error"] else "answer"
    return {**found, part: result[part] if told["error"] else result, "told": told}


def test_a_file_is_predicted_with_its_modules_page_command_and_stages(visitor, asked, net):
    model = {"sha256": send(visitor, net, piece=1000)}
    given = {"batch": 8, "device": "A100", "precision": "fp16"}
    found = ask(visitor, asked, model=model, tree=True, html=True, **given)
    answer = found["answer"]
    assert answer["schema"] == "dippm.predict/1"
    assert answer["tree"]["children"]
    assert answer["html"].startswith("<!doctype html>")
    assert "onnxruntime" in answer["absent"]["verify"]
    assert any("converting" in one["stage"] for one in found["told"]["stages"])
    again = ask(visitor, asked, model=model, tree=True, html=True, **given)
    assert again["job"] is None, "known by content"
    assert again["answer"] == answer
    curve = {**given, "batch": [1, 8], "mig": [None, "1g.5gb"]}
    rows = ask(visitor, asked, "compare", models=[model], **curve)["answer"]["rows"]
    assert [(row["slice"], row["batch"]) for row in rows] == [
        (None, 1), (None, 8), ("1g.5gb", 1), ("1g.5gb", 8),
    ]  # fmt: skip
    assert rows[1]["latency_ms"] == answer["latency_ms"]
    assert visitor.delete(f"/predict/models/{model['sha256']}").status_code == 204
    gone = ask(visitor, asked, model=model, **{**given, "batch": 9})
    assert gone["error"]["type"] == "NotHereError"


def test_command_and_python_ask_the_same(visitor, asked, net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "a net's file.onnx"
    (tmp_path / name).write_bytes(net)
    model = {"sha256": send(visitor, net)}
    given = {"batch": 4, "device": "A100", "mig": "2g.10gb", "precision": "fp16"}
    found = ask(visitor, asked, name=name, model=model, input="3,32,32", **given)
    words = shlex.split(found["command"])
    assert words[0] == "dippm"
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["latency_ms"] == found["answer"]["latency_ms"]
    there: dict[str, object] = {"dippm": dippm}
    *_, last = found["python"].splitlines()
    assert eval(last, there).latency_ms == found["answer"]["latency_ms"]


def test_a_line_that_checks_names_the_file_as_its_sender_does(visitor, asked, tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "net.pt"
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    torch.save(module.eval(), path)
    model = {"sha256": send(visitor, path.read_bytes(), "net.pt")}
    given = {"model": model, "batch": 2, "input": "3,32,32"}
    found = ask(visitor, asked, html=True, **given)
    assert "error" not in found, found["error"]
    line = "dippm measure net.pt --batch 2 --input 3,32,32 --device cuda:0 --compare"
    assert found["answer"]["verify"] == line
    assert str(asked.service.uploads.folder) not in json.dumps(found)


def test_a_program_that_would_run_code_is_refused_and_no_packed_folder(visitor, asked, tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "net.pt2"
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    torch.export.save(torch.export.export(module.eval(), (torch.zeros(2, 3, 32, 32),)), path)
    model = {"sha256": send(visitor, path.read_bytes(), "net.pt2")}
    assert ask(visitor, asked, model=model)["error"]["type"] == "UnsafeModelError"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("x.zip", "dippm predict x --batch 1 --device A100"),
        ("-x.pt", "dippm predict ./-x.pt --batch 1 --device A100"),
        ("$(x) y.pt", "dippm predict '$(x) y.pt' --batch 1 --device A100"),
        ("", "dippm predict model --batch 1 --device A100"),
    ],
)
def test_a_command_is_one_whatever_a_file_is_called(name, command):
    question = predicting.Predict(model={"sha256": "0" * 64})
    assert predicting.as_command(question, name) == command
    _, _, call = predicting.as_python(question, name).splitlines()
    eval(call, {"dippm": type("Named", (), {"predict": staticmethod(lambda *_, **__: None)})})


def test_training_says_its_optimizer():
    question = predicting.Predict(model="timm:resnet18", phase="train", optimizer="adam")
    line = predicting.as_command(question, "")
    assert line.endswith("--phase train --optimizer adam")


@pytest.mark.parametrize(
    ("path", "given", "status", "kind"),
    [
        ("ask/predict", {"json": {"device": "A100"}}, 422, "BadQuestionError"),
        ("ask/predict", {"json": {"model": "timm:x", "trust": True}}, 422, "BadQuestionError"),
        ("ask/predict", {"json": {"model": {"path": "/etc/passwd"}}}, 403, "ForbiddenError"),
        ("ask/predict", {"json": {"model": "hf-config:/etc"}}, 403, "ForbiddenError"),
        ("ask/predict", {"json": {"model": "x:y"}}, 422, "BadQuestionError"),
        ("ask/predict", {"json": {"model": {"sha256": "0" * 64}}}, 404, "NotHereError"),
        ("ask/predict", {"data": b"{"}, 422, "BadQuestionError"),
        ("ask/predict", {"data": b"[" * 50_000}, 422, "BadQuestionError"),
        ("ask/predict", {"data": b" " * 100_000}, 413, "TooLargeError"),
        ("ask/fit", {"json": {"model": "timm:x"}}, 404, "NotHereError"),
        ("uploads?name=../x", {}, 422, "BadQuestionError"),
        ("uploads?name=", {}, 422, "BadQuestionError"),
        ("uploads/nothing/end", {}, 404, "NotHereError"),
    ],
)
def test_nonsense_has_a_typed_answer(visitor, path, given, status, kind):
    answer = visitor.post(f"/predict/{path}", **given)
    assert answer.status_code == status
    assert answer.json["error"]["type"] == kind
    assert answer.json["error"]["hint"]


def test_a_device_that_is_unknown_is_said_with_what_is_meant(visitor, asked, net):
    found = ask(visitor, asked, model={"sha256": send(visitor, net)}, device="A1000")
    assert found["error"]["type"] == "UnknownNameError"


def test_an_upload_has_an_order_a_size_and_an_end(visitor, asked, net, monkeypatch):
    uploads = asked.service.uploads
    before = uploads.size
    key = visitor.post("/predict/uploads?name=a").json["id"]
    at = f"/predict/uploads/{key}"
    assert visitor.put(f"{at}?at=5", data=b"x").json["error"]["type"] == "BadQuestionError"
    assert visitor.put(f"{at}?at=x", data=b"x").status_code == 422
    assert visitor.put(f"{at}?at={'9' * 5000}", data=b"x").status_code == 422
    assert visitor.put(f"{at}?at=0", data=b"x" * (PIECE_BYTES + 1)).status_code == 413
    assert visitor.post(f"{at}/end").json["error"]["message"] == "the body is empty"
    assert visitor.put(f"{at}?at=0", data=b"x").status_code == 404

    too_large = send(visitor, bytes(9 << 20))
    assert too_large.status_code == 413
    assert too_large.json["error"]["type"] == "TooLargeError"

    keys = []
    for _ in range(predicting.MOST_ARRIVING):
        keys.append(visitor.post("/predict/uploads?name=a").json["id"])
        visitor.put(f"/predict/uploads/{keys[-1]}?at=0", data=b"x")
    assert visitor.post("/predict/uploads?name=a").status_code == 429
    assert visitor.delete(f"/predict/models/{keys.pop()}").status_code == 204
    assert visitor.post("/predict/uploads?name=a").status_code == 200
    monkeypatch.setattr(predicting, "IDLE_S", -1.0)
    visitor.post("/predict/uploads?name=a")
    monkeypatch.setattr(predicting, "MOST_ARRIVING", 1)
    last = visitor.post("/predict/uploads?name=a")
    assert last.status_code == 200, "those of which nothing comes made room"
    visitor.delete(f"/predict/models/{last.json['id']}")
    assert uploads.size == before


LINK = zipfile.ZipInfo("a.onnx")
LINK.external_attr = 0o120777 << 16
HOSTILE = {
    "link": [(LINK, b"/etc/passwd")],
    "outside": [("../../a.onnx", b"x")],
    "absolute": [("/tmp/a.onnx", b"x")],
    "bomb": [("a.onnx", bytes(60 << 20))],
    "many": [(f"{n}.onnx", b"") for n in range(1001)],
    "damaged": [],
}


@pytest.mark.parametrize("kind", sampled(HOSTILE, pytest.mark.nightly(part="hostile")))
def test_a_zip_of_a_stranger_is_refused_every_time_and_leaves_nothing(visitor, asked, kind):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in HOSTILE[kind]:
            file.writestr(name, content, zipfile.ZIP_DEFLATED)
    content = packed.getvalue() if HOSTILE[kind] else b"PK\x03\x04 and then nothing"
    sha256 = send(visitor, content, "x.zip")
    for batch in (1, 2):
        error = ask(visitor, asked, name="x.zip", model={"sha256": sha256}, batch=batch)["error"]
        refusals = {"damaged": "ModelFileError"}
        assert error["type"] == refusals.get(kind, "UnknownFormatError")
        assert error["hint"]
    folder = asked.service.uploads.find(sha256).folder
    asked.service.uploads.release(asked.service.uploads.find(sha256))
    kept = {one.name for one in folder.iterdir()}
    assert kept - {"cache"} == {"x.zip"}
    visitor.delete(f"/predict/models/{sha256}")


def test_a_question_that_waits_is_cancelled(visitor, asked):
    first = visitor.post("/predict/ask/predict", json={"model": "timm:resnet18", "batch": 3})
    second = visitor.post("/predict/ask/predict", json={"model": "timm:resnet18", "batch": 5})
    key = second.json["job"]["id"]
    assert visitor.delete(f"/predict/jobs/{key}").json["state"] in ("cancelled", "running")
    assert first.status_code == 202
    found = ask(visitor, asked, model="timm:resnet18", batch=3)
    assert found["answer"]["latency_ms"] > 0


def test_one_token_opens_both_doors(library, asked):
    server = application(library, PageAuthentication(TOKEN), asked)
    stranger = server.test_client()
    for method, path in (
        ("GET", ""), ("GET", "/options"), ("POST", "/uploads?name=a"), ("PUT", "/uploads/x"),
        ("POST", "/ask/predict"), ("GET", "/jobs/x"), ("DELETE", "/models/x"),
    ):  # fmt: skip
        assert stranger.open(f"/predict{path}", method=method).status_code == 401
    assert b'value="/predict"' in stranger.get("/predict").data
    for door in ("/predict", "//evil.example"):
        given = {"token": TOKEN, "door": door}
        answer = server.test_client().post("/token", data=given)
        assert answer.headers["Location"] == ("/predict" if door == "/predict" else "/")
    visitor = server.test_client()
    answer = visitor.get(f"/predict?token={TOKEN}")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/predict")
    assert b"Drop a model file" in visitor.get("/predict").data
    assert visitor.get("/_dash-layout").status_code == 200
    other = visitor.post("/predict/uploads?name=a", headers={"Origin": "https://evil.example"})
    assert other.status_code == 403


def test_a_packed_folder_is_read_and_named_as_a_folder(visitor, asked, net, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("folder/net.onnx", net)
    sha256 = send(visitor, packed.getvalue(), "net.zip")
    found = ask(visitor, asked, name="net.zip", model={"sha256": sha256}, batch=11)
    assert found["answer"]["latency_ms"] > 0
    assert found["command"] == "dippm predict net --batch 11 --device A100"
    both = [{"sha256": sha256}, {"sha256": send(visitor, net)}]
    rows = ask(visitor, asked, "compare", models=both, batch=11)["answer"]["rows"]
    assert rows[0]["latency_ms"] == rows[1]["latency_ms"] == found["answer"]["latency_ms"]


def test_a_process_that_is_killed_amid_an_answer_loses_nothing(visitor, asked, net):
    sha256 = send(visitor, net)
    assert ask(visitor, asked, model={"sha256": sha256}, batch=21)["answer"]
    children = psutil.Process().children(recursive=True)
    answerers = [one for one in children if "answering" in " ".join(one.cmdline())]
    assert answerers
    for one in answerers:
        one.kill()
    assert ask(visitor, asked, model={"sha256": sha256}, batch=22)["answer"]["latency_ms"] > 0


@pytest.mark.nightly(part="processes")
def test_the_door_is_opened_in_a_process_of_its_own(tmp_path, net):
    words = [sys.executable, "-m", "dippm", "ui", "--store", str(tmp_path / "runs.db")]
    process = subprocess.Popen(
        [*words, "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DIPPM_SPOOL": str(tmp_path / "spool"), "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout
        assert process.stdout.readline().startswith("runs at http://")
        address = process.stdout.readline().removeprefix("predict at ").strip()

        def call(method, path, body=None):
            request = urllib.request.Request(f"{address}/{path}", body, method=method)
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())

        assert call("GET", "options")["devices"]
        key = call("POST", "uploads?name=net.onnx")["id"]
        call("PUT", f"uploads/{key}?at=0", net)
        sha256 = call("POST", f"uploads/{key}/end")["sha256"]
        question = json.dumps({"model": {"sha256": sha256}, "batch": 8}).encode()
        found = call("POST", "ask/predict?name=net.onnx", question)
        while found["answer"] is None:
            found = call("POST", "ask/predict?name=net.onnx", question)
        assert found["answer"]["latency_ms"] > 0
        below = psutil.Process(process.pid).children(recursive=True)
        assert below
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        _, alive = psutil.wait_procs(below, 60)
        assert alive == []
        assert not list(tmp_path.glob("dippm-serve-*"))
    finally:
        process.kill()
        process.stdout.close()


def test_the_door_loads_nothing_from_elsewhere(visitor):
    answer = visitor.get("/predict")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "http" not in answer.text.replace("http-equiv", "")
    for name in ("predict.css", "predict.js"):
        assert visitor.get(f"/assets/{name}").status_code == 200
        assert name not in visitor.get("/").text, "the page of runs does without"


def test_nothing_starts_until_somebody_opens_the_door(library):
    idle = PredictSessions()
    application(library, PageAuthentication(), idle).test_client().get("/")
    assert idle._service is None
    idle.close()
    closed = application(library, PageAuthentication(), idle).test_client()
    assert closed.get("/predict/options").json["error"]["message"] == "the page ends"
