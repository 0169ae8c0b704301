"""What goes wrong around `dippm serve`: clients that go, processes that die, disks that fill."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from dippm.client import Client, ClientError
from tests.samples import sampled
from tests.unit.service.served import Process, command, is_alive, wait_for
from tests.unit.service.test_service import ask, question, upload

LONG = {"model": {"path": "net.onnx"}, "batch": "1:4096"}
"""A question that takes a while."""


@pytest.fixture
def alone(tmp_path, root):
    """A service of one process, for one test."""
    process = Process(tmp_path, "--root", str(root), "--workers", "1", "--queue", "6")
    wait_for(process.answerers)
    yield process
    process.end()


def job(service, headers):
    return ask(service, "GET", headers["Location"])[2]


def running(service, headers):
    return wait_for(lambda: (j := job(service, headers))["state"] == "running" and j)


def send(service, head: str, body: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", service.port), 60)
    made.sendall(head.replace("\n", "\r\n").encode() + body)
    return made


def test_a_client_that_goes_takes_its_question_along(alone):
    body = json.dumps(LONG).encode()
    head = (
        f"POST /v1/choose?wait_s=300 HTTP/1.1\nHost: 127.0.0.1\n"
        f"Content-Type: application/json\nContent-Length: {len(body)}\n\n"
    )
    gone = send(alone, head, body)
    wait_for(lambda: "dippm_running_jobs 1\n" in Client(alone.address).metrics())
    gone.close()
    ended = 'dippm_jobs_total{question="choose",state="cancelled"} 1\n'
    wait_for(lambda: ended in Client(alone.address).metrics())
    assert ask(alone, "GET", "/healthz")[0] == 200
    wait_for(lambda: question(alone, "predict", {"model": {"path": "net.onnx"}})[0] == 200)


def test_a_client_that_goes_amid_an_upload_leaves_nothing(service, net):
    content = net.read_bytes()
    head = (
        f"POST /v1/predict?name=gone.onnx HTTP/1.1\nHost: 127.0.0.1\n"
        f"Content-Type: application/octet-stream\nContent-Length: {len(content)}\n\n"
    )
    gone = send(service, head, content[: len(content) // 2])
    (folder,) = service.place.iterdir()
    arriving = wait_for(lambda: [e for e in folder.iterdir() if len(e.name) == 32])
    gone.close()
    wait_for(lambda: not any(entry.exists() for entry in arriving))
    wait_for(lambda: "dippm_uploads_bytes 0\n" in Client(service.address).metrics())


def test_a_process_that_is_killed_is_replaced_and_nothing_is_lost(alone):
    _, headers, _ = question(alone, "choose", {**LONG, "batch": "1:8"}, wait_s=0)
    running(alone, headers)
    (victim,) = alone.answerers()
    os.kill(victim, signal.SIGKILL)
    ended = wait_for(lambda: (j := job(alone, headers))["state"] == "done" and j)
    assert any("lost" in stage["stage"] for stage in ended["stages"])
    assert alone.events("worker lost")
    assert "dippm_workers_lost_total 1\n" in Client(alone.address).metrics()


@pytest.mark.nightly(part="processes")
def test_a_process_that_is_killed_twice_is_a_typed_error(alone):
    _, headers, _ = question(alone, "choose", {**LONG, "batch": "1:100000"}, wait_s=0)
    for _ in range(2):
        running(alone, headers)
        pids = wait_for(alone.answerers)
        # The second one has to be at work on it, not at its start.
        count = len(job(alone, headers)["stages"])
        wait_for(lambda: len(job(alone, headers)["stages"]) > count or not is_alive(pids[0]))  # noqa: B023
        for pid in alone.answerers():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, pids)))  # noqa: B023
    state = wait_for(lambda: (j := job(alone, headers))["state"] == "failed" and j)
    assert state["error"]["type"] == "WorkerLostError"
    assert ask(alone, "GET", headers["Location"] + "/result")[0] == 503
    wait_for(lambda: question(alone, "predict", {"model": {"path": "net.onnx"}})[0] == 200)


@pytest.mark.nightly(part="processes")
def test_a_killed_converter_is_a_typed_error_and_no_more(alone, net):
    """The process of a frontend, in its sandbox, ends: its answer says so, the next one is good."""
    assert upload(alone, "predict", net.read_bytes(), "name=a.onnx")[0] == 200
    converters = [pid for pid in alone.children() if "frontends.worker" in command(pid)]
    assert converters
    for pid in converters:
        os.kill(pid, signal.SIGKILL)
    status, _, found = upload(alone, "predict", net.read_bytes(), "name=b.onnx")
    assert status in (200, 422), found
    assert upload(alone, "predict", net.read_bytes(), "name=c.onnx")[0] == 200


def test_a_full_queue_says_when_to_come_again(alone):
    _, headers, _ = question(alone, "choose", {**LONG, "batch": "1:100000"}, wait_s=0)
    running(alone, headers)
    codes = []
    for batch in range(8):
        asked = {"model": {"path": "net.onnx"}, "batch": batch + 100}
        status, found, document = question(alone, "predict", asked, wait_s=0)
        codes.append(status)
    assert codes == [202] * 6 + [429] * 2
    assert int(found["Retry-After"]) >= 1
    assert document["error"]["type"] == "BusyError"
    status, _, _ = upload(alone, "predict", b"\0" * (1 << 20), "name=x")
    assert status == 429
    assert "dippm_uploaded_bytes_total" not in Client(alone.address).metrics()  # it was not taken
    ask(alone, "DELETE", headers["Location"])
    with Client(alone.address, timeout_s=120) as client:  # it asks again by itself
        assert client.predict({"path": "net.onnx"}, batch=999)["latency_ms"] > 0


@pytest.mark.nightly(part="processes")
def test_clients_take_turns(alone):
    """One who asked five times does not keep one waiting who asked once."""
    _, headers, _ = question(alone, "choose", {**LONG, "batch": "1:100000"}, wait_s=0)
    running(alone, headers)
    jobs = {}
    for number, name in enumerate(["greedy"] * 4 + ["modest"]):
        asked = json.dumps({"model": {"path": "net.onnx"}, "batch": number + 200}).encode()
        named = {"Content-Type": "application/json", "Dippm-Client": name}
        _, _, found = ask(alone, "POST", "/v1/predict?wait_s=0", asked, named)
        jobs.setdefault(name, []).append(found)
    assert [one["position"] for one in jobs["greedy"]] == [1, 2, 3, 4]
    assert [one["position"] for one in jobs["modest"]] == [2]
    ask(alone, "DELETE", headers["Location"])
    ends = {}
    for name, found in jobs.items():
        for one in found:
            address = f"/v1/jobs/{one['id']}"
            wait_for(lambda: ask(alone, "GET", address)[2]["state"] == "done")  # noqa: B023
            state = ask(alone, "GET", address)[2]
            ends.setdefault(name, []).append(state["ended_s"] - state["age_s"])
    # Both were asked at about the same time: by their ends, the modest one was the second.
    assert ends["modest"][0] < ends["greedy"][2]


@pytest.mark.nightly(part="processes")
def test_a_full_disk_is_said_and_nothing_is_left(tmp_path, root):
    """A file system of 4 MB, where the kernel lets us make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be made here")
    try:
        service = Process(tmp_path, "--root", str(root), "--folder", str(place))
        try:
            status, _, found = upload(service, "predict", b"\0" * (6 << 20), "name=large")
            assert (status, found["error"]["type"]) == (507, "NoRoomError")
            assert "No space left" in found["error"]["message"]
            wait_for(lambda: shutil.disk_usage(place).used < 2 << 20)
            assert ask(service, "GET", "/healthz")[0] == 200
        finally:
            service.end()
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.nightly(part="processes")
def test_too_many_uploads_at_once_are_said(tmp_path, root, net):
    service = Process(tmp_path, "--root", str(root), "--uploads-mb", "1")
    try:
        status, found, document = upload(service, "predict", b"\0" * (2 << 20), "name=large")
        assert (status, document["error"]["type"]) == (507, "NoRoomError")
        assert found["Retry-After"]
        assert upload(service, "predict", net.read_bytes(), "name=small")[0] == 200
    finally:
        service.end()


