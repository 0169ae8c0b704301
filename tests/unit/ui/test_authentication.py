"""Who may see the page: this machine alone, or whoever has the token, asked at every request."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("dash", reason="the page needs the extra ui")

from dippm.show.ui.authentication import COOKIE, PageAuthentication, TokenError, is_loopback
from dippm.show.ui.library import Library
from dippm.show.ui.page.app import application
from dippm.show.ui.serving import PageError, ServedPage

TOKEN = "a-token-that-nobody-guesses"
PATHS = (
    "/",
    "/_dash-layout",
    "/_dash-dependencies",
    "/assets/page.js",
    "/_favicon.ico",
    "/_dash-component-suites/dash/deps/react@18.min.js",
    "/nowhere",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library that nobody started: nothing is read."""
    folder = tmp_path_factory.mktemp("library")
    return Library(str(folder / "runs.db"), folder / "spool")


@pytest.fixture(scope="module")
def guarded(library):
    return application(library, PageAuthentication(TOKEN))


@pytest.fixture(scope="module")
def local(library):
    return application(library, PageAuthentication())


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_given_without_the_token(guarded, path):
    visitor = guarded.test_client()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"{COOKIE}=wrong"}):
        answer = visitor.get(path, headers=headers)
        assert answer.status_code == 401
        assert b"react" not in answer.data
    assert visitor.post("/_dash-update-component", json={}).status_code == 401


def test_the_token_is_asked_at_every_request(guarded):
    visitor = guarded.test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert visitor.get("/_dash-layout", headers=headers).status_code == 200
    assert visitor.get("/_dash-layout").status_code == 401


@pytest.mark.parametrize("by", ["address", "form"])
def test_a_token_lets_in_and_leaves_the_address(guarded, by):
    visitor = guarded.test_client()
    if by == "form":
        answer = visitor.post("/token", data={"token": TOKEN})
    else:
        answer = visitor.get(f"/?token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert visitor.get("/_dash-layout").status_code == 200


@pytest.mark.parametrize("token", ["", "x", TOKEN + "x", "ä" * 30])
def test_a_wrong_token_does_not(guarded, token):
    visitor = guarded.test_client()
    assert visitor.post("/token", data={"token": token}).status_code == 401
    assert visitor.get("/", query_string={"token": token}).status_code == 401
    assert visitor.get("/").status_code == 401


def test_on_this_machine_nobody_needs_a_token(local):
    visitor = local.test_client()
    for host in ("localhost:8050", "127.0.0.1:8050", "[::1]:8050"):
        assert visitor.get("/_dash-layout", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7:8050", "[", "[::1", ""]
)
def test_a_name_that_was_turned_to_this_machine_is_refused(local, host):
    assert local.test_client().get("/_dash-layout", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://["]
)
def test_other_sites_are_refused(local, guarded, origin):
    for server in (local, guarded):
        headers = {"Origin": origin, "Authorization": f"Bearer {TOKEN}"}
        answer = server.test_client().get("/_dash-layout", headers=headers)
        assert answer.status_code == 403


def test_browsers_are_told_to_load_nothing_from_elsewhere(local):
    answer = local.test_client().get("/", headers={"Host": "localhost"})
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    loads = re.findall(r'(?:src|href)="([^"]+)"', answer.get_data(as_text=True))
    assert loads
    assert not [address for address in loads if "//" in address]


@pytest.mark.parametrize("token", ["short", "ä" * 40])
def test_a_token_that_could_be_guessed_is_refused(token):
    with pytest.raises(TokenError, match="16 plain"):
        PageAuthentication(token)


def test_loopback_is_by_address_and_not_by_look():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "", "localhost.evil.example", "192.168.0.1")))


def test_an_address_of_others_gets_a_token_and_the_same_page_none(library):
    everywhere, here = ServedPage(library, "0.0.0.0", 0), ServedPage(library, "127.0.0.1", 0)
    assert re.search(r"\?token=[\w-]{40,}$", everywhere.address)
    assert "token" not in here.address + everywhere.shown
    given = ServedPage(library, "127.0.0.1", 0, TOKEN)
    assert given.address.endswith(f"?token={TOKEN}")


def test_a_port_that_is_taken_says_what_to_do(library):
    first = ServedPage(library, "127.0.0.1", 0)
    port = int(first.shown.rstrip("/").rpartition(":")[2])
    with pytest.raises(PageError, match="port=0"):
        ServedPage(library, "127.0.0.1", port)


def test_the_command_serves_until_it_is_told_to_end(store_file, tmp_path, monkeypatch):
    import urllib.request

    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    words = [sys.executable, "-m", "dippm", "ui", "--store", str(store_file), "--port", "0"]
    process = subprocess.Popen([*words, "--no-browser"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(address, timeout=120) as answer:
            assert b"DIPPM runs" in answer.read()
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(60) == 143
