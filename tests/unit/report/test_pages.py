"""Every page that a command writes: one shell, readable on a phone, with a picture that answers."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.estimate.models.targets import Interval
from dippm.show.report.bars import Bar, bars
from dippm.show.report.shell import is_numeric, note_list, page
from tests.browser import NEEDS_CHROMIUM
from tests.chromium import chromium

pytest.importorskip("plotly", reason="pages with plots need the extra report")

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
    "torch_dtype": "float16", "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
STAGES = """
[[stages]]
name = "seen once"
model = "model_with_a_name.onnx"

[[stages]]
name = "seen often"
model = "model_with_a_name.onnx"
repeat = 30
"""
COMMANDS = {
    "predict": "MODEL --batch 8",
    "compare": "MODEL --device A100,T4 --batch 1,8",
    "explain": "MODEL",
    "diff": "MODEL --device A100,H100",
    "sweep": "MODEL --batch 1:8",
    "mig": "MODEL --slo-ms 50",
    "choose": "MODEL --devices A100,H100,T4",
    "what-if": "MODEL",
    "parallel": "MODEL --phase train --gpus 2",
    "llm": "CONFIG",
    "pipeline": "STAGES",
}
PLOTTED = {"choose", "explain", "diff", "sweep"}
MOST_BYTES = 200_000
"""Of a page without plotly."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the page of each command by its name, of one small model."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pages")
    layers = [
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(7200, 5),
    ]
    model, config = folder / "model_with_a_name.onnx", folder / "llama"
    stages = folder / "stages.toml"
    stages.write_text(STAGES)
    torch.onnx.export(
        torch.nn.Sequential(*layers).eval(), torch.randn(1, 3, 32, 32), model, dynamo=False,
        input_names=["x"], dynamic_axes={"x": {0: "n"}},
    )  # fmt: skip
    config.mkdir()
    (config / "config.json").write_text(json.dumps(LLAMA))
    files = {"MODEL": model, "CONFIG": config, "STAGES": stages}
    made = {}
    for name, words in COMMANDS.items():
        made[name] = folder / f"{name}.html"
        given = [str(files.get(word, word)) for word in words.split()]
        answer = CliRunner().invoke(app, [name, *given, "--html", str(made[name])])
        assert answer.exit_code == 0, answer.output
    return made


def test_pages_have_one_shell_and_say_their_title_once(pages):
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        head, _, body = text.partition("</head>")
        assert 'content="width=device-width, initial-scale=1"' in head, name
        [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', head)
        assert "default-src 'none'" in policy, name
        assert ("script-src" in policy) == ("<script" in text) == (name in PLOTTED), name
        [title] = re.findall(r"<title>(.*?)</title>", head.partition("<script")[0])
        shown = body.partition("<h2>Everything</h2>")[0]
        assert shown.count(title) == 1, name
        told = re.sub(r"<script.*?</script>", "", shown, flags=re.DOTALL)
        assert "`" not in told, name
        assert not re.search(r">\s*! ", told), name
        assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', told), name
        if name not in PLOTTED:
            assert 'class="bars"' in told, name
            assert len(text) < MOST_BYTES, name
        assert '<td class="n">' in told, name


def test_the_page_of_slices_says_what_each_holds_and_which_to_take(pages):
    text = pages["mig"].read_text(encoding="utf-8").partition("<h2>Everything</h2>")[0]
    for said in ("needs up to MB", "copies", "verdict", "smallest that will do", "of 4,864 MB",
                 "limit of 50 ms", "take 1g.5gb of A100-40GB"):  # fmt: skip
        assert said in text
    assert text.count('class="limit"') >= 2 * 6


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@NEEDS_CHROMIUM
@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_page_is_as_wide_as_a_phone_and_nothing_on_it_overlaps(pages, tab, name, width):
    tab.said.clear()
    tab.size(width, 900)
    tab.open(pages[name].as_uri())
    tab.wait(f"document.readyState === 'complete' && location.href === '{pages[name].as_uri()}'")
    if name in PLOTTED:
        tab.wait("document.querySelectorAll('.plotly .main-svg').length > 0")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run(OVERLAPPING) == []
    assert tab.said == []


OVERLAPPING = """(() => {
  const boxes = [...document.querySelectorAll('.bars .name, .bars .said, .bars .tick, g.xtick text,'
      + ' g.ytick text, .textpoint text, .memory text')]
    .filter((o) => o.textContent.trim())
    .map((o) => [o.textContent, o.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 1 && high > 2) found.push(a + ' | ' + b);
  }));
  return found;
})()"""


def test_a_bar_shows_its_parts_interval_and_limit_and_hides_no_text():
    hostile = "<img src=x onerror=alert(1)>"
    row = Bar(
        hostile, 30.0, "30 of 40", Interval(25.0, 38.0, 0.9), 40.0, (("a", 10.0), ("b", 20.0))
    )
    text = bars("memory, MB", [row, Bar("none", None)], limit="has 40 MB")
    assert "<img" not in text
    assert text.count('class="part"') == 3
    assert 'class="between" title="25.00 – 38.00" style="left:62.5%;width:32.5%"' in text
    assert 'class="limit" style="left:100%"' in text
    assert [re.sub("<.*?>", "", t) for t in re.findall(r'class="tick".*?</span>', text)] == [
        f'class="tick" style="left:{100 * n / 4:g}%">{10 * n}' for n in range(5)
    ]
    assert bars("nothing", [Bar("x", None)]) == ""


def test_numbers_are_told_from_names():
    assert is_numeric(["1,234", "–", "0.5 %", "12.5 – 80", "", "3 ms", "< 1 %", "7 or more"])
    assert is_numeric(["1", "7.97 (100% of 8)"])
    assert not is_numeric(["1g.5gb", "2"])
    assert not is_numeric(["", "–"])


def test_warnings_that_differ_in_numbers_are_folded():
    text = note_list(
        ["! 174 launches at 33.0 µs", "! 68 launches at 33.0 µs", "! other", "! other"]
    )
    assert text.count("<li") == 3
    assert "<summary>likewise: 1 more</summary><ul><li>68 launches" in text
    assert note_list(["a 1", "a 2"]).count("<details>") == 0


def test_notes_are_marked_and_nothing_of_them_is_markup():
    text = note_list([" ! write `--host` <b>", "plain"])
    assert text.startswith(
        '<ul class="notes"><li class="warning">write <code>--host</code> &lt;b&gt;'
    )
    assert "script-src" not in page("t", text)
