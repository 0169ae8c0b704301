"""The Predict door in a real browser: dropping, charts, two side by side, keyboard, both widths."""

from __future__ import annotations

import base64
import json
import threading
import time

import pytest

pytest.importorskip("dash", reason="the page needs the extra ui")

from dippm.show.ui.library import Library
from dippm.show.ui.serving import ServedPage
from tests.browser import AXE, NEEDS_AXE, NEEDS_CHROMIUM
from tests.chromium import chromium
from tests.conftest import write_onnx
from tests.unit.ui.test_page import CONTRAST, axe, fetched

pytestmark = [pytest.mark.browser, pytest.mark.nightly(part="services"), NEEDS_CHROMIUM]
PANELS = "document.querySelectorAll('#answer .panel').length"
TROUBLE = "document.querySelector('#trouble').textContent"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    page = ServedPage(Library(str(folder / "runs.db"), folder / "spool"), "127.0.0.1", 0)
    thread = threading.Thread(target=page.answer, daemon=True)
    thread.start()
    yield page
    page.close()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return write_onnx(tmp_path_factory.mktemp("net") / "net.onnx", batch="n")


@pytest.fixture
def tab(browser, served):
    browser.leave()
    browser.size(1280, 1000)
    open_page(browser, served.predict_address)
    yield browser
    refusals = ("error: Failed to load resource",)  # what the page then says in words
    said = [line for line in browser.said if not line.startswith(("log", "info", "debug"))]
    assert [line for line in said if not line.startswith(refusals)] == []
    own = (served.shown, "data:", "blob:", "about:blank")
    assert [address for address in browser.asked if not address.startswith(own)] == []


def open_page(tab, address):
    tab.open("about:blank")
    tab.open(address)
    tab.wait("!!document.body && 'ready' in document.body.dataset")


def answered(tab, panels=6):
    tab.wait(f"{PANELS} >= {panels} || {TROUBLE} !== ''")
    assert tab.run(TROUBLE) == ""


def predict(tab, net, batch=8):
    tab.give("#file-a", net)
    tab.wait("document.querySelector('[data-side=a] [data-said]').textContent.includes('net.onnx')")
    tab.run(f"document.querySelector('#batch').value = {batch}")
    tab.click("#ask")
    answered(tab)


def text_of(tab, selector="#answer"):
    return tab.run(f"document.querySelector({json.dumps(selector)}).innerText")


def drop(tab, name, content):
    """Drop a file as a hand does."""
    text = base64.b64encode(content).decode()
    tab.run(f"""(() => {{
      const bytes = Uint8Array.from(atob('{text}'), (one) => one.charCodeAt(0));
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([bytes], {json.dumps(name)}));
      const event = new DragEvent('drop', {{ dataTransfer, bubbles: true, cancelable: true }});
      document.querySelector('[data-side=a] .drop').dispatchEvent(event);
    }})()""")


def test_a_dropped_file_is_answered_with_charts_and_nothing_leaves(tab, net):
    drop(tab, "net.onnx", net.read_bytes())
    tab.run("document.querySelector('#batch').value = 8")
    tab.click("#ask")
    answered(tab)
    said = text_of(tab)
    for part in ("latency", "energy of a batch", "99 % bound", "context", "1g.5gb", "Python"):
        assert part in said
    assert "dippm predict net.onnx --batch 8 --device A100-40GB" in said
    assert tab.run("document.querySelectorAll('.plot svg polyline').length") == 14
    assert tab.run("document.querySelectorAll('.flame button').length") >= 3
    assert tab.run("document.querySelectorAll('#answer .bar-of i').length") > 2


def test_what_is_taken_along_is_the_answer(tab, net, tmp_path):
    tab.downloads(tmp_path)
    predict(tab, net, batch=4)
    for kind in ("JSON", "HTML"):
        tab.click(f"button[data-take={kind}]")
    document = json.loads(fetched(tmp_path, "net.onnx.json").read_text())
    assert document["schema"] == "dippm.predict/1"
    assert document["conditions"]["batch"] == 4
    page = fetched(tmp_path, "net.onnx.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "By module" in page


def test_two_gpus_and_two_models_stand_side_by_side(tab, net, tmp_path):
    tab.click("#beside")
    tab.run("(o => { o.value = 'L4'; o.dispatchEvent(new Event('change')); })"
            "(document.querySelector('#device-b'))")  # fmt: skip
    predict(tab, net)
    tab.wait("document.querySelectorAll('.values thead th').length === 3")
    head = tab.run("document.querySelector('.values thead').innerText")
    assert "net.onnx · A100-40GB" in head
    assert "net.onnx · L4" in head
    assert "× " in text_of(tab, ".values tbody tr")
    assert tab.run("document.querySelectorAll('.plot')[0].querySelectorAll('polyline').length") == 2
    other = write_onnx(tmp_path / "other.onnx", batch="n")
    tab.give("#file-b", other)
    tab.click("#ask")
    tab.wait("document.querySelector('.values thead').innerText.includes('other.onnx · L4')")
    assert "beside=1" in tab.run("location.hash")


def test_what_is_wrong_is_said_with_the_next_step(tab, tmp_path):
    tab.click("#ask")
    tab.wait(f"{TROUBLE}.includes('there is no model yet')")
    unsafe = tmp_path / "net.pt2"
    torch = pytest.importorskip("torch")
    module = torch.nn.Conv2d(3, 8, 3).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(2, 3, 8, 8),)), unsafe)
    tab.give("#file-a", unsafe)
    tab.wait("document.querySelector('[data-side=a] [data-said]').textContent.includes('pt2')")
    tab.click("#ask")
    tab.wait(f"{TROUBLE}.includes('dippm predict net.pt2 --batch 1 --device A100-40GB --trust')")
    bad = tmp_path / "bad.onnx"
    bad.write_text("nonsense")
    tab.give("#file-a", bad)
    tab.wait("document.querySelector('[data-side=a] [data-said]').textContent.includes('bad')")
    tab.click("#ask")
    tab.wait(f"{TROUBLE}.includes('bad.onnx')")
    assert len(tab.run(TROUBLE).splitlines()) >= 2, "the next step"
    tab.click("#remove")
    tab.type("#name-a", "timm:resnet5000")
    tab.click("#ask")
    tab.wait(f"{TROUBLE}.includes('resnet5000')")
    assert tab.run("document.querySelector('#cancel').disabled")


