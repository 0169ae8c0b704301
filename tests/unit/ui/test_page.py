"""The page in a real browser: what a visitor sees, does, takes along and brings back."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import threading
import time

import pytest

pytest.importorskip("dash", reason="the page needs the extra ui")

from dippm.runs.store.folder import RunFolder
from dippm.runs.store.record import Span, Value
from dippm.show.ui.library import Library
from dippm.show.ui.serving import ServedPage
from tests.browser import AXE, NEEDS_AXE, NEEDS_CHROMIUM
from tests.chromium import chromium
from tests.page_runs import HOSTILE, make_exhibition, make_training
from tests.run_folders import START_NS

pytestmark = [pytest.mark.browser, pytest.mark.nightly(part="services"), NEEDS_CHROMIUM]
GRAPH = "document.querySelector('.chart .js-plotly-plot')"
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def served(_tables, tmp_path_factory, spool):
    """A page over eight runs, one of them with a name that would be a script."""
    folder = tmp_path_factory.mktemp("page")
    store = shutil.copy(_tables, folder / "runs.db")
    make_exhibition(spool)
    make_training(spool, name=HOSTILE, workload=HOSTILE, experiment=HOSTILE, number=8, ticks=30)
    for path in spool.iterdir():
        writer = RunFolder(path)
        writer.value(Value(HOSTILE, "metric", 1.0, START_NS))
        writer.span(Span(7_000, HOSTILE, START_NS, START_NS + 10**9))
        writer.close()
    library = Library(str(store), spool)
    library.start()
    page = ServedPage(library, "127.0.0.1", 0)
    threading.Thread(target=page.answer, daemon=True).start()
    yield page
    page.close()
    library.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture
def tab(browser, served):
    """A page that was just opened; what it said and asked for belongs to the test."""
    browser.leave()  # first: it may still ask a server that has ended
    browser.size(1280, 1000)
    browser.open(served.address)
    browser.wait("document.querySelectorAll('#runs tbody tr').length >= 8")
    yield browser
    assert [line for line in browser.said if not line.startswith(("log", "info", "debug"))] == []


ROWS = "document.querySelectorAll('#runs tbody tr').length"


def choose(tab, experiment="co-location"):
    """Select all runs of an experiment, and go to their charts."""
    tab.click(f"#experiments input[value='{experiment}']")
    count = {"co-location": 6, "earlier": 1}[experiment]
    tab.wait(f"{ROWS} == {count}")
    tab.click("#select-all")
    tab.wait(f"document.querySelector('#runs-note').innerText.includes('{count} selected')")
    tab.click("nav a[data-go='charts']")


def draw(tab, stream="tree.rss_mb", traces=6):
    """Draw one stream alone."""
    tab.wait(f"!!document.querySelector('#streams input[value=\"{stream}\"]')")
    others = f"#streams input:checked:not([value='{stream}'])"
    while tab.run(f'!!document.querySelector("{others}")'):
        tab.click(others)
    box = f"document.querySelector('#streams input[value=\"{stream}\"]')"
    tab.run(f"(o => o.checked || o.click())({box})")
    tab.wait(f"document.querySelectorAll('.chart').length == 1 && !!{GRAPH}")
    tab.wait(f"{GRAPH}.querySelectorAll('.scatterlayer .trace').length == {traces}")


def turn(tab, id_, value):
    """Choose an option."""
    tab.run(
        f"(o => {{ o.value = '{value}'; o.dispatchEvent(new Event('change')); }})"
        f"(document.getElementById('{id_}'))"
    )


def data(tab, what):
    return tab.run(f"{GRAPH}.{what}")


def test_runs_are_selected_across_experiments_and_drawn_offline(tab, served):
    tab.click("#experiments input[value='earlier']")
    tab.wait(f"{ROWS} == 1")
    tab.click("#runs tbody input")
    tab.click("#experiments input[value='earlier']")
    tab.click("#experiments input[value='co-location']")
    tab.wait("document.querySelectorAll('#workloads input').length == 3")
    tab.click("#workloads input[value*='two at once']")
    tab.wait(f"{ROWS} == 2")
    tab.click("#runs tbody input")
    tab.wait("document.querySelector('#runs-note').innerText.includes('2 selected')")
    tab.click("nav a[data-go='charts']")
    draw(tab, traces=2)
    names = data(tab, "data.map(trace => trace.name).join()")
    assert names == "baseline,resnet18 b"
    assert data(tab, "_fullLayout.annotations.length") == 1
    elsewhere = [a for a in tab.asked if not a.startswith((served.shown, "data:", "blob:"))]
    assert [address for address in elsewhere if address != "about:blank"] == []


def test_a_tick_outlives_a_list_that_was_asked_for_before_it(tab):
    tab.click("#experiments input[value='earlier']")
    tab.wait(f"{ROWS} == 1")
    tab.run(
        "document.querySelector(\"#experiments input[value='earlier']\").click();"
        "document.querySelector('#runs tbody input').click()"
    )
    tab.wait(f"{ROWS} >= 7")
    tab.wait("document.querySelector('#runs-note').innerText.includes('1 selected')")
    tab.wait("document.querySelectorAll('#runs tbody input:checked').length == 1")


def test_search_and_condition_filter_the_list(tab):
    tab.type("#search", "baseline")
    tab.wait(f"{ROWS} == 1")
    tab.type("#condition", "nonsense")
    tab.wait("document.querySelector('#condition-trouble').innerText.includes('no condition')")


def test_the_table_is_sorted_grouped_and_has_the_columns_that_were_chosen(tab):
    first = "document.querySelector('#runs tbody a')"
    tab.click("#runs button[data-sort='name']")
    tab.wait("!!document.querySelector('#runs [aria-sort=ascending]')")
    assert tab.run(f"{first}.innerText").startswith("<img")
    tab.click("#runs button[data-sort='name']")
    tab.wait(f"{first}.innerText.startsWith('resnet18')")
    tab.click("#columns input[value='metric: loss']")
    tab.wait("!document.querySelector(\"#runs button[data-sort='metric: loss']\")")
    tab.click("#columns input[value='param: lr']")
    tab.wait("!!document.querySelector(\"#runs button[data-sort='param: lr']\")")
    turn(tab, "by", "experiment")
    tab.wait("document.querySelectorAll('#runs tr.group').length == 3")
    group = "[...document.querySelectorAll('#runs tr.group')].find(o => /co-loc/.test(o.innerText))"
    tab.run(f"{group}.querySelector('button').focus()")
    tab.press("Enter")
    tab.wait("document.activeElement.innerText.startsWith('▾ co-loc')")  # the table was made anew
    tab.wait(f"{ROWS} == 9 && document.querySelectorAll('#runs tr.group').length == 3")
    tab.run(f"{group}.querySelector('input').click()")
    tab.wait("document.querySelector('#runs-note').innerText.includes('6 selected')")
    tab.wait("document.querySelectorAll('#runs tbody input:checked').length == 7")


def test_no_row_of_the_table_overlaps_another(tab):
    for view in ("runs", "charts"):
        tab.click(f"nav a[data-go='{view}']")
        tab.wait(f"document.body.dataset.view === '{view}'")
        overlaps = tab.run(
            "[...document.querySelectorAll('#runs tbody tr')].filter((row, n, all) => n &&"
            " row.getBoundingClientRect().top < all[n-1].getBoundingClientRect().bottom - 1).length"
        )
        assert overlaps == 0


@pytest.mark.parametrize("width", [1280, 390])
def test_charts_begin_in_the_first_screen(tab, width):
    tab.size(width, 900)
    choose(tab)
    draw(tab)
    assert tab.run("document.querySelector('.frame').getBoundingClientRect().top") < 350


def test_an_address_survives_a_reload_and_can_be_sent(tab, served):
    choose(tab)
    draw(tab)
    turn(tab, "grouping", "merged")
    turn(tab, "smoothing", 40)
    tab.click("#show input[value='spans']")
    tab.click(".chart button[data-step='log']")
    tab.wait(f"{GRAPH}._fullLayout.yaxis.type === 'log' && {GRAPH}.data.length >= 9")
    tab.run(f"Plotly.relayout({GRAPH}, {{'xaxis.range': [2, 6]}}).then(() => 1)")
    tab.wait("location.hash.includes('x=2%2C6')")
    sent = tab.run("location.href")
    assert "token" not in sent
    tab.open("about:blank")
    tab.open(sent)
    tab.wait(f"{GRAPH} && {GRAPH}.layout.xaxis.range.join() === '2,6'")
    tab.wait(f"{GRAPH}._fullLayout.yaxis.type === 'log' && {GRAPH}.data.length >= 9")
    assert tab.run("document.querySelector('#grouping').value") == "merged"
    assert tab.run("document.querySelector('#smoothing').value") == "40"
    tab.wait("document.querySelectorAll('#experiments input:checked').length == 1")
    assert tab.run("location.href") == sent
    tab.click("nav a[data-go='runs']")
    tab.wait("document.body.dataset.view === 'runs'")
    tab.run("history.back()")
    tab.wait("document.body.dataset.view === 'charts'")


def test_an_address_of_nonsense_opens_the_page(tab, served):
    tab.open("about:blank")
    nonsense = "view=moon&runs=x,y&smooth=-4&x=a,b&zoom=[&workload=1&align=[]&show=%00&first=1e99"
    tab.open(f"{served.address}#{nonsense}")
    tab.wait(f"{ROWS} >= 8 || document.querySelector('#runs').innerText.includes('No run')")
    assert tab.run("document.body.dataset.view") == "runs"


def test_the_page_of_a_run_says_what_is_known_and_why_the_rest_is_absent(tab):
    tab.run(
        "[...document.querySelectorAll('#runs tbody a')].find(o => o.innerText === 'mps a').click()"
    )
    tab.wait("document.querySelector('#run').innerText.includes('no sensor of power here')")
    said = tab.run("document.querySelector('#run').innerText")
    for part in ("exit code", "Parameters", "lr", "Told", "loss", "predicted", "forward", "310.0"):
        assert part in said
    assert "latency of the last 55 'forward' is 363.2 ms" in tab.run(
        "document.querySelector('#run section[aria-label=Warnings]').innerText"
    )
    assert "warning/" not in said
    assert "view=run" in tab.run("location.hash")
    tab.run("history.back()")
    tab.wait("document.body.dataset.view === 'runs'")


def test_runs_are_held_beside_each_other(tab):
    choose(tab)
    tab.click("nav a[data-go='compare']")
    tab.wait("document.querySelectorAll('#compare thead th').length >= 7")
    assert "Parameters that are the same" in tab.run("document.querySelector('#compare').innerText")
    tab.wait("document.querySelectorAll('#compare .differs').length >= 6")


def test_workloads_as_mean_and_range_hidden_and_shown(tab):
    choose(tab)
    draw(tab)
    turn(tab, "grouping", "merged")
    tab.wait(f"{GRAPH}.data.length == 9")
    assert data(tab, "data.filter(trace => trace.fill === 'tonexty').length") == 3
    tab.wait("!!document.querySelector(\"#legend input[value*='alone']\")")
    tab.click("#legend input[value*='alone']")
    tab.wait(f"{GRAPH}.data.length == 6")
    tab.click("#hide-all")
    tab.wait(f"{GRAPH}.data.length == 0")
    tab.click("#show-all")
    tab.wait(f"{GRAPH}.data.length == 9")


def test_smoothing_log_axis_spans_and_alignment(tab):
    choose(tab)
    draw(tab)
    spread = "Math.max(...{g}.calcdata[0].map((p, i, all) => i ? Math.abs(p.y - all[i-1].y) : 0))"
    rough = tab.run(spread.format(g=GRAPH))
    tab.run("document.querySelector('#smoothing').closest('details').open = true")
    tab.run("document.querySelector('#smoothing').focus()")
    for _ in range(20):
        tab.press("ArrowRight")
    tab.wait(f"{spread.format(g=GRAPH)} < {rough} / 1.15")
    tab.click(".chart button[data-step='log']")
    tab.wait(f"{GRAPH}._fullLayout.yaxis.type === 'log'")
    tab.click("#show input[value='spans']")
    tab.wait(f"{GRAPH}.data.filter(o => o.type === 'bar').length == 3")
    assert data(tab, "data.filter(o => o.type === 'bar').map(o => o.name).join()").startswith(
        "forward,validate,"
    )
    turn(tab, "alignment", "workload")
    tab.wait(f"{GRAPH}._fullLayout.xaxis.range[1] > 34")
    turn(tab, "alignment", "clock")
    tab.wait(f"{GRAPH}._fullLayout.xaxis.type === 'date'")
    turn(tab, "axis", "step")
    tab.wait("document.querySelector('.note').innerText.includes('no steps')")


def test_zoom_by_hand_and_by_keyboard(tab):
    choose(tab)
    draw(tab)
    ranges = "{'xaxis.range': [2, 6], 'yaxis.range': [700, 800]}"
    tab.run(f"Plotly.relayout({GRAPH}, {ranges}).then(() => 1)")
    tab.wait(f"{GRAPH}.calcdata[0].length < 60")
    assert data(tab, "layout.yaxis.range.join()") == "700,800"
    tab.run("document.querySelector('.chart button[data-step=\"in\"]').focus()")
    tab.press("Enter")
    tab.wait(f"{GRAPH}._fullLayout.xaxis.range.join() === '3,5'")
    tab.click(".chart button[data-step='right']")
    tab.wait(f"{GRAPH}._fullLayout.xaxis.range.join() === '3.5,5.5'")
    tab.click(".chart button[data-step='reset']")
    tab.wait(f"{GRAPH}._fullLayout.xaxis.range[1] > 29")


def test_all_charts_are_zoomed_at_once(tab):
    choose(tab)
    draw(tab)
    tab.click("#streams input[value='told: loss']")
    graphs = "[...document.querySelectorAll('.chart .js-plotly-plot')]"
    tab.wait(f"{graphs}.length == 2 && {graphs}.every(o => o.calcdata && o.calcdata.length == 6)")
    ends = f"{graphs}.map(o => o._fullLayout.xaxis.range.join())"
    tab.wait(f"new Set({ends}).size == 1")
    tab.run(f"Plotly.relayout({graphs}[1], {{'xaxis.range': [4, 8]}}).then(() => 1)")
    tab.wait(f"{ends}.every(o => o === '4,8')")


def fetched(folder, name):
    """Wait for a download to be whole; return it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        path = folder / name
        if path.exists() and path.stat().st_size and not list(folder.glob("*.crdownload")):
            return path
        time.sleep(0.05)
    raise AssertionError(f"{name} never came; there are {list(folder.iterdir())}")


