"""Requests that no browser of ours sends: each is refused in a line, none stops the page."""

from __future__ import annotations

import copy
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest

pytest.importorskip("dash", reason="the page needs the extra ui")

from dippm.show.ui import connections
from dippm.show.ui.connections import LARGEST_REQUEST_BYTES
from dippm.show.ui.library import Library
from dippm.show.ui.page import visits
from dippm.show.ui.serving import ServedPage
from tests.page_runs import make_exhibition

CALLBACK = "/_dash-update-component"
EVIL = (
    None, True, 0, -1, 2**70, 1e308, "", "x", "{", '{"type":1}', "a" * 5000, "\ud800", "\0",
    [], [None], [[]], [{}], {}, {"x": "y"}, {"x": ["a", "b"]}, {"x": [0, 1, 2]}, ["["] * 3,
    {"stream": ["x"]}, '["a"]', "[1, 2]", list(range(30_000)), {"type": [], "stream": {}},
)  # fmt: skip
BODIES = (
    b"", b"x", b"[]", b"null", b"1", b'"x"', b"{}", b"{", b"\xff\xfe", b"NaN", b"[" * 200_000,
    b'{"output": "x.y"}', b'{"output": []}', b'{"output": {}, "inputs": {}}',
    b'{"output": "version.data", "inputs": 1, "state": 2, "changedPropIds": 3}',
)  # fmt: skip
PATHS = (
    "/", "/?", "/%00", "/%ff%fe", "//", "//evil.example/", "/../../etc/passwd", "/..%2f..%2fetc",
    "/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/", "/nowhere", "/" + "a" * 8000,
    "/_dash-component-suites/", "/_dash-component-suites/os/path", "/_dash-component-suites/dash/x",
    "/_dash-component-suites/dash/../../../x.js", "/_dash-component-suites/<script>/x.js",
    "/_dash-component-suites/dash/%00.js", "/_dash-layout", "/_dash-dependencies", "/_reload-hash",
    "/_favicon.ico", "/token", "/?token=%ff", "/?token=x&token=y", "/_dash-update-component?x=%ff",
    "/predict", "/predict/", "/predict?token=%ff", "/predict/options", "/predict/jobs/%00",
    "/predict/jobs/x/result", "/predict/uploads", "/predict/uploads?name=%ff", "/predict/uploads/x",
    "/predict/uploads/x?at=1e9", "/predict/uploads/%2e%2e/end", "/predict/models/..%2f..%2fetc",
    "/predict/ask/%3Cscript%3E", "/predict/ask/predict", "/predict/ask/predict?name=%00",
    "*", "http://[", "/?" + "&".join(f"a{n}=1" for n in range(3000)), "/;x=y", "/%2f%2e%2e%2f",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "get", "X-Y")