def test_a_name_of_a_file_is_text(tab, net):
    name = "<img src=x onerror=\"document.title='owned'\">.onnx"
    drop(tab, name, net.read_bytes())
    tab.click("#ask")
    answered(tab)
    assert name in text_of(tab)
    assert tab.run("document.title") == "DIPPM predict"


def test_a_question_is_cancelled_and_its_stages_are_seen(tab):
    tab.type("#name-a", "timm:convnext_base")
    tab.click("#ask")
    tab.wait("document.querySelectorAll('#stages li').length > 0")
    tab.click("#cancel")
    tab.wait("document.querySelector('#message').textContent === 'cancelled'")
    assert tab.run(PANELS) == 0
    assert tab.run("document.querySelector('#cancel').disabled")


def test_all_of_it_is_done_by_keyboard(tab, net):
    reached = []
    name = "document.activeElement.id || document.activeElement.textContent"

    def go(wanted, most=200):
        for _ in range(most):
            tab.press("Tab")
            reached.append(tab.run(name))
            if reached[-1] == wanted:
                return
        raise AssertionError((wanted, reached))

    go("name-a")
    assert "file-a" in reached
    tab.call("Input.insertText", text="timm:resnet18")
    go("ask")
    tab.press("Enter")
    answered(tab)
    assert tab.run("document.activeElement.id") == "answer", "the answer is what comes next"
    reached.clear()
    go("timm:resnet18")
    tab.press("ArrowRight")
    box = tab.run("document.activeElement.textContent")
    assert box not in ("", "timm:resnet18")
    assert f"{box}:" in text_of(tab, ".said")
    tab.press("Enter")
    tab.wait("document.querySelector('.flame button').textContent !== 'timm:resnet18'")
    tab.press("Enter")
    tab.wait("document.querySelector('.flame button').textContent === 'timm:resnet18'")
    go("Take JSON along")
    go("Copy")


def test_an_address_brings_the_question_back(tab, served):
    open_page(tab, f"{served.predict_shown}#name-a=timm:resnet18&device-a=A30&mig-a=1g.6gb&batch=4"
                   "&precision=nonsense")  # fmt: skip
    values = "['name-a', 'device-a', 'mig-a', 'batch', 'precision']"
    found = tab.run(f"{values}.map((id) => document.getElementById(id).value)")
    assert found == ["timm:resnet18", "A30", "1g.6gb", "4", "fp32"]
    tab.click("#ask")
    answered(tab)
    assert "A30 1g.6gb" in text_of(tab)


def test_a_training_step_has_an_optimizer(tab, served):
    assert tab.run("document.querySelector('#optimizer').disabled")
    asked = "#name-a=timm:resnet18&phase=train&optimizer=adam&batch=16"
    open_page(tab, served.predict_shown + asked)
    tab.click("#ask")
    answered(tab)
    said = text_of(tab)
    assert "gradients" in said
    assert "optimizer" in said
    assert "--phase train --optimizer adam" in said


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(tab, net, width, scheme):
    tab.size(width, 900, scheme=scheme)
    tab.click("#beside")
    predict(tab, net)
    back = {"light": "rgb(245, 247, 250)", "dark": "rgb(13, 17, 23)"}[scheme]
    tab.wait(f"getComputedStyle(document.body).backgroundColor === '{back}'")
    assert tab.run("document.documentElement.scrollWidth") <= width
    flat = CONTRAST.replace("!o.closest('svg')", "!o.closest('svg') && !o.closest('.flame')")
    assert [found for found in tab.run(flat) if found[1] < 4.5] == []


@NEEDS_AXE
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(tab, net, width, scheme):
    assert AXE.is_file()
    tab.size(width, 900, scheme=scheme)
    tab.click("#beside")
    empty = axe(tab)
    predict(tab, net)
    assert {"empty": empty, "answered": axe(tab)} == {"empty": [], "answered": []}


def test_the_files_go_with_the_page(tab, net, served):
    predict(tab, net)
    uploads = served._predicting.service.uploads
    assert len(uploads) >= 1
    tab.open("about:blank")
    until = time.monotonic() + 60
    while len(uploads) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(uploads) == 0