def test_what_takes_too_long_is_ended_with_a_typed_error(tmp_path, root):
    service = Process(tmp_path, "--root", str(root), "--answer-s", "0.05", "--workers", "1")
    try:
        status, _, found = question(service, "choose", LONG)
        assert (status, found["error"]["type"]) == (504, "TimeLimitError")
        wait_for(service.answerers)
    finally:
        service.end()


@pytest.mark.nightly(part="processes")
def test_800_half_open_connections_leave_the_service_answering(service):
    held = []
    try:
        for number in range(800):
            text = "" if number % 2 else "POST /v1/predict HTTP/1.1\nHost: 127."
            held.append(send(service, text))
        for _ in range(5):
            assert ask(service, "GET", "/healthz")[0] == 200
        metrics = Client(service.address).metrics()
        (line,) = (x for x in metrics.splitlines() if x.startswith("dippm_connections "))
        assert float(line.split()[1]) <= 512
        # Whoever sends no head in time is let go.
        wait_for(lambda: all(map(_is_closed, held)))
    finally:
        for one in held:
            one.close()
    assert ask(service, "GET", "/healthz")[0] == 200


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_head_without_end_is_refused(service):
    with send(service, "GET / HTTP/1.1\nHost: 127.0.0.1\n") as endless:
        try:
            for _ in range(64):
                endless.sendall(b"X-Y: " + b"z" * 2000 + b"\r\n")
            answer = endless.recv(100)
        except OSError:
            answer = b""
    assert b"200" not in answer
    with send(service, "nonsense\n\n") as other:
        assert other.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "number",
    sampled([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], pytest.mark.nightly(part="processes")),
)
def test_nothing_outlives_the_service(tmp_path, root, number):
    place = tmp_path / "uploads"
    place.mkdir()
    service = Process(tmp_path, "--root", str(root), "--folder", str(place))
    wait_for(service.answerers)
    _, headers, _ = question(service, "choose", {**LONG, "batch": "1:100000"}, wait_s=0)
    running(service, headers)
    below = service.children()
    assert len(below) >= 3
    code = service.end(number)
    assert code in (0, -number, 128 + number)
    wait_for(lambda: not any(map(is_alive, below)))
    if number != signal.SIGKILL:
        assert list(place.iterdir()) == []
        return
    # What a killed one left is removed by the next one.
    later = Process(tmp_path, "--root", str(root), "--folder", str(place))
    (folder,) = place.iterdir()
    assert later.end() in (0, 128 + signal.SIGTERM)
    assert not folder.exists()


