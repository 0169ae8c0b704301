"""The recipes of CONTRIBUTING, carried out to the letter in a copy of the tree."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.copied_tree import ROOT, copy_tracked_files, is_known, run_in

pytestmark = [
    pytest.mark.nightly(part="package"),
    pytest.mark.skipif(not is_known(), reason="tracked files are not known"),
]

GPU = """
["RTX-5000-Ada"]
aliases = ["NVIDIA RTX 5000 Ada Generation"]
architecture = "Ada"
compute_capability = 8.9
sm_count = 100
boost_clock_mhz = 2550
memory_mb = 32760
memory_type = "GDDR6"
bandwidth_gb_s = 576
l2_mb = 72
peak_tflops = {fp32 = 65.3, tf32 = 130.6, fp16 = 261.1, bf16 = 261.1, fp8 = 522}
power_limit_w = 250
idle_power_w = 20
source = "made up for a test after the vendor's data sheet; confidence low"
"""
COUNTER = '''
"""Whether the lamp of this room is on."""

import time

from dippm.measure.readings import AbsentSource, Quantity, Readings, Source

QUANTITIES = (
    Quantity("brightness_lx", "lx", "host", "of the lamp"),
    Quantity("power_w", "W", "host", "of the lamp"),
)


class LampSource:
    """A lamp that shines, and has no meter."""

    name = "lamp"
    quantities = QUANTITIES
    closed = False

    def read(self) -> Readings:
        """Return its brightness, and why its power is not known."""
        if self.closed:
            return AbsentSource(self.name, QUANTITIES, "the lamp is out").read()
        absent = {"power_w": "the lamp has no meter; plug one in"}
        return Readings(time.monotonic_ns(), {"brightness_lx": 300.0}, absent)

    def close(self) -> None:
        """Turn it out."""
        self.closed = True


def open_lamp() -> Source:
    """Open the lamp."""
    return LampSource()
'''
KIND = '''
"""A predictor that says the same of every model."""

from dippm.estimate.models.predictor import predictor
from dippm.estimate.models.targets import TARGETS, Estimate, Estimates, Interval


@predictor("constant")
class Constant:
    """One latency for all."""

    feature_version = "1"
    tensor_library = "numpy"

    def __init__(self, latency_ms):
        self.latency_ms = latency_ms

    @classmethod
    def from_checkpoint(cls, tensors, config):
        """Read the one number."""
        return cls(float(tensors["latency_ms"][0]))

    def predict(self, graph, conditions):
        """Say it."""
        ms = self.latency_ms
        latency = Estimate(ms, Interval(ms / 2, ms * 2, 0.9))
        absent = dict.fromkeys(set(TARGETS) - {"latency_ms"}, "only the latency is said")
        return Estimates({"latency_ms": latency}, absent)

    def predict_many(self, graph, conditions):
        """Say it often."""
        return [self.predict(graph, each) for each in conditions]
'''
WRITE_KIND = """
import sys, torch
from pathlib import Path
from dippm.model.graph import GRAPH_VERSION
from dippm.estimate.pretrained import save_checkpoint
folder = Path(sys.argv[1])
config = {"kind": "constant", "graph_version": GRAPH_VERSION, "feature_version": "1", "card": {
    "summary": "One number.", "use": "None.", "limits": [], "never_measured": [], "data": [],
    "command": "none",
}}
save_checkpoint(folder, {"latency_ms": torch.tensor([7.0])}, config, {"summary": []})
"""
ASK_KIND = """
import dippm, sys
from dataset.measured.operators import dense
print(dippm.load(sys.argv[1]).predict(dense((8,), 4, 2), device="A100").latency_ms)
"""
READER = '''
"""Times of dense layers that a neighbour took."""

import pandas as pd

from dataset.measured.table import Source, catalogue_names, tidy


def read(folder):
    """Return dense layers, timed by events."""
    table = pd.read_csv(folder / "layers.csv")
    columns = {
        "gpu": catalogue_names(table["gpu"]),
        "timer": "E",
        "precision": "fp16",
        "mode": "eager",
        "phase": "inference",
        "software": "torch 2.4",
        "operator": "gemm",
        "latency_ms": table["ms"],
    }
    return tidy("neighbour", table.drop(columns="ms"), columns)


SOURCES = (Source("neighbour", "neighbour", "somebody/else", "MIT", "E", ("layers.csv",), read),)
'''
PUBLISHED = """
[neighbour]
about = "times of dense layers on an A100-40GB"
use = "trains"
repository = "somebody/else"
licence = "MIT"
copyright = "Copyright (c) 2026 A Neighbour"
absent = "no converter yet"

