"""`dippm serve` over real sockets: answers, jobs, codes, and what it keeps."""

from __future__ import annotations

import http.client
import json
import os
import threading
import zipfile

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator

import dippm
from dippm import errors
from dippm.base.progress import listening
from dippm.client import Client, ClientError
from tests.conftest import write_onnx
from tests.samples import sampled
from tests.unit.cli.test_schemas import SCHEMAS
from tests.unit.service.served import Process, wait_for


def ask(service, method, path, body=None, headers=None):
    """Return status, headers and document of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    is_json = (answer.headers.get("content-type") or "").startswith("application/json")
    return answer.status, answer.headers, json.loads(text) if is_json else text


def question(service, kind, document, **address):
    query = "&".join(f"{name}={value}" for name, value in address.items())
    headers = {"Content-Type": "application/json"}
    return ask(service, "POST", f"/v1/{kind}?{query}", json.dumps(document).encode(), headers)


def upload(service, kind, content, query=""):
    headers = {"Content-Type": "application/octet-stream"}
    return ask(service, "POST", f"/v1/{kind}?{query}", content, headers)


def test_an_answer_is_that_of_the_package(client, net):
    conditions = {"batch": 8, "device": "T4", "precision": "fp16"}
    found = client.predict(net, **conditions)
    Draft202012Validator(SCHEMAS).validate(found)
    expected = dippm.predict(net, **conditions).to_dict()
    assert found.pop("schema") == "dippm.predict/1"
    assert found == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        ("predict", {"tree": True}, "predict"),
        ("choose", {"devices": ["A100", "T4"], "by": "throughput", "batch": "1:8"}, "choose"),
        ("choose", {"devices": "T4", "by": "cost", "prices": {"T4": 0.5}}, "choose"),
        ("choose", {"by": "cost", "prices": {"slices": {"A100": {"1g.5gb": 0.2}}}}, "choose"),
        ("choose", {"by": "carbon", "carbon": {"FR": 50}, "region": "FR"}, "choose"),
        (
            "choose",
            {
                "devices": ["T4", "A100"],
                "by": "carbon",
                "carbon": {"pue": 1.2, "regions": {"FR": {"g_per_kwh": 50}}, "where": {"T4": "FR"}},
            },
            "choose",
        ),
        ("slice", {"slo_ms": 50}, "mig"),
        ("request", {"slo_ms": 50, "format": "dra"}, "request"),
        ("request", {"precision": "fp16", "runtime": "tensorrt"}, "request"),
        ("compare", {"device": ["A100", "T4"], "batch": [1, 2]}, "compare"),
        ("share", {"sharing": "mps", "percentages": [50, 50], "batch": [1, 8]}, "share"),
    ],
)
def test_each_question_has_a_document_of_its_schema(service, kind, fields, name):
    model = {"path": "net.onnx"}
    several = {"compare": [model, {"path": "bad.onnx"}], "share": [model, model]}
    named = {"models": several[kind]} if kind in several else {"model": model}
    status, _, found = question(service, kind, {**named, **fields})
    assert status == 200, found
    assert found["schema"] == f"dippm.{name}/1"
    Draft202012Validator(SCHEMAS).validate(found)


def test_a_request_that_serves_is_not_asked_for_under_autograd(service):
    asked = {"model": {"path": "net.onnx"}, "slo_ms": 50, "autograd": True}
    status, _, found = question(service, "request", asked)
    assert status == 422
    assert "autograd" in found["error"]["message"]
    assert question(service, "request", {**asked, "autograd": False})[0] == 200


def test_a_model_that_fits_says_how_large_a_batch_may_be(client, net):
    found = client.fit(net, batch=4)
    Draft202012Validator(SCHEMAS).validate(found)
    assert found["fits"] is True
    assert found["misfit"] is None
    assert client.fit(net, batch=found["largest_batch"])["fits"]
    too_much = client.fit(net, batch=found["largest_batch"] * 2)
    assert too_much["fits"] is False
    assert "does not fit" in too_much["misfit"]


def test_nothing_feasible_is_an_answer_with_every_row(service):
    status, _, found = question(service, "slice", {"model": {"path": "net.onnx"}, "slo_ms": 0.0001})
    assert status == 200
    assert found["error"]["type"] == "NothingFeasibleError"
    assert all(row["reason"] for row in found["rows"])


def test_the_same_question_is_answered_once(service, net):
    content = net.read_bytes()
    first = upload(service, "predict", content, "name=net.onnx&batch=77")
    again = upload(service, "predict", content, "name=net.onnx&batch=77")
    other = upload(service, "predict", content, "name=net.onnx&batch=78")
    found = [answer[1]["Dippm-Result"] for answer in (first, again, other)]
    assert found == ["miss", "hit", "miss"]
    assert first[2] == again[2] != other[2]


def test_a_file_that_changed_is_another_one(service, root):
    path = root / "changing.onnx"
    write_onnx(path, batch="n")
    asked = {"model": {"path": "changing.onnx"}}
    assert question(service, "predict", asked)[1]["Dippm-Result"] == "miss"
    assert question(service, "predict", asked)[1]["Dippm-Result"] == "hit"
    write_onnx(path, batch=4)
    assert question(service, "predict", asked)[1]["Dippm-Result"] == "miss"


def test_nothing_is_kept_after_the_answer(service, net):
    assert upload(service, "predict", net.read_bytes(), "name=net.onnx&batch=31")[0] == 200
    (folder,) = service.place.iterdir()
    left = wait_for(lambda: [e for e in folder.iterdir() if e.suffix == ".model"] == [])
    assert left
    assert {entry.name.partition("-")[0] for entry in folder.iterdir()} <= {"lock", "worker"}


def test_a_model_is_kept_if_somebody_asks_until_it_is_forgotten(service, client, net):
    kept = client.upload(net)
    Draft202012Validator(SCHEMAS).validate(kept)
    asked = {"sha256": kept["sha256"]}
    values = [client.predict(asked, batch=batch)["latency_ms"] for batch in (1, 2, 4)]
    assert values == sorted(values)
    client.forget(kept["sha256"])
    with pytest.raises(ClientError, match="no model with sha256") as error:
        client.predict(asked, batch=5)
    assert error.value.status == 404
    client.forget(kept["sha256"])  # once more is no matter


def test_several_files_are_compared_and_none_stays(service, client, root):
    found = client.compare([root / "net.onnx", root / "bad.onnx"], device=["A100", "T4"])
    rows = found["rows"] if "rows" in found else found["entries"]
    assert len(rows) == 3
    wait_for(lambda: "dippm_uploads_bytes 0\n" in client.metrics())  # soon after the answer


def test_a_shared_gpu_is_that_of_the_package(client, net):
    asked = {"device": "A100", "batch": [8, 16], "sharing": "mps"}
    found = client.share([net, {"path": "net.onnx"}], **asked)
    Draft202012Validator(SCHEMAS).validate(found)
    assert found.pop("schema") == "dippm.share/1"
    assert found == json.loads(json.dumps(dippm.share([net, net], **asked).to_dict()))
    wait_for(lambda: "dippm_uploads_bytes 0\n" in client.metrics())
    limits = {"percentages": [40, 60], "memory_limits_mb": [4096, None]}
    found = client.share([net, {"path": "net.onnx"}], **asked, **limits)
    Draft202012Validator(SCHEMAS).validate(found)
    expected = dippm.share([net, net], **asked, **limits).to_dict()
    assert found["processes"] == json.loads(json.dumps(expected))["processes"]


def test_a_set_that_does_not_fit_is_an_answer(client, net):
    found = client.share([{"path": "net.onnx"}], copies=40, device="T4")
    assert found["feasible"] is False
    assert found["misfits"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"models": []}, "models"),
        ({"models": [{"path": "net.onnx"}], "copies": 49}, "copies"),
        ({"models": [{"path": "net.onnx"}], "copies": 0}, "copies"),
        ({"models": [{"path": "net.onnx"}], "sharing": "turns"}, "turns"),
        ({"models": [{"path": "net.onnx"}], "percentages": [50, 50]}, "percentages"),
        ({"models": [{"path": "net.onnx"}], "sharing": "mig", "slices": ["../x"]}, "slices"),
        ({"models": [{"path": "bad.onnx"}]}, "bad.onnx"),
        ({"model": {"path": "net.onnx"}}, "models"),
    ],
)
def test_a_set_that_is_none_is_refused(service, fields, words):
    status, _, found = question(service, "share", fields)
    assert 400 <= status < 500, found
    assert words in json.dumps(found)


def test_a_set_is_asked_for_in_json_alone(service, net):
    status, _, found = upload(service, "share", net.read_bytes(), "name=net.onnx&copies=2")
    assert status == 415
    assert "application/json" in found["error"]["hint"]


def test_a_long_answer_is_a_job_with_stages(service, net):
    status, headers, job = upload(
        service, "choose", net.read_bytes(), "name=net.onnx&wait_s=0&batch=1:8&devices=A100,T4,L4"
    )
    assert status == 202
    assert headers["Location"] == f"/v1/jobs/{job['id']}"
    assert job["state"] in ("queued", "running")
    while job["state"] in ("queued", "running"):
        address = f"{headers['Location']}?wait_s=30&after={job['version']}"
        status, _, job = ask(service, "GET", address)
        assert status == 200
        Draft202012Validator(SCHEMAS).validate(job)
    assert job["state"] == "done"
    assert any("converting" in stage["stage"] for stage in job["stages"])
    times = [stage["at_s"] for stage in job["stages"]]
    assert times == sorted(times)
    status, _, found = ask(service, "GET", f"{headers['Location']}/result")
    assert (status, found["schema"]) == (200, "dippm.choose/1")


def test_the_client_tells_the_stages_of_a_job(service, net):
    told = []
    with Client(service.address) as client, listening(told.append):
        body = json.dumps(
            {"model": {"path": "net.onnx"}, "batch": "1:8", "devices": ["A100", "T4", "L4"]}
        ).encode()
        found = client._wait("/v1/choose?wait_s=0", body)
    assert found["schema"] == "dippm.choose/1"
    assert told


def test_a_job_is_cancelled_and_its_worker_does_something_else(tmp_path, root):
    service = Process(tmp_path, "--root", str(root), "--workers", "1")
    try:
        asked = {"model": {"path": "net.onnx"}, "batch": "1:4096"}
        _, headers, _ = question(service, "choose", asked, wait_s=0)
        _, later, _ = question(service, "predict", {"model": {"path": "net.onnx"}}, wait_s=0)
        status, _, _ = ask(service, "DELETE", headers["Location"])
        assert status == 200
        state = wait_for(
            lambda: (
                (s := ask(service, "GET", headers["Location"])[2]["state"])
                not in ("queued", "running")
                and s
            )
        )
        assert state == "cancelled"
        status, _, found = ask(service, "GET", headers["Location"] + "/result")
        assert (status, found["error"]["type"]) == (409, "JobCancelledError")
        wait_for(lambda: ask(service, "GET", later["Location"])[2]["state"] == "done")
    finally:
        service.end()


def test_an_error_names_the_path_as_the_client_gave_it(service, root):
    os.mkfifo(root / "pipe")
    (root / "alias.onnx").symlink_to("pipe")
    for given in ("pipe", "./pipe", "alias.onnx", str(root / "alias.onnx")):
        status, _, found = question(service, "predict", {"model": {"path": given}})
        assert status == 415
        assert found["error"]["message"] == f"{given} is a named pipe, not a file"


@pytest.mark.parametrize(
    ("document", "status", "words"),
    sampled(
        [
            ({}, 422, "names no model"),
            ({"model": {"path": "net.onnx"}, "device": "A1000"}, 422, "unknown device"),
            ({"model": {"path": "net.onnx"}, "batch": 0}, 422, "batch"),
            ({"model": {"path": "net.onnx"}, "batch": 10**9}, 422, "batch"),
            ({"model": {"path": "net.onnx"}, "batch": "many"}, 422, "batch"),
            ({"model": {"path": "net.onnx"}, "batch": True}, 422, "batch: "),
            ({"model": {"path": "net.onnx"}, "precision": "fp3"}, 422, "fp3"),
            ({"model": {"path": "net.onnx"}, "host": True}, 422, "host: "),
            ({"model": {"path": "net.onnx"}, "surprise": 1}, 422, "surprise"),
            ({"model": {"path": "net.onnx"}, "trust": True}, 422, "trust"),
            ({"model": {"path": "net.onnx"}, "device": "/etc/my.toml"}, 422, "names a file"),
            ({"model": {"path": "net.onnx"}, "device": "my.toml"}, 422, "names a file"),
            ({"model": {"path": "net.onnx"}, "checkpoint": "../x"}, 422, "names a file"),
            ({"model": {"path": "net.onnx"}, "timeout_s": 1e6}, 422, "more than the limit"),
            ({"model": {"path": "net.onnx"}, "timeout_s": -1}, 422, "timeout_s"),
            ({"model": {"path": "none.onnx"}}, 404, "no model is at"),
            ({"model": {"path": "bad.onnx"}}, 415, "bad.onnx"),
            ({"model": {"path": "../secret.onnx"}}, 403, "outside"),
            ({"model": {"path": "/etc/passwd"}}, 403, "outside"),
            ({"model": {"path": "link.onnx"}}, 404, "no model is at"),
            ({"model": {"path": "."}}, 404, "no model is at"),
            ({"model": {"path": "a\0b"}}, 422, "zero byte"),
            ({"model": {"path": "x" * 5000}}, 422, "1000"),
            ({"model": {"path": "x" * 999}}, 404, "no model is at"),
            ({"model": "net.onnx"}, 422, "model"),
            ({"model": "hf-config:/etc"}, 403, "outside"),
            ({"model": "nothing:resnet50"}, 422, "not the name of a model"),
            ({"model": {"sha256": "0" * 64}}, 404, "no model with sha256"),
            ({"model": {"sha256": "../../x"}}, 422, "sha256"),
        ],
        pytest.mark.nightly(part="hostile"),
        every=3,
    ),
)
def test_a_question_that_has_no_answer_gets_a_typed_error(service, document, status, words):
    found = question(service, "predict", document)
    assert found[0] == status, found[2]
    assert found[2]["schema"] == "dippm.error/1"
    Draft202012Validator(SCHEMAS).validate(found[2])
    assert words in found[2]["error"]["message"]
    assert found[2]["error"]["hint"]


@pytest.mark.parametrize(
    ("body", "type", "status"),
    [
        (b"{", "application/json", 422),
        (b"[1]", "application/json", 422),
        (b"", "application/json", 422),
        (b'{"model": ' + b"[" * 100_000 + b"}", "application/json", 422),
        (b'{"model":"' + b"x" * (2 << 20) + b'"}', "application/json", 413),
        (b"\xff\xfe", "application/json", 422),
        (b"x", "multipart/form-data; boundary=b", 415),
        (b"x", "text/html", 415),
        (b"", "application/octet-stream", 422),
        (b"nonsense", "application/octet-stream", 415),
        (b"\0" * (9 << 20), "application/octet-stream", 413),
    ],
)
def test_a_body_that_is_none_gets_a_typed_error(service, body, type, status):
    found = ask(service, "POST", "/v1/predict", body, {"Content-Type": type})
    assert found[0] == status, found[2]
    assert found[2]["schema"] == "dippm.error/1"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("name=../x", "not a file name"),
        ("name=%2e%2e%2fx", "not a file name"),
        ("name=" + "x" * 101, "not a file name"),
        ("batch=x", "batch"),
        ("batch=1&batch=2", "twice"),
        ("model=timm:resnet50", "the body is another one"),
        ("wait_s=nan", "wait_s"),
        ("wait_s=1e9", "wait_s"),
        ("what=1", "what"),
    ],
)
def test_an_address_that_makes_no_sense_gets_a_typed_error(service, net, query, words):
    status, _, found = upload(service, "predict", net.read_bytes(), query)
    assert status == 422
    assert words in found["error"]["message"]


def test_an_answer_names_a_path_by_its_root_alone(service, root):
    """Who may ask about a model need not know where it lies, and others get the same answer."""
    (root / "a b").mkdir()
    (root / "a b" / "net.pt").write_bytes((root / "net.pt").read_bytes())
    asked = {"input": "64"}
    for path, shown in (
        ("net.pt", "net.pt"),
        ("x;reboot/../net.pt", "net.pt"),
        (str(root / "net.pt"), "net.pt"),
        ("a b/net.pt", "'a b/net.pt'"),
    ):
        model = {"path": path}
        for kind, fields in (
            ("predict", {"model": model, "html": True}),
            ("fit", {"model": model}),
            ("slice", {"model": model}),
            ("compare", {"models": [model, {"path": "bad.onnx"}]}),
            ("request", {"model": model, "format": "slurm"}),
        ):
            status, _, found = question(service, kind, {**fields, **asked})
            assert status == 200, found
            assert str(root) not in json.dumps(found), kind
            of = found["rows"][0] if kind == "compare" else found
            assert of["verify"].startswith(f"dippm measure {shown} --batch 1 --input 64"), kind


def test_wrong_addresses_and_methods_have_documents_too(service):
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/v1/predict", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/jobs/none?after=x", 422),
        ("GET", "/v1/jobs/none", 404),
        ("DELETE", "/v1/jobs/none", 404),
        ("GET", "/docs", 404),
        ("DELETE", "/v1/models/none", 404),
        ("POST", "/v1/admission", 404),
    ):
        found = ask(service, method, path)
        assert found[0] == status, (method, path)
        assert found[2]["schema"] == "dippm.error/1"


def test_errors_have_their_type_at_the_client(client, root):
    with pytest.raises(errors.UnknownNameError, match="A1000"):
        client.predict(root / "net.onnx", device="A1000")
    with pytest.raises(errors.ModelFileError):
        client.predict({"path": "bad.onnx"})
    with pytest.raises(errors.ModelNotFoundError):
        client.predict(root / "nowhere.onnx")
    with pytest.raises(ClientError, match="outside") as error:
        client.predict({"path": "../secret.onnx"})
    assert (error.value.status, error.value.kind) == (403, "ForbiddenError")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"address": "127.0.0.1:8060"}, "not the address"),
        ({"address": "http://127.0.0.1:99999"}, "not the address"),
        ({"address": "http://[::1"}, "not the address"),
        ({"address": None}, "not the address"),
        ({"token": "secret\n"}, "token has characters"),
        ({"name": "Zoë"}, "name of the client"),
    ],
)
def test_a_client_that_could_not_ask_is_refused(asked, said):
    with pytest.raises(ClientError, match=said):
        Client(**asked)


def test_what_cannot_be_sent_is_said_and_numbers_of_libraries_can(client, net):
    with pytest.raises(ClientError, match="Linear cannot be sent"):
        client.predict(torch.nn.Linear(2, 2))
    with pytest.raises(ClientError, match="device cannot be sent"):
        client.predict(net, device=torch.device("cuda"))
    assert client.predict(net, batch=np.int64(8))["conditions"]["batch"] == 8
    assert client.predict({"path": net.name}, batch=np.int64(8))["conditions"]["batch"] == 8


def test_a_service_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ClientError, match="no answer from"):
        Client("http://127.0.0.1:1").health()
    for address in ("127.0.0.1:8060", "ftp://x", ""):
        with pytest.raises(ClientError, match="not the address"):
            Client(address)


def test_a_packed_folder_is_unpacked(service, client, net, tmp_path):
    packed = tmp_path / "net.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(net, "folder/net.onnx")
    found = client.predict(packed, batch=8)
    assert found["latency_ms"] == client.predict(net, batch=8)["latency_ms"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "net.onnx").write_bytes(net.read_bytes())
    assert client.predict(folder, batch=8)["latency_ms"] == found["latency_ms"]


def hostile_zips():
    link = zipfile.ZipInfo("a.onnx")
    link.external_attr = 0o120777 << 16
    yield "link", [(link, b"/etc/passwd")], "link"
    yield "outside", [("../../a.onnx", b"x")], "outside"
    yield "absolute", [("/tmp/a.onnx", b"x")], "outside"
    yield "bomb", [("a.onnx", b"\0" * (60 << 20))], "MB unpacked"
    yield "many", [(f"{n}.onnx", b"") for n in range(1001)], "files"


@pytest.mark.parametrize(
    ("members", "words"),
    sampled([c[1:] for c in hostile_zips()], pytest.mark.nightly(part="hostile")),
    ids=[c[0] for c in hostile_zips()],
)
def test_a_packed_folder_of_a_stranger_is_refused(service, tmp_path, members, words):
    packed = tmp_path / "x.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content, zipfile.ZIP_DEFLATED)
    status, _, found = upload(service, "predict", packed.read_bytes(), "name=x.zip")
    assert status == 415, found
    assert words in found["error"]["message"]


def test_the_document_of_the_service_describes_every_question(service):
    status, _, document = ask(service, "GET", "/openapi.json")
    assert status == 200
    assert document["openapi"].startswith("3.1")
    for kind in ("predict", "compare", "choose", "slice", "fit", "request", "share"):
        post = document["paths"][f"/v1/{kind}"]["post"]
        assert {"200", "202", "401", "413", "415", "422", "429"} <= set(post["responses"])
        assert "application/json" in post["requestBody"]["content"]
    schemas = document["components"]["schemas"]
    for text in _refs(document):
        assert text.removeprefix("#/components/schemas/") in schemas, text
    Draft202012Validator.check_schema({"$defs": schemas})
    assert b"http://" not in json.dumps(document).replace("http://127.0.0.1", "").encode()


def _refs(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def test_a_page_finds_what_it_may_offer(client):
    options = client.options()
    Draft202012Validator(SCHEMAS).validate(options)
    assert "fp16" in options["precisions"]
    assert options["limits"]["upload_mb"] == 8
    assert options["paths"] is True
    assert {"k8s", "slurm"} <= set(options["formats"])
    devices = client.devices()
    Draft202012Validator(SCHEMAS).validate(devices)
    assert any(device["name"] == "A100-40GB" for device in devices["devices"])
    wait_for(lambda: client.health()["status"] == "ok")


def test_prometheus_reads_the_metrics(client, net):
    client.predict(net, batch=2)
    names, kinds = {}, {}
    for line in client.metrics().splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("#"):
            sample, value = line.rsplit(" ", 1)
            names[sample] = float(value)
            base = sample.partition("{")[0]
            assert base in kinds or base.rsplit("_", 1)[0] in kinds, line
    assert kinds["dippm_request_seconds"] == "histogram"
    assert names['dippm_requests_total{route="/v1/predict",code="200"}'] >= 1
    route = 'route="/v1/predict"'
    assert (
        names[f'dippm_request_seconds_bucket{{{route},le="+Inf"}}']
        == names[f"dippm_request_seconds_count{{{route}}}"]
    )


def test_logs_are_lines_of_json_without_names_and_tokens(service, client, net):
    client.predict(net, batch=2)
    lines = service.log.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert all({"time", "level", "event"} <= set(line) for line in found)
    requests = [line for line in found if line["event"] == "request"]
    assert {"method", "route", "status", "ms", "client"} <= set(requests[-1])
    assert "net.onnx" not in service.log.read_text()


def test_many_clients_with_the_same_question_share_one_job(service, net):
    before = Client(service.address).metrics()
    answers = []

    def one():
        answers.append(upload(service, "predict", net.read_bytes(), "name=n.onnx&batch=1234"))

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer[0] for answer in answers} == {200}
    assert len({json.dumps(answer[2]) for answer in answers}) == 1
    after = Client(service.address).metrics()

    def jobs(text):
        sample = 'dippm_jobs_total{question="predict",state="done"} '
        return next((float(x.split()[-1]) for x in text.splitlines() if x.startswith(sample)), 0)

    assert jobs(after) - jobs(before) == 1