def test_other_sites_and_machines_are_refused(service):
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"127.0.0.1:{service.port}", "Origin": "http://evil.example"},
        {"Host": f"127.0.0.1:{service.port}", "Origin": "null"},
    ):
        status, _, found = ask(service, "GET", "/v1/devices", headers=headers)
        assert (status, found["error"]["type"]) == (403, "ForbiddenError")


def test_a_service_that_others_reach_asks_for_a_token(tmp_path, root):
    service = Process(tmp_path, "--root", str(root), "--host", "0.0.0.0")
    try:
        assert len(service.token) >= 16
        address = f"http://127.0.0.1:{service.port}"
        assert Client(address).health()["status"]  # probes have no token
        for token in ("", "wrong", service.token + "x"):
            with pytest.raises(ClientError) as error:
                Client(address, token=token).devices()
            assert error.value.status == 401
        with pytest.raises(ClientError, match="no header takes"):
            Client(address, token="é" * 20)
        for path in ("/openapi.json", "/metrics", "/v1/options", "/v1/jobs/x", "/nowhere"):
            assert ask(service, "GET", path)[0] == 401, path
        assert Client(address, token=service.token).predict({"path": "net.onnx"})
        cookie = {"Cookie": f"dippm-token={service.token}"}
        assert ask(service, "GET", "/v1/devices", headers=cookie)[0] == 200
        assert service.token not in service.log.read_text()
    finally:
        service.end()


@pytest.mark.nightly(part="processes")
def test_a_token_that_could_be_guessed_and_other_wishes_are_refused(tmp_path):
    def refused(*words, **environment):
        ran = subprocess.run(
            [sys.executable, "-m", "dippm", "serve", *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 1, ran
        return ran.stderr

    assert "16 plain characters" in refused("--host", "0.0.0.0", DIPPM_TOKEN="short")
    assert "not a folder" in refused("--root", str(tmp_path / "none"))
    assert "certificate" in refused("--key", str(tmp_path))
    assert "TLS only" in refused("--webhook", "open")
    assert "webhook" in refused("--webhook", "ajar")
    assert "time limit" in refused("--timeout-s", "0")
    assert "cannot be used" in refused(
        "--certificate", str(tmp_path / "c"), "--key", str(tmp_path / "k")
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "cannot serve at" in refused("--port", port)
    assert "cannot write" in refused("--folder", str(tmp_path / "none"))


@pytest.mark.nightly(part="processes")
def test_sixteen_clients_with_sixteen_models_lose_nothing(tmp_path, root):
    from tests.conftest import write_onnx

    service = Process(tmp_path, "--root", str(root))
    answers, failed = {}, []

    def one(number):
        path = tmp_path / f"model-{number}.onnx"
        try:
            with Client(service.address, name=f"client {number}") as client:
                answers[number] = client.predict(path, batch=number + 1)
        except Exception as error:
            failed.append((number, error))

    for number in range(16):
        write_onnx(tmp_path / f"model-{number}.onnx", batch=f"n{number}")
    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        service.end()
    assert not failed
    for number, found in answers.items():
        assert found["source"] == f"model-{number}.onnx"
        assert found["conditions"]["batch"] == number + 1


def test_the_client_reads_no_answer_of_another_program(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer(text):
            def run():
                made, _ = other.accept()
                made.recv(10_000)
                made.sendall(text)
                made.close()

            threading.Thread(target=run, daemon=True).start()

        ok = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        for text, words in (
            (ok + b"hello", "not JSON"),
            (ok + b"[1,2]", "not a document"),
            (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno", "502"),
            (b"SSH-2.0-OpenSSH\r\n", "no answer from"),
        ):
            answer(text)
            with pytest.raises(ClientError, match=words):
                Client(f"http://127.0.0.1:{port}").devices()


def test_pipelined_and_chunked_requests_are_answered(service, net):
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"Content-Type": "application/octet-stream"}
    pieces = (net.read_bytes()[i : i + 100] for i in range(0, net.stat().st_size, 100))
    connection.request("POST", "/v1/predict?name=n.onnx", pieces, headers, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    both = "GET /healthz HTTP/1.1\nHost: 127.0.0.1\n\n"
    with send(service, both + both.replace("\n\n", "\nConnection: close\n\n")) as two:
        found = b""
        while chunk := two.recv(4096):
            found += chunk
    assert found.count(b"HTTP/1.1 200 OK") == 2