[neighbour.tables]
"layers.csv" = "{digest}"
"""
NOTICE = """
neighbour: times of dense layers on an A100-40GB
  https://github.com/somebody/else
  Copyright (c) 2026 A Neighbour
  MIT
"""
READ_ROWS = """
import json, sys
from pathlib import Path
from training.hybrid.rows.absent_sources import absent_sources
from training.hybrid.rows.sources import load_rows
data, graphs = map(Path, sys.argv[1:])
rows = [r for r in load_rows(data, graphs)[0] if r.source == "neighbour"]
absent = [source.name for source in absent_sources(data)]
print(json.dumps([[r.row_id, r.device.name, r.family, r.timer, r.latency_ms] for r in rows]))
print("neighbour" in absent)
"""
CONDITION = {
    "dippm/estimate/conditions.py": {
        'Runtime = Literal["pytorch", "torchscript", "onnxruntime", "tensorrt"]\n': (
            'Replay = Literal["none", "graph"]\n'
        ),
        "    runtime: Runtime\n": "    replay: Replay\n",
        '    runtime: Runtime = "pytorch"\n': '    replay: Replay = "none"\n',
        "    runtime = _part(lambda c: c.execution.runtime)\n": (
            "    replay = _part(lambda c: c.execution.replay)\n"
        ),
    },
    "dippm/estimate/options.py": {
        "    Runtime,\n": "    Replay,\n",
        "    runtime: Pair[Runtime]\n": "    replay: Pair[Replay]\n",
    },
    "dippm/api.py": {
        "    Runtime,\n": "    Replay,\n",
        '    runtime: Runtime = "pytorch",\n': '    replay: Replay = "none",\n',
        "        runtime=runtime,\n": "        replay=replay,\n",
    },
    "dippm/cli/options.py": {
        '    runtime: Runtime = "pytorch",\n': '    replay: Replay = "none",\n',
        "ONLY = Parameter.KEYWORD_ONLY\n": (
            'Replay = Annotated[str, typer.Option("--replay", help="none or graph.")]\n'
        ),
    },
    "dippm/estimate/models/hybrid.py": {
        (
            "        work = found.device_ms, self.phase.launches(table), "
            "_input_bytes(table, c), c.timer\n"
        ): ('        work = *work[:3], c.timer if c.replay == "none" else "kernel"\n'),
    },
    "dippm/estimate/measure_line.py": {
        '        "runs without autograd": c.autograd,\n': (
            '        "launches no CUDA graph of its own": c.replay != "none",\n'
        ),
    },
}
"""Which line goes after which one of a file; `schemas.json` and the changelog come to these."""
ASK_CONDITION = """
import json, sys, dippm
from pathlib import Path
from dataset.measured.operators import dense
from dippm.decide.budgets.budget import read_budgets
from dippm.decide.exploration.space_file import read_space
from dippm.estimate.measure_line import Asked, measure_line
from dippm.show.service.questions import Predict, read_question
before = dippm.predict(dense((8,), 64, 64), batch=8)
after = dippm.predict(before, replay="graph")
assert after.latency_ms < before.latency_ms
asked = Asked("timm:resnet18", runtime="torch")
assert "no CUDA graph" in measure_line(asked, after.conditions, ("torch",))[1]
assert dippm.compare([after]).rows()[0]["replay"] == "graph"
assert dippm.diff(before, replay=("none", "graph")).changed == {"replay": ("none", "graph")}
file = Path(sys.argv[1])
file.write_text('models = ["timm:resnet18"]\\nreplay = "graph"\\n')
assert read_space(file).space.describe()["replay"] == "graph"
file.write_text('[models.a]\\nmodel = "timm:resnet18"\\nreplay = "graph"\\n')
assert read_budgets(file)[0].conditions == {"replay": "graph"}
question = read_question(Predict, {"model": "timm:resnet18", "replay": "graph"})
print(question.arguments()["replay"], after.to_dict()["conditions"]["replay"])
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tracked_files(tmp_path_factory.mktemp("copy") / "dippm")


