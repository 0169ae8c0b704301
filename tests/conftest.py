"""What all tests share: a private cache, small model files, a predictor that needs no training."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
import typer.testing
from hypothesis import settings

from dippm.estimate.conditions import Conditions
from dippm.estimate.models.predictor import predictor
from dippm.estimate.models.targets import Estimate, Estimates, Interval, OperatorCost
from dippm.estimate.pretrained import save_checkpoint
from dippm.model.graph import GRAPH_VERSION, ModelGraph
from tests import durations

# Fixtures are found in this file; none starts a server before a test asks.
from tests.postgres import postgres_address, postgres_server  # noqa: F401
from tests.stores import _tables, s3_bucket, s3_server, store_file  # noqa: F401

PACKAGES = {"tensorflow": ("tensorflow", "keras"), "paddle": ("paddle", "paddle2onnx")}
"""What the tests of a marker need; Paddle's packages end before Python 3.13."""

# Threads of OpenMP wait by spinning, which costs many times the work itself where several processes
# share the cores. Children inherit it, and so do the processes of a parallel run.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# Under nohup, in the background of a script and on some runners these are ignored, and children
# would inherit that. A function in its place keeps it from us, and is the default in what we start.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# Hypothesis's own: the same examples every time, and no limits of time.
settings.load_profile("ci")

DURATIONS = durations.read()
QUICK = durations.quick_files(DURATIONS)

GARBAGE = (50_000, 50, 50)
"""Allocations between collections: graphs are many small objects, and what was imported stays."""


def pytest_addoption(parser):
    """Let a run record what its files cost."""
    about = "write what each file costs into this JSON"
    parser.addoption("--record", metavar="FILE", type=Path, help=about)