def test_a_chart_is_taken_along_as_picture_and_as_numbers(tab, tmp_path):
    tab.downloads(tmp_path)
    choose(tab)
    draw(tab)
    begins = {
        "png": b"\x89PNG", "jpeg": b"\xff\xd8\xff", "svg": b"<svg", "pdf": b"%PDF",
        "csv": b"chart,type,run", "json": b"{",
    }  # fmt: skip
    for kind, begin in begins.items():
        tab.click(f".chart button[data-take='{kind}']")
        path = fetched(tmp_path, f"tree-rss_mb.{kind}")
        assert path.read_bytes().startswith(begin)
    picture = (tmp_path / "tree-rss_mb.svg").read_text()
    assert all(word in picture for word in ("resnet18 a", "mps c", ">tree.rss_mb<"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tree-rss_mb.csv").read_text())))
    assert len({row["uuid"] for row in rows if row["uuid"]}) == 6
    assert {row["unit"] for row in rows} == {"MB"}
    assert len([row for row in rows if row["name"] != "predicted"]) == 6 * 300
    document = json.loads((tmp_path / "tree-rss_mb.json").read_text())
    assert len(document["charts"][0]["lines"]) == 6
    assert document["charts"][0]["levels"][0]["value"] == 900


def test_an_exploration_is_saved_and_a_colleague_loads_it(tab, served, tmp_path):
    tab.downloads(tmp_path)
    choose(tab)
    draw(tab)
    turn(tab, "grouping", "merged")
    tab.wait("!!document.querySelector(\"#legend input[value*='alone']\")")
    tab.click("#show input[value='spans']")
    tab.click("#legend input[value*='alone']")
    tab.wait(f"{GRAPH}.data.filter(o => o.type !== 'bar').length == 6")
    for patience_s in (5.0, 15.0):  # amid a drawing that goes on, a drag is lost
        tab.run(f"Plotly.relayout({GRAPH}, {{'xaxis.range': [2, 6]}}).then(() => 1)")
        with contextlib.suppress(AssertionError):  # it has fewer points where the page knows of it
            tab.wait(f"{GRAPH}.calcdata[0].length < 60", patience_s)
            break
    tab.wait(f"{GRAPH}.calcdata[0].length < 60")
    tab.wait(f"{GRAPH}.layout.xaxis.range.join() === '2,6' && !{GRAPH}.layout.xaxis.autorange")
    tab.click("#save")
    saved = fetched(tmp_path, "exploration.json")
    held = json.loads(saved.read_text())
    assert held["charts"] == [{"stream": "tree.rss_mb", "log": False, "x": [2, 6], "y": None}]
    tab.open("about:blank")
    tab.open(served.address)
    tab.wait(f"{ROWS} >= 8")
    held["runs"].append("f" * 32)
    saved.write_text(json.dumps(held))
    tab.give("#load", saved)
    tab.wait("document.querySelector('#message').innerText.includes('1 of them not in this store')")
    tab.wait(f"{GRAPH} && {GRAPH}.data.filter(o => o.type !== 'bar').length == 6")
    tab.wait(f"{GRAPH}.layout.xaxis.range.join() === '2,6'")
    assert tab.run("document.querySelector('#grouping').value") == "merged"
    tab.wait("document.querySelectorAll('#legend input:checked').length == 2")
    broken = tmp_path / "broken.json"
    broken.write_text("{}x")
    tab.give("#load", broken)
    tab.wait("document.querySelector('#message').innerText.includes('no exploration')")


def test_hostile_names_are_text(tab):
    tab.click("#show input[value='spans']")
    tab.click("#select-all")
    tab.wait("document.querySelector('#runs-note').innerText.includes('8 selected')")
    tab.click("nav a[data-go='charts']")
    tab.wait("document.querySelectorAll('#streams input').length >= 6")
    hostile = "[...document.querySelectorAll('#streams input')].filter(o => /script/.test(o.value))"
    for _ in range(2):
        tab.run(f"{hostile}.filter(o => !o.checked)[0]?.click()")
    tab.wait(f"document.querySelectorAll('.chart .main-svg').length >= 2 && {hostile}.length == 2")
    tab.wait(f"{GRAPH}.data.some(o => o.type === 'bar')")
    turn(tab, "grouping", "merged")
    tab.wait("document.querySelector('#legend').textContent.includes('<script>')")
    assert tab.run("document.title") == "DIPPM runs"
    assert tab.run("document.querySelectorAll('main script, main img').length") == 0
    assert "<script>" in tab.run("document.querySelector('#experiments').textContent")
    titles = "[...document.querySelectorAll('.ytitle')].map(o => o.textContent).join()"
    assert "<script>" in tab.run(titles)
    tab.click("nav a[data-go='compare']")
    tab.wait("document.querySelector('#compare').innerText.includes('<script>')")
    tab.run(
        "[...document.querySelectorAll('#compare a')].find(o => /script/.test(o.innerText)).click()"
    )
    tab.wait("document.querySelector('#run').innerText.includes('<script>')")
    assert tab.run("document.title") == "DIPPM runs"
    assert tab.run("document.querySelectorAll('main script, main img').length") == 0


def test_a_run_that_goes_on_is_drawn_as_it_grows(tab, spool):
    folder = make_training(spool, name="live", workload="live", number=9, ticks=50, ended=False)
    tab.type("#search", "live")
    tab.wait(f"{ROWS} == 1")
    tab.wait("document.querySelector('#runs').innerText.includes('running')")
    tab.click("#runs tbody input")
    tab.click("nav a[data-go='charts']")
    draw(tab, stream="told: loss", traces=1)
    assert data(tab, "calcdata[0].length") == 10
    writer = RunFolder(folder)
    for step in range(10, 15):
        writer.value(Value("loss", "metric", 0.1, START_NS + step * 10**9, step=step))
    writer.close()
    tab.wait(f"{GRAPH}.calcdata[0].length == 15")
    shutil.rmtree(folder)
    tab.wait(f"{ROWS} == 0")


def test_everything_is_reached_by_keyboard(tab):
    choose(tab)
    draw(tab)
    tab.run("document.querySelectorAll('details').forEach(o => { o.open = true; })")
    tab.run("document.activeElement.blur()")
    name = """(o => o.id || o.dataset.step || o.dataset.take || o.dataset.go
      || (o.closest('[id]') || {}).id || '')(document.activeElement)"""
    reached = set()
    for _ in range(150):
        tab.press("Tab")
        reached.add(tab.run(name))
        if "json" in reached:
            break
    wanted = {
        "search", "condition", "status", "experiments", "workloads", "runs", "select-all", "charts",
        "streams", "smoothing", "alignment", "grouping", "show", "save", "load", "show-all", "axis",
        "legend", "log", "in", "reset", "png", "csv", "json", "scheme", "compare",
    }  # fmt: skip
    assert wanted - reached == set()
    tab.run("document.querySelector('#show input[value=\"spans\"]').focus()")
    tab.press(" ")
    tab.wait(f"{GRAPH}.data.some(o => o.type === 'bar')")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(tab, width, scheme):
    tab.size(width, 900, scheme=scheme)
    choose(tab)
    draw(tab)
    back = {"light": "rgb(245, 247, 250)", "dark": "rgb(13, 17, 23)"}[scheme]
    tab.wait(f"getComputedStyle(document.body).backgroundColor === '{back}'")
    paper = {"light": "#ffffff", "dark": "#161b22"}[scheme]
    tab.wait(f"{GRAPH}.layout.paper_bgcolor === '{paper}'")
    tab.wait(f"Math.abs({GRAPH}.offsetWidth - {GRAPH}.querySelector('.main-svg').clientWidth) < 2")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run(f"{GRAPH}.offsetHeight") >= 300
    contrast = tab.run(CONTRAST)
    assert [found for found in contrast if found[1] < 4.5] == []


CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      const all = parts(colour);
      if (all.length < 4 || all[3] === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('header *, main *')]
    .filter((o) => !o.closest('svg') && !o.closest('.modebar') && o.offsetParent
      && [...o.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .map((o) => {
      const [a, b] = [light(getComputedStyle(o).color), light(behind(o))].sort((x, y) => y - x);
      return [o.textContent.slice(0, 30), (a + 0.05) / (b + 0.05)];
    });
})()"""


def test_a_page_for_others_asks_for_its_token(browser, store_file, tmp_path):
    page = ServedPage(Library(str(store_file), tmp_path / "spool"), "127.0.0.1", 0, TOKEN)
    threading.Thread(target=page.answer, daemon=True).start()
    try:
        browser.open(page.shown)
        browser.wait("!!document.querySelector('input[type=password]')")
        browser.type("input[type=password]", TOKEN)
        browser.press("Enter")
        browser.wait("!!document.querySelector('#search')")
        assert "token" not in browser.run("location.href")
        assert TOKEN not in browser.run("document.cookie")
    finally:
        page.close()


@NEEDS_AXE
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_in_any_view(tab, width, scheme):
    tab.size(width, 900, scheme=scheme)
    choose(tab)
    draw(tab)
    ready = {
        "charts": f"!!{GRAPH}",
        "compare": "document.querySelectorAll('#compare .panel').length > 1",
        "runs": f"{ROWS} > 1",
    }
    faults = {}
    for view, condition in ready.items():
        tab.click(f"nav a[data-go='{view}']")
        tab.wait(f"document.body.dataset.view === '{view}' && {condition}")
        faults[view] = axe(tab)
    tab.click("#runs tbody a")
    tab.wait("document.querySelectorAll('#run .panel').length > 5")
    assert {**faults, "run": axe(tab)} == {view: [] for view in (*ready, "run")}


def axe(tab):
    tab.run(f"{AXE.read_text()}; 1")
    nodes = "o.nodes.map(n => n.html.slice(0, 120))"
    return tab.run(f"axe.run().then(r => r.violations.map(o => [o.impact, o.id, {nodes}]))")


def test_an_empty_store_says_how_to_make_a_first_run(browser, store_file, tmp_path):
    library = Library(str(store_file), tmp_path / "spool")
    library.start()
    page = ServedPage(library, "127.0.0.1", 0)
    threading.Thread(target=page.answer, daemon=True).start()
    try:
        browser.open("about:blank")
        browser.open(page.address)
        browser.wait("document.querySelector('#runs').innerText.includes('dippm run --store')")
        browser.type("#search", "x")
        browser.wait("location.hash.includes('q=x')")
    finally:
        page.close()
        library.close()


def test_a_file_of_a_run_is_taken_along(browser, store_file, tmp_path):
    from dippm.runs.store.folder import ARTIFACTS
    from dippm.runs.store.runs import open_store
    from tests.run_folders import make_run

    folder = make_run(tmp_path / "made", ticks=5)
    (folder / ARTIFACTS).mkdir(exist_ok=True)
    (folder / ARTIFACTS / "notes.txt").write_text("what the run told")
    stored = open_store(str(store_file)).attach(folder)
    library = Library(str(store_file), tmp_path / "spool")
    library.start()
    page = ServedPage(library, "127.0.0.1", 0)
    threading.Thread(target=page.answer, daemon=True).start()
    downloads = tmp_path / "downloads"
    try:
        browser.downloads(downloads)
        browser.open("about:blank")
        browser.open(f"{page.address}#view=run&run={stored.uuid}")
        browser.wait("document.querySelector('#run').innerText.includes('notes.txt')")
        said = browser.run("document.querySelector('#run').innerText")
        for part in ("cat", "dog", "0123456", "Hyper-parameters", "ValueError", "exit code"):
            assert part in said
        browser.click("#run button[data-artifact='notes.txt']")
        assert fetched(downloads, "notes.txt").read_text() == "what the run told"
    finally:
        page.close()
        library.close()