def put(tree: Path, file: str, old: str, new: str) -> None:
    """Replace a text that a file has once."""
    text = (tree / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file}: {old}"
    (tree / file).write_text(text.replace(old, new), encoding="utf-8")


def python(tree: Path, *words: str) -> str:
    """Return what a command of Python prints in the copy."""
    done = run_in(tree, [sys.executable, *words])
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def run_tests(tree: Path, *names: str) -> None:
    python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names)


def section(title: str) -> str:
    """Return the recipe of this title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {title}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def test_a_gpu_is_a_table_and_no_test_is_edited(tree: Path) -> None:
    assert "dippm/devices/catalog.toml" in section("To add a GPU")
    with (tree / "dippm/devices/catalog.toml").open("a", encoding="utf-8") as file:
        file.write(GPU)
    run_tests(tree, "tests/unit/devices")
    known = "import dippm.devices as d; print(d.find('nvidia rtx 5000 ada generation').name)"
    assert python(tree, "-c", known).strip() == "RTX-5000-Ada"


def test_an_operator_is_a_row(tree: Path) -> None:
    assert "dippm/model/graph/operators.py" in section("To add an operator")
    row = '    *_activations("softplus", 8, autocast="float32"),\n'
    put(tree, "dippm/model/graph/operators.py", row, row + '    *_activations("lamp=shine", 8),\n')
    run_tests(tree, "tests/unit/graph/test_operators.py")
    asked = (
        "from tests.unit.graph.sketch import BATCH, Sketch, ops; s = Sketch();"
        "g = s.graph(s.call('torch.shine', [s.input(BATCH, 8)], BATCH, 8));"
        "print(ops(g), dict(g.unknown_ops))"
    )
    assert python(tree, "-c", asked).strip() == "['lamp'] {}"


def test_a_counter_is_a_module_and_a_line(tree: Path) -> None:
    assert "dippm/measure/sources/<name>.py" in section("To add a counter")
    (tree / "dippm/measure/sources/lamp.py").write_text(COUNTER, encoding="utf-8")
    line = '    "disks": "dippm.measure.sources.disks:open_disks",\n'
    ours = '    "lamp": "dippm.measure.sources.lamp:open_lamp",\n'
    put(tree, "dippm/measure/sources/registry.py", line, line + ours)
    asked = (
        "from dippm.measure.sources.registry import NAMES, survey; assert 'lamp' in NAMES;"
        "print([(r.quantity.name, r.value, r.reason) for r in survey(('lamp',))])"
    )
    told = python(tree, "-c", asked)
    assert "('brightness_lx', 300.0, '')" in told
    assert "('power_w', None, 'the lamp has no meter; plug one in')" in told
    run_tests(tree, "tests/unit/measure/test_source_files.py")


def test_a_kind_of_predictor_is_a_class_and_a_line(tree: Path) -> None:
    assert "`MODULES`" in section(r"To add a model \(a predictor\)")
    (tree / "dippm/estimate/models/constant.py").write_text(KIND, encoding="utf-8")
    line = 'MODULES = {"hybrid": "dippm.estimate.models.hybrid", '
    ours = line.replace("{", '{"constant": "dippm.estimate.models.constant", ')
    put(tree, "dippm/estimate/pretrained/checkpoint.py", line, ours)
    folder = "checkpoints/constant/0.0.1"
    python(tree, "-c", WRITE_KIND, folder)
    assert python(tree, "-c", ASK_KIND, folder).strip() == "7.0"
    assert "constant" in python(tree, "-m", "dippm", "models")


def test_a_source_is_a_reader_a_registry_entry_and_what_it_teaches(
    tree: Path, tmp_path: Path
) -> None:
    recipe = section("To add a table of measurements")
    assert "dataset/published/sources.toml" in recipe
    assert "`OPERATOR_SOURCES`" in recipe
    assert "`TEACHES`" in recipe
    data = tmp_path / "data"
    (data / "neighbour").mkdir(parents=True)
    table = data / "neighbour" / "layers.csv"
    table.write_text("gpu,m,n,k,ms\nA100-40GB,64,256,128,0.02\n")
    (tmp_path / "graphs").mkdir()
    (tree / "dataset/measured/sources/neighbour.py").write_text(READER, encoding="utf-8")
    last = '    "hf_training_steps",\n)'
    ours = '    "hf_training_steps",\n    "neighbour",\n)'
    put(tree, "dataset/measured/sources/__init__.py", last, ours)
    digest = python(tree, "-m", "dataset.published.tables", str(table)).split()[0]
    with (tree / "dataset/published/sources.toml").open("a", encoding="utf-8") as file:
        file.write(PUBLISHED.format(digest=digest))
    with (tree / "NOTICE").open("a", encoding="utf-8") as file:
        file.write(NOTICE)
    makers = "dataset/measured/operators.py"
    line = '    "flagperf": ("input_shapes",),\n'
    put(tree, makers, line, line + '    "neighbour": ("n", "k"),\n')
    line = '    "flagperf": _flagperf,\n'
    maker = "lambda row: dense((row['m'],), row['k'], row['n'])"
    put(tree, makers, line, line + f'    "neighbour": {maker},\n')
    sources = "training/hybrid/rows/sources.py"
    put(tree, sources, '"flagperf", "deepbench")', '"flagperf", "deepbench", "neighbour")')
    line = '    "kernelbench": (LATENCY,),\n'
    absent = "training/hybrid/rows/absent_sources.py"
    put(tree, absent, line, line + '    "neighbour": (LATENCY,),\n')
    python(tree, "-m", "dataset.datasheet", "--write")
    assert "| `neighbour` | trains |" in (tree / "dataset/README.md").read_text(encoding="utf-8")
    rows, is_absent = python(
        tree, "-c", READ_ROWS, str(data), str(tmp_path / "graphs")
    ).splitlines()[-2:]
    assert json.loads(rows) == [["neighbour/0", "A100-40GB", "operator gemm", "wall", 0.02]]
    assert is_absent == "False"
    listed = python(tree, "-m", "dataset.fetch", "neighbour", "--list", "--json")
    assert json.loads(listed)["sources"][0]["licence"] == "MIT"
    run_tests(
        tree,
        "tests/unit/dataset/test_published.py",
        "tests/unit/dataset/test_sources.py",
        "tests/unit/training/test_absent_sources.py",
    )


def test_a_condition_touches_eight_files(tree: Path, tmp_path: Path) -> None:
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = recipe.partition("## To add a condition")[2].partition("\n## ")[0]
    named = re.findall(r"^\d\. (?:The law in )?`([\w/.]+)`", steps, flags=re.MULTILINE)
    assert len(named) == 7
    assert all(any(file.startswith(one) for one in named) for file in CONDITION)
    for file, lines in CONDITION.items():
        for after, line in lines.items():
            put(tree, file, after, after + line)
    answer = python(tree, "-c", ASK_CONDITION, str(tmp_path / "asked.toml"))
    assert answer.split() == ["graph", "graph"]
    assert "--replay" in python(tree, "-m", "dippm", "parallel", "--help")
    run_tests(tree, "tests/unit/prediction/test_question.py")
