"""Every answer prints as a short table, shows one in a notebook, and exports; so does each command.

The model's name is what a stranger would give it: markup, and a formula of a spreadsheet.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

import dippm
from dippm.base.answer import Answer
from dippm.decide.budgets import check
from dippm.decide.choice import pack
from dippm.errors import DippmError
from dippm.show.report.answers import VIEWS, Listing
from tests.samples import sampled

pd = pytest.importorskip("pandas")
pytest.importorskip("plotly", reason="pages with plots need the extra report")

HOSTILE = "=<img src=x onerror=alert(1)>"
ANSWERS = {
    "predict": "fits",
    "train": "training step",
    "compare": "energy_j",
    "sweep": "latency_ms",
    "power": "limit W",
    "point": "power limit",
    "choose": "really first",
    "mig": "best",
    "best": "A100-40GB 1g.5gb",
    "pack": "2 of 2 models",
    "share": "slow-down",
    "pipeline": "stage",
    "explain": "module",
    "diff": "of before",
    "what_if": "as asked",
    "parallel": "all, estimated",
    "cost": "GPU",
    "fits": "to spare",
    "request": "needs up to",
    "explore": "on the front",
    "llm": "first token",
    "check": "verdict",
}
"""What an answer's text has, by the answer."""
SCHEMAS = {
    **{"predict": "predict", "train": "predict", "compare": "compare", "sweep": "sweep"},
    **{"power": "power-sweep", "choose": "choose", "mig": "choose", "pack": "mig-plan"},
    **{"share": "share", "pipeline": "pipeline"},
    **{"explain": "explain", "diff": "diff", "what_if": "what-if", "parallel": "parallel"},
    **{"cost": "cost", "fits": "memory_fit", "request": "request", "explore": "explore"},
    **{"llm": "llm", "check": "check"},
}
"""Of an answer's document, a definition of `dippm/schemas.json`."""
PICTURELESS = ("point", "best")
"""Parts of answers, which have a table alone."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
    "torch_dtype": "float16", "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
BUDGETS = """
[models.{name}]
model = {path}
limits = {{ latency_ms = 9, energy_j = 0.0001, slice = "1g.5gb" }}
[models.gone]
model = "gone.onnx"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a model, the configuration of one, a space and budgets."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("answers")
    path = folder / f"{HOSTILE}.onnx"
    torch.onnx.export(
        network(), torch.randn(1, 3, 32, 32), path, dynamo=False,
        input_names=["x"], dynamic_axes={"x": {0: "n"}},
    )  # fmt: skip
    (folder / HOSTILE).mkdir()
    (folder / HOSTILE / "config.json").write_text(json.dumps(LLAMA))
    named = {"name": json.dumps(HOSTILE), "path": json.dumps(path.name)}
    (folder / "budgets.toml").write_text(BUDGETS.format(**named))
    (folder / "space.toml").write_text(
        f"models = [{named['path']}]\nbatch = [1, 8]\nobjectives = ['latency_ms', 'memory_mb']\n"
    )
    return folder


def network():
    import torch

    # in place, as is assumed of a file, which does not say it
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(8, 8, 3)]
    return type(HOSTILE, (torch.nn.Sequential,), {})(*layers).eval()


@pytest.fixture(scope="module")
def answers(folder):
    """Return every answer by its name, all of one small model."""
    import torch

    net, given = network(), {"input": "3,32,32", "batch": 8}
    one = dippm.predict(net, **given)
    power = dippm.sweep_power(net, limits_w="200:400", **given)
    smallest = dippm.smallest_slice(net, **given)
    space = dippm.Space(str(folder / f"{HOSTILE}.onnx"), batch=[1, 8])
    return {
        "predict": one,
        "train": dippm.predict(net, phase="train", **given),
        "compare": dippm.compare([net, str(folder / "gone.onnx")], **given | {"batch": [1, 3]}),
        "sweep": dippm.sweep(net, input="3,32,32", batch="1:8"),
        "power": power,
        "point": power.thriftiest,
        "choose": dippm.choose(net, devices=["A100", "T4"], **given),
        "mig": smallest,
        "best": smallest.best,
        "pack": pack([net, net], **given),
        "share": dippm.share([net, net], **given),
        "pipeline": dippm.pipeline(
            dippm.Pipeline("one", (dippm.Stage("body", net, "3,32,32"),)), batch=8
        ),
        "explain": dippm.explain(net, **given),
        "diff": dippm.diff(net, device=("A100", "H100"), **given),
        "what_if": dippm.what_if(net, **given),
        "parallel": dippm.parallelize(net, gpus=4, **given | {"phase": "train"}),
        "cost": dippm.cost_of(one, price_per_hour=2.0, idle_hours=1.0, currency="<EUR>"),
        "fits": dippm.fits(net, torch.zeros(8, 3, 32, 32)),
        "request": dippm.request_resources(net, devices=["A100"], **given),
        "explore": dippm.explore(space, ["latency_ms", "memory_mb"], workers=0),
        "llm": dippm.language_model(folder / HOSTILE),
        "check": check(folder / "budgets.toml"),
    }