HEADERS = (
    {"Host": ""}, {"Host": "["}, {"Host": "evil.example"}, {"Host": "localhost:99999999"},
    {"Host": "localhost\x00"}, {"Origin": "x"}, {"Origin": "http://["}, {"Cookie": "a" * 9000},
    {"Cookie": ";;;=;"}, {"Cookie": "dippm-token=\xff"}, {"Authorization": "Bearer"},
    {"Authorization": "Bearer \xff"}, {"Content-Type": "x"},
    {"Content-Type": "application/json;\xff"},
    {"Content-Type": "multipart/form-data"}, {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Length": "-1"}, {"Content-Length": "x"}, {"Content-Length": "0"},
    {"Transfer-Encoding": "x"}, {"Transfer-Encoding": "chunked"}, {"Range": "bytes=9-1"},
    {"If-None-Match": '"' * 99}, {"If-Modified-Since": "x"}, {"Accept-Encoding": "\xff"},
    {"X-Forwarded-Proto": "javascript"}, {"X-Forwarded-Proto": "https"}, {"Expect": "100-continue"},
    {"X-Forwarded-For": "\xff"}, {"Forwarded": "host=["}, {"Connection": "upgrade"},
    {"A" * 40_000: "x"},
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library over runs that go on, each of which was read."""
    folder = tmp_path_factory.mktemp("requests")
    spool = folder / "spool"
    spool.mkdir()
    make_exhibition(spool)
    library = Library(str(folder / "runs.db"), spool)
    library.look()
    library.opened(run.uuid for run in library.runs())
    library.look()
    assert library.opened(run.uuid for run in library.runs())
    return library


@pytest.fixture(scope="module")
def served(library):
    page = ServedPage(library, "127.0.0.1", 0)
    thread = threading.Thread(target=page.answer, daemon=True)
    thread.start()
    yield page
    page.close()
    thread.join(30)
    assert not thread.is_alive()


def ask(page, method="GET", path="/", body=None, headers=None):
    """Return status, headers and text of an answer; what is asked is sent as it is."""
    given = {"Host": "localhost", "Content-Length": str(len(body or b""))} | (headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    with connected(page) as visitor:
        # At once: a page that refuses the head closes, and what is sent then finds nobody.
        visitor.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + (body or b""))
        answer = http.client.HTTPResponse(visitor, method=method.upper())
        answer.begin()
        return answer.status, dict(answer.getheaders()), answer.read()


def connected(page):
    address = urlsplit(page.shown)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def call(page, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(page, "POST", CALLBACK, raw, {"Content-Type": "application/json"})


def part(dependency, library):
    """Return an input as the page sends it, with a value that it could have."""
    runs = [run.uuid for run in library.runs()]
    settings = {
        "smoothing": 0,
        "alignment": "run",
        "axis": "time",
        "grouping": "single",
        "hidden": [],
        "show": ["rates", "prediction"],
        "selected": runs,
        "seen": [0.0, 9.0],
    }
    filters = {
        "search": "",
        "status": "",
        "condition": "loss > 0",
        "experiments": [],
        "workloads": [],
        "columns": ["status", "param: lr"],
        "sort": "-started",
        "by": "",
        "opened": [],
        "first": 0,
    }
    values = {
        "settings": settings,
        "filters": filters,
        "streams": ["tree.rss_mb"],
        "version": 0,
        "zooms": {"tree.rss_mb": {"y": None, "log": True}},
        "dark": "light",
        "clock": 1,
        "view": {"name": "run", "run": runs[0]},
        "wanted": {"newest": 3, "at": 1},
        "given": {"name": "a.json", "text": "{}", "at": 1},
        "saving": 1,
        "taken": {"stream": "tree.rss_mb", "kind": "csv", "at": 1},
        "fetched": {"run": runs[0], "name": "a.txt", "at": 1},
    }
    id_ = dependency["id"]
    name = id_
    if id_.startswith("{"):
        id_ = json.loads(id_) | {"stream": "tree.rss_mb"}
        name = id_["type"]
    value = id_ if dependency["property"] == "id" else values.get(name)
    return {"id": id_, "property": dependency["property"], "value": value}


def requests_of(page, library):
    """Return a sound request to every callback that the server answers."""
    _, _, text = ask(page, path="/_dash-dependencies")
    found = []
    for one in json.loads(text):
        if one["clientside_function"]:
            continue
        many = [json.dumps(d) for d in one["inputs"] + one["state"] if '["ALL"]' in d["id"]]
        inputs, state = (
            [[part(d, library)] if json.dumps(d) in many else part(d, library) for d in one[kind]]
            for kind in ("inputs", "state")
        )
        names = one["output"].strip(".").split("...")
        outputs = []
        for name in names:
            id_, _, prop = name.rpartition(".")
            id_ = json.loads(id_) | {"stream": "tree.rss_mb"} if id_[:1] == "{" else id_
            outputs.append({"id": id_, "property": prop})
        first = inputs[0][0] if isinstance(inputs[0], list) else inputs[0]
        id_ = first["id"]
        shown = json.dumps(id_, separators=(",", ":")) if isinstance(id_, dict) else id_
        found.append(
            {
                "output": one["output"],
                "outputs": outputs if one["output"].startswith("..") else outputs[0],
                "inputs": inputs,
                "state": state,
                "changedPropIds": [f"{shown}.{first['property']}"],
            }
        )
    return found


def places(node, here=()):
    """Return the way to each part of a document."""
    yield here
    if not isinstance(node, dict | list):
        return
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
        yield from places(inner, (*here, key))


def mutated(body, chance):
    """Return a request with some parts replaced or gone."""
    body = copy.deepcopy(body)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        way = chance.choice(list(places(body))[1:])
        try:
            node = body
            for key in way[:-1]:
                node = node[key]
            if chance.random() < 0.2:
                del node[way[-1]]
            else:
                node[way[-1]] = copy.deepcopy(chance.choice(EVIL))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    return body


def test_sound_requests_are_answered(served, library):
    requests = requests_of(served, library)
    assert len(requests) >= 10
    answers = {one["output"]: call(served, one) for one in requests}
    assert {name: got[0] for name, got in answers.items() if got[0] not in (200, 204)} == {}
    drawn = [got[2] for name, got in answers.items() if "figure" in name]
    assert b"scatter" in drawn[0]


@pytest.mark.nightly(part="hostile")
def test_no_malformed_request_is_more_than_refused(served, library, capfd, monkeypatch):
    """1,100 of them: callbacks with parts replaced or gone, bodies, paths, methods, headers."""
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 1.0)  # of bodies that never end
    chance = random.Random(7)
    requests = requests_of(served, library)
    cases = [("POST", CALLBACK, mutated(chance.choice(requests), chance), {}) for _ in range(800)]
    cases += [("POST", CALLBACK, body, {}) for body in BODIES]
    cases += [(method, path, b"", {}) for method in METHODS for path in PATHS[::3]]
    cases += [("GET", path, b"", {}) for path in PATHS]
    cases += [("POST", path, b"x=%ff&token=\xff", {}) for path in PATHS]
    for given in HEADERS:
        cases += [("GET", "/", b"", given), ("POST", CALLBACK, b"{}", given)]
        cases += [("POST", "/token", b"token=x", given)]
    failed = []
    for method, path, body, given in cases:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if path == CALLBACK else {}
        try:
            status, said, text = ask(served, method, path, raw, headers | given)
        except (http.client.HTTPException, ConnectionError):
            continue  # closed without an answer
        is_unknown_coding = given == {"Transfer-Encoding": "x"}  # HTTP has 501 for that
        is_long = status >= 400 and (len(text) > 1200 or b"Traceback" in text)
        if (status >= 500 and not is_unknown_coding) or is_long:
            failed.append((status, method, path[:40], raw[:300], given, text[:200]))
        assert not any(word in said.get("Server", "") for word in ("Python", "/", "waitress"))
    assert failed == []
    assert ask(served, path="/_dash-layout")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_request_that_is_too_large_is_refused(served):
    large = str(LARGEST_REQUEST_BYTES + 1)
    assert ask(served, "POST", CALLBACK, b"{}", {"Content-Length": large})[0] == 413
    assert ask(served, headers={"A": "x" * 40_000})[0] in (400, 431)


def is_closed(visitor):
    """Wait until a server has closed a connection."""
    visitor.settimeout(60)
    try:
        return visitor.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_visitor_who_never_finishes_asking_is_sent_away(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 0.2)
    beginnings = (
        b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nA:",
        b"POST /token HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx",
        b"GET /nowhere%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",  # answered, and then silent
    )  # fmt: skip
    visitors = [connected(served) for _ in beginnings]
    for visitor, text in zip(visitors, beginnings, strict=True):
        visitor.sendall(text)
    while visitors[4].recv(4096):
        pass
    assert all(is_closed(visitor) for visitor in visitors)


def test_a_visitor_who_sends_a_byte_now_and_then_is_sent_away(served, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.5)
    with connected(served) as visitor:
        visitor.sendall(b"GET / HTTP/1.1\r\nA: ")
        visitor.settimeout(0.05)
        for _ in range(1200):
            try:
                visitor.sendall(b"x")
                if visitor.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was never sent away")


def test_a_visitor_who_does_not_read_is_sent_away(library, monkeypatch):
    def endless(_, start):
        start("200 OK", [("Content-Type", "text/plain")])
        return (b"x" * 2**20 for _ in range(10_000))

    monkeypatch.setattr(connections, "READ_TIMEOUT_S", 0.5)
    listener = connections.PageListener(endless, "127.0.0.1", 0)
    thread = threading.Thread(target=listener.answer, daemon=True)
    thread.start()
    with socket.create_connection(("127.0.0.1", listener.port), timeout=60) as visitor:
        visitor.sendall(b"GET / HTTP/1.0\r\n\r\n")
        until = time.monotonic() + 60
        while not listener._server.active_channels:  # it has come
            assert time.monotonic() < until
        while listener._server.active_channels:  # it has gone, and nothing was read meanwhile
            assert time.monotonic() < until
            time.sleep(0.01)
    listener.close()
    thread.join(60)
    assert not thread.is_alive()


def test_connections_that_ask_for_nothing_make_room(library):
    def hello(_, start):
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
        return [b"hello"]

    listener = connections.PageListener(hello, "127.0.0.1", 0, max_connections=5)
    thread = threading.Thread(target=listener.answer, daemon=True)
    thread.start()
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", listener.port), 60) for _ in range(60)]
    for visitor in idle[:30]:
        visitor.sendall(b"GET / HTTP/1.1\r\nA: ")
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=60) as visitor:
            visitor.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = http.client.HTTPResponse(visitor)
            answer.begin()
            assert answer.read() == b"hello"
            assert answer.getheader("Server") is None
    assert len(listener._server.active_channels) <= 5
    assert threading.active_count() <= before
    listener.close()
    thread.join(60)
    for visitor in idle:
        visitor.close()


def test_what_takes_long_stops_nobody(served, library, monkeypatch):
    """All turns are taken: lists and files are answered, and who draws too much is told to wait."""
    begun, ended = threading.Semaphore(0), threading.Event()

    def slow(*_, **__):
        begun.release()
        assert ended.wait(120)
        return {}, "", ""

    monkeypatch.setattr("dippm.show.ui.page.charts.view", slow)
    requests = {one["output"]: one for one in requests_of(served, library)}
    [draw] = [one for name, one in requests.items() if "figure" in name]
    lists = requests["..version.data...news.data.."]
    busy = visits.RUNNING + visits.MAX_WAITING
    threads = [threading.Thread(target=call, args=(served, draw)) for _ in range(busy)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(visits.RUNNING):
            assert begun.acquire(timeout=60)
        while visits._present._value:
            assert call(served, lists)[0] == 200
        status, said, _ = call(served, draw)
        assert (status, said["Retry-After"]) == (429, "1")
        assert not begun.acquire(blocking=False)
        assert ask(served, path="/_dash-layout")[0] == 200
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def test_what_fails_here_is_said_once_and_in_a_line(served, library, monkeypatch, capfd):
    def broken(*_, **__):
        raise KeyError("a\nb\x1b[31m" + "x" * 1000)

    monkeypatch.setattr("dippm.show.ui.page.charts.view", broken)
    [draw] = [one for one in requests_of(served, library) if "figure" in one["output"]]
    for _ in range(3):
        status, _, text = call(served, draw)
        assert status == 500
        assert b"KeyError" not in text
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 400
    assert "\x1b" not in said


def test_a_page_for_others_says_that_it_is_not_encrypted(store_file, tmp_path):
    words = [sys.executable, "-m", "dippm", "ui", "--store", str(store_file), "--port", "0"]
    said = {}
    for host in ("0.0.0.0", "127.0.0.1"):
        errors = tmp_path / host
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [*words, "--no-browser", "--host", host],
                stdout=subprocess.PIPE, stderr=stderr, text=True,
                env={**os.environ, "DIPPM_SPOOL": str(tmp_path / "spool")},
            )  # fmt: skip
            assert process.stdout
            assert process.stdout.readline().startswith("runs at http://")
            process.send_signal(signal.SIGINT if host == "0.0.0.0" else signal.SIGTERM)
            assert process.wait(60) == (130 if host == "0.0.0.0" else 143)
            process.stdout.close()
        said[host] = " ".join(errors.read_text().split())
    assert "without encryption" in said["0.0.0.0"]
    assert "TLS" in said["0.0.0.0"]
    assert "encryption" not in said["127.0.0.1"]
    assert "Traceback" not in said["0.0.0.0"] + said["127.0.0.1"]