def pytest_configure(config):
    """Record what files cost, if that is asked for."""
    if path := config.getoption("--record"):
        config.pluginmanager.register(durations.Recorder(path, hasattr(config, "workerinput")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Return one process more than cores: a third of the time, a test waits for what it began."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) + 1


def pytest_ignore_collect(collection_path, config):
    """Import no file that has none of the quick tier: imports cost more than it does."""
    if config.getoption("markexpr") == "quick" and collection_path.suffix == ".py":
        path = collection_path.relative_to(config.rootpath).as_posix()
        return None if path in QUICK else True
    return None


def pytest_collection_finish():
    """Look for garbage among what the tests make only."""
    gc.freeze()
    gc.set_threshold(*GARBAGE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with long files, mark the quick tier, skip what needs something that is not here."""
    items.sort(key=lambda item: durations.order(DURATIONS, _file(item)))
    for item in items:
        is_marked = {"slow", "nightly"}.intersection(mark.name for mark in item.iter_markers())
        if _file(item) in QUICK and not is_marked:
            item.add_marker("quick")
    missing = {
        marker
        for marker, packages in PACKAGES.items()
        if None in map(importlib.util.find_spec, packages)
    }
    if not torch.cuda.is_available():
        missing.add("gpu")
    for item in items:
        for marker in missing.intersection(mark.name for mark in item.iter_markers()):
            item.add_marker(pytest.mark.skip(reason=f"{marker} is not available here"))


def _file(item):
    return item.nodeid.partition("::")[0]


@pytest.fixture(scope="module")
def own_garbage():
    """Let what a file's tests collect themselves, as each measurement does, be its own objects.

    A process that has run other files holds a million, and looks at them for a third of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def as_nobody():
    """A folder, and a function after which permissions count, also for root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    is_root = os.geteuid() == 0
    yield folder, (lambda: os.seteuid(65534)) if is_root else (lambda: None)
    if is_root:
        os.seteuid(0)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture(scope="session", autouse=True)
def _no_terminal_of_ours():
    """Let no width and no colours of the shell, or of processes side by side, reach the output."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_line():
    """Build the commands once, as a process does: Typer's runner builds them at each call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    """Keep converted graphs of the tests away from the user's."""
    before = os.environ.get("DIPPM_CACHE_DIR")
    os.environ["DIPPM_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["DIPPM_CACHE_DIR"]
    else:
        os.environ["DIPPM_CACHE_DIR"] = before


@pytest.fixture(scope="session", autouse=True)
def private_runs(tmp_path_factory):
    """Let no run of a test keep the user's from being attached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIPPM_LIVE", str(tmp_path_factory.mktemp("live") / "lock"))
        yield


@predictor("test-roofline")
class Roofline:
    """Time is arithmetic over the peak rate times one number; memory is the weights thrice."""

    feature_version = "1"

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown

    @classmethod
    def from_checkpoint(cls, tensors, config):
        return cls(float(tensors["slowdown"]))

    def predict(self, graph: ModelGraph, conditions: Conditions) -> Estimates:
        bound = graph if graph.batch == conditions.batch else graph.at_batch(conditions.batch)
        peak = conditions.device.peak_tflops["fp32"] * 1e9
        times = [self.slowdown * node.flops / peak for node in bound.nodes]
        latency = sum(times)
        memory = 400 + 3 * graph.param_bytes / 2**20
        return Estimates(
            values={"latency_ms": _estimate(latency), "memory_mb": _estimate(memory)},
            absent={"energy_j": "no power was measured", "power_w": "no power was measured"},
            memory_bound_mb=1.2 * memory,
            operators=tuple(
                OperatorCost(i, node.op, 1, t, t / latency, "compute", node.macs, node.bytes_read)
                for i, (node, t) in enumerate(zip(bound.nodes, times, strict=True))
            ),
            warnings=tuple(f"unknown operator {name}" for name in graph.unknown_ops),
        )

    def predict_many(self, graph, conditions):
        return [self.predict(graph, point) for point in conditions]


def _estimate(value: float) -> Estimate:
    return Estimate(value, Interval(0.8 * value, 1.25 * value, 0.9))


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory) -> Path:
    """A checkpoint of the predictor above, on disk."""
    folder = tmp_path_factory.mktemp("checkpoints") / "roofline-test" / "1.0.0"
    config = {
        "kind": "test-roofline",
        "graph_version": GRAPH_VERSION,
        "feature_version": "1",
        "card": {"summary": "For tests.", "limits": ["everything"]},
    }
    row = {"gpu": "A100-40GB", "target": "latency_ms", "n": 3, "median_ape": 5.25}
    save_checkpoint(folder, {"slowdown": torch.tensor(2.0)}, config, {"summary": [row]})
    return folder


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory) -> Path:
    """Convolution, ReLU, pool, dense; any batch."""
    return write_onnx(tmp_path_factory.mktemp("models") / "small.onnx", batch="batch")


@pytest.fixture(scope="session")
def fixed_batch_file(tmp_path_factory) -> Path:
    """The same with batch 4 in its input and in a reshape."""
    return write_onnx(tmp_path_factory.mktemp("models") / "fixed.onnx", batch=4)


def write_onnx(path: Path, *, batch: str | int) -> Path:
    import numpy as np
    from onnx import TensorProto, checker, helper, numpy_helper, save

    weights = {"kernel": (8, 3, 3, 3), "matrix": (8, 10)}
    constants = [
        numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()
    ]
    flatten = helper.make_node("Flatten", ["p"], ["f"])
    if isinstance(batch, int):
        constants.append(numpy_helper.from_array(np.array([batch, 8]), "sizes"))
        flatten = helper.make_node("Reshape", ["p", "sizes"], ["f"])
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
                helper.make_node("Relu", ["c"], ["r"]),
                helper.make_node("GlobalAveragePool", ["r"], ["p"]),
                flatten,
                helper.make_node("MatMul", ["f", "matrix"], ["y"]),
            ],
            "small",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 32, 32])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,  # of opset 17; the newest of onnx may be newer than ONNX Runtime reads
    )
    checker.check_model(model)
    save(model, path)
    return path