@pytest.fixture(params=ANSWERS)
def answer(request, answers):
    return answers[request.param]


def test_every_class_of_answers_has_a_view_and_is_looked_at(answers):
    def below(kind):
        return {kind, *(one for sub in kind.__subclasses__() for one in below(sub))}

    named = {kind.__name__ for kind in below(Answer) if kind.__module__.startswith("dippm.")}
    made = {type(one).__name__ for one in answers.values()} | {Listing.__name__}  # see `COMMANDS`
    assert named - {"Answer"} == set(VIEWS) == made
    assert set(answers) == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_prints_as_a_short_table(name, answers, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = str(answers[name])
    assert ANSWERS[name] in text
    assert not text.startswith(type(answers[name]).__name__)
    assert len(text) < 6_000


def test_a_notebook_shows_it_and_no_name_is_markup(answer):
    html = answer._repr_html_()
    assert "<table" in html or "<pre>" in html
    assert "<img" not in html
    assert "<EUR" not in html


@pytest.mark.parametrize("name", SCHEMAS)
def test_its_document_is_what_its_schema_allows(name, answers):
    schemas = json.loads((files("dippm") / "schemas.json").read_text(encoding="utf-8"))
    found = json.loads(json.dumps(answers[name].to_dict(), allow_nan=False))
    schema = {"$defs": schemas["$defs"], "$ref": f"#/$defs/{SCHEMAS[name]}"}
    if name == "cost":
        schema = {"$defs": schemas["$defs"], **schemas["$defs"]["cost"]["properties"]["cost"]}
    elif name != "fits":
        found["schema"] = f"dippm.{SCHEMAS[name]}/1"
    if name == "request":  # its command says in which format it was written, too
        found |= {"format": "json", "manifest": None}
    errors = list(Draft202012Validator(schema).iter_errors(found))
    assert not errors, errors[0].message[:300]


def test_its_rows_read_back_from_a_file(answer, tmp_path):
    frame, text = answer.to_pandas(), answer.to_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8") == text
    back = pd.read_csv(io.StringIO(text), float_precision="round_trip")
    assert list(back.columns) == answer.columns()
    assert len(back) == len(frame) == len(answer.rows()) > 0
    numbers = {
        (place, name): value
        for place, row in enumerate(answer.rows())
        for name, value in row.items()
        if isinstance(value, float)
    }
    assert numbers
    for (place, name), value in numbers.items():
        assert float(back[name][place]) == frame[name][place] == value, name
    cells = re.findall(r'(?:^|[,\n])"?([^,"\n]*)', text)
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in PICTURELESS])
def test_its_page_has_the_shell_and_a_picture_and_no_name_is_markup(name, answers, tmp_path):
    text = answers[name].to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    head, _, body = text.partition("</head>")
    assert 'content="width=device-width, initial-scale=1"' in head
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', head)
    assert "default-src 'none'" in policy
    assert ("script-src" in policy) == ("<script" in text)
    assert 'class="bars"' in body or "plotly-graph-div" in body
    shown = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    assert "<img" not in shown
    assert "<EUR" not in shown
    assert "<table" in shown


def test_what_cannot_be_written_names_the_next_step(answer, tmp_path):
    for write in (answer.to_csv, answer.to_html):
        for path in (tmp_path, tmp_path / "none" / "x", "zero\0byte"):
            with pytest.raises(DippmError) as error:
                write(path)
            assert error.value.hint == "Choose another place."


def test_what_an_answer_carries_is_still_in_its_repr(answers):
    for name in ("explain", "what_if", "power", "parallel", "pack", "cost"):
        assert repr(answers[name]).startswith(type(answers[name]).__name__ + "(")


def test_quantities_that_follow_are_the_same_everywhere(answers):
    one = answers["predict"]
    speed, energy = 8e3 / one.latency_ms, one.energy_j / 8
    sweep = {row["batch"]: row for row in answers["sweep"].rows()}[8]
    choice = {row["name"]: row for row in answers["choose"].rows()}["A100-40GB"]
    search = {tried.design.batch: tried for tried in answers["explore"].tried}[8]
    for row in (sweep, choice, search.row(), one.rows()[0]):
        assert row["samples_per_s"] == pytest.approx(speed, rel=1e-12)
    for row in (sweep, choice, one.rows()[0]):
        assert row["energy_per_sample_j"] == pytest.approx(energy, rel=1e-12)
    assert {"samples_per_s", "energy_per_sample_j"} <= set(answers["compare"].columns())
    assert "samples_per_s" not in answers["compare"].to_dict()["rows"][0]


def test_the_largest_batch_is_the_same_wherever_it_is_asked(answers):
    whole, *slices = answers["sweep"].places
    choice = {c.name: c.largest_batch for c in answers["choose"].contenders}
    assert choice["A100-40GB"] == whole.largest_batch == answers["fits"].largest_batch
    for place in slices:
        assert choice[f"A100-40GB {place.name}"] == place.largest_batch
    room_mb = slices[0].memory_mb
    for batch, fits in ((slices[0].largest_batch, True), (slices[0].largest_batch + 1, False)):
        bound_mb = dippm.predict(network(), input="3,32,32", batch=batch).memory_bound_mb
        assert (bound_mb <= room_mb) == fits


@dataclass(frozen=True, slots=True)
class Table(Answer):
    """An answer of a test's own."""

    cells: tuple

    def rows(self):
        return [{"=1+1": cell} for cell in self.cells]


def test_a_cell_of_a_file_is_text_and_never_a_formula():
    cells = ("=1+1", "+1", "-1", "@x", {"a": "b", "c": "d"}, ["=x", "y"], [], None, 1.5, -1.5, True)
    assert Table(cells).to_csv().splitlines() == [
        "'=1+1", "'=1+1", "'+1", "'-1", "'@x", "a: b | c: d", "'=x | y", '""', '""', "1.5", "-1.5",
        "True",
    ]  # fmt: skip


COMMANDS = {
    "predict": "MODEL --batch 8",
    "predict of precisions": "MODEL --precision fp32,fp16",
    "compare": "MODEL gone.onnx --batch 1,8",
    "sweep": "MODEL --batch 1:4",
    "sweep of limits": "MODEL --power-limit 200:400",
    "choose": "MODEL --devices A100,T4",
    "choose of nothing": "MODEL --devices T4 --slo-ms 0.0001",
    "mig": "MODEL",
    "mig plan": "MODEL MODEL gone.onnx",
    "explain": "MODEL",
    "diff": "MODEL --device A100,H100 --depth 1",
    "what-if": "MODEL",
    "parallel": "MODEL --gpus 2",
    "cost": "MODEL --price-per-hour 2",
    "request": "MODEL --slo-ms 50",
    "explore": "space.toml --workers 0",
    "explore of nothing": "space.toml --workers 0 --trials 1",
    "llm": HOSTILE,
    "check": "budgets.toml",
    "graph": "MODEL --tree",
    "devices": "A100",
    "hosts": "",
    "models": "",
}


@pytest.mark.parametrize("command", sampled(COMMANDS, pytest.mark.nightly(part="answers")))
def test_a_command_writes_together_what_it_writes_alone(command, folder, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from dippm.cli.app import app

    monkeypatch.chdir(folder)
    asked = [f"{HOSTILE}.onnx" if w == "MODEL" else w for w in COMMANDS[command].split()]
    asked = [HOSTILE] if command == "llm" else asked

    def written(name, *forms):
        files = {form: tmp_path / f"{name}.{form}" for form in forms if form != "json"}
        options = [word for form, file in files.items() for word in (f"--{form}", str(file))]
        quiet = [] if command in ("devices", "hosts", "models") else ["--quiet"]
        words = [*command.partition(" of ")[0].split(), *asked, *options, *quiet]
        done = CliRunner().invoke(app, [*words, *(["--json"] if "json" in forms else [])])
        texts = {form: steady(file.read_text(encoding="utf-8")) for form, file in files.items()}
        return done.exit_code, texts | ({"json": done.stdout} if "json" in forms else {})

    code, together = written("all", "json", "csv", "html")
    assert json.loads(together["json"])["schema"].startswith("dippm.")
    for form in ("json", "csv", "html"):
        assert written(form, form) == (code, {form: together[form]})
    assert pd.read_csv(io.StringIO(together["csv"])).shape[0]
    assert "<img" not in re.sub(r"<script.*?</script>", "", together["html"], flags=re.DOTALL)


def steady(text):
    """Return a text without the identities that plotly gives."""
    return re.sub(r'(?<=id=")[0-9a-f-]{36}', "", text)
