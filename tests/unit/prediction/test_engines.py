"""Answers for an engine, by the shipped checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import dippm
from dataset.measured.nodes import GraphBuilder
from dippm.cli.app import app
from dippm.decide.exploration.space import Space
from dippm.devices import find
from dippm.errors import ConditionsError, NothingFeasibleError, UnsupportedPrecisionError
from dippm.estimate import pretrained
from dippm.estimate.conditions import EIGHT_BITS, GRAPH_ENGINES, Conditions, Precision, Runtime
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.engine_law import as_pytorch, as_run, tensorrt
from dippm.estimate.models.targets import Estimates
from dippm.model.graph import ModelGraph
from tests.samples import sampled

BATCH = 1009
DEVICES = ("T4", "A100-40GB", "H100-SXM-80GB", "RTX-4090")
T4 = Conditions(device=find("T4"), precision="fp16", runtime="tensorrt")


@cache
def convolutional() -> ModelGraph:
    """Return convolutions with norm and activation."""
    b = GraphBuilder(batch=BATCH)
    x: Any = b.input((BATCH, 64, 56, 56))
    shape = (BATCH, 64, 56, 56)
    for _ in range(8):
        attributes = {
            "in_channels": 64,
            "out_channels": 64,
            "kernel": (3, 3),
            "strides": (1, 1),
            "groups": 1,
        }
        x = b.add("conv2d", [x], shape, attributes=attributes, weights=64 * 64 * 9)
        x = b.add("batch_norm", [x], shape, weights=256)
        x = b.add("relu", [x], shape)
    return b.graph(batch_is_symbolic=True)


@cache
def attentive() -> ModelGraph:
    """Return dense layers with norms, which are slow in what taught the engine."""
    b = GraphBuilder(batch=BATCH)
    x: Any = b.input((BATCH, 1369, 384))
    for _ in range(6):
        x = b.add("layer_norm", [x], (BATCH, 1369, 384), weights=768)
        attributes = {"in_features": 384, "out_features": 384}
        x = b.add("dense", [x], (BATCH, 1369, 384), attributes=attributes, weights=384 * 384)
        x = b.add("gelu", [x], (BATCH, 1369, 384))
    return b.graph(batch_is_symbolic=True)


def with_operator(op: str) -> ModelGraph:
    b = GraphBuilder(batch=BATCH)
    b.add(op, [b.input((BATCH, 64))], (BATCH, 64))
    return b.graph(batch_is_symbolic=True)


def ask(graph: ModelGraph, c: Conditions) -> Estimates:
    return pretrained.load().predictor.predict(graph, c)


def latency_ms(graph: ModelGraph, c: Conditions) -> float:
    return ask(graph, c).values["latency_ms"].value


@pytest.mark.parametrize("graph", [convolutional, attentive])
@pytest.mark.parametrize("device", sampled(DEVICES, pytest.mark.nightly(part="answers")))
@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_an_engine_is_between_its_roofline_and_the_compiler(graph, device, batch, precision):
    c = T4.replace(device=find(device), batch=batch, precision=precision, timer="kernel")
    compiled = as_pytorch(c)
    found = ask(graph(), c).values["latency_ms"]
    slack = 1.001 * exp(tensorrt().half_width_at(c))
    assert found.value <= slack * latency_ms(graph(), compiled)
    table = KernelTable.of_engine(graph(), as_run(c).precision)
    assert found.value >= 0.999 * roofline_ms(table, batch, DeviceView.of(c.device)).sum()
    assert found.interval.low < found.value < found.interval.high


def test_no_launch_of_the_host_is_in_an_engine() -> None:
    found = ask(convolutional(), T4)
    assert found.host is not None
    assert found.host.launches == 1
    slow = T4.replace(timer="kernel")
    assert latency_ms(convolutional(), slow) == pytest.approx(found.values["latency_ms"].value, 0.1)


def test_norm_and_activation_run_in_their_convolution() -> None:
    rows = [row for row in ask(convolutional(), T4).operators if row.kernels]
    assert sum(row.kernels for row in rows) == 8
    assert sum(row.time_ms for row in rows) <= ask(convolutional(), T4).values["latency_ms"].value


def test_what_was_never_measured_is_said() -> None:
    assert not any("never measured" in w for w in ask(convolutional(), T4).warnings)
    for change in ({"batch": 8}, {"precision": "fp32"}, {"device": find("A100")}):
        warnings = ask(convolutional(), T4.replace(**change)).warnings
        assert any("never measured" in w and "assumption" in w for w in warnings)
    assert any("memory is that of compiled PyTorch" in w for w in ask(convolutional(), T4).warnings)


def test_more_samples_take_longer() -> None:
    times = [latency_ms(attentive(), T4.replace(batch=n)) for n in (1, 2, 8, 64)]
    assert times == sorted(times)


def test_an_operator_that_no_layer_computes_is_named() -> None:
    with pytest.raises(ConditionsError, match="tensorrt has no layer for fft ×1") as error:
        ask(with_operator("fft"), T4)
    assert "mode=compiled" in error.value.hint


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"mode": "compiled"}, "Leave the mode out"),
        ({"phase": "train"}, "runtime=pytorch"),
        ({"autograd": True}, "Leave it out"),
        ({"precision": "amp"}, "precision=fp16"),
    ],
)
def test_what_is_of_pytorch_is_refused(change: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConditionsError, match="not in tensorrt") as error:
        T4.replace(**change)
    assert hint in error.value.hint


def test_an_engine_of_nvidia_is_refused_on_the_gpu_of_another_vendor() -> None:
    with pytest.raises(ConditionsError, match="MI300X is not one") as error:
        T4.replace(device=find("MI300X"))
    assert "runtime=pytorch" in error.value.hint


@pytest.mark.parametrize("runtime", GRAPH_ENGINES)
def test_gpus_that_an_engine_does_not_run_on_are_ranked_last_with_the_reason(
    runtime: Runtime,
) -> None:
    model = convolutional()
    rows = dippm.choose(model, devices=("MI300X", "T4"), precision="fp16", runtime=runtime).rows()
    assert [row["device"] for row in rows] == ["T4", "MI300X"]
    assert "MI300X is not one" in rows[1]["reason"]


@pytest.mark.parametrize("precision", EIGHT_BITS)
def test_a_larger_sibling_takes_no_longer_in_eight_bits(precision: Precision) -> None:
    """GeForce boards halve what their 16-bit unit does, not their 8-bit one."""
    asked = T4.replace(device=find("RTX-PRO-6000"), batch=256, precision=precision)
    larger = latency_ms(convolutional(), asked)
    smaller = latency_ms(convolutional(), asked.replace(device=find("RTX-5090")))
    assert larger <= 1.02 * smaller


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("openvino", "openvino is not predicted"),
        ("tensorflow", "Known: pytorch, torchscript, onnxruntime, tensorrt"),
        ("tensort", "Did you mean tensorrt"),
    ],
)
def test_an_unknown_runtime_names_the_next_step(name: str, hint: str) -> None:
    with pytest.raises(ConditionsError, match="unknown runtime") as error:
        T4.replace(runtime=name)
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("name", "runtime"), [("trt", "tensorrt"), ("TensorRT", "tensorrt"), ("ort", "onnxruntime")]
)
def test_an_engine_has_other_names(name: str, runtime: str) -> None:
    assert T4.replace(runtime=name).runtime == runtime


def test_a_narrower_format_takes_no_longer() -> None:
    for device in ("T4", "V100", "L4", "H100"):
        c = T4.replace(device=find(device), batch=16)
        formats = ["fp32-ieee", "fp32", "fp16", "int8", *(["fp8"] if device in "L4 H100" else [])]
        for graph in (convolutional(), attentive()):
            times = [latency_ms(graph, c.replace(precision=p)) for p in formats]
            assert all(b <= 1.001 * a for a, b in pairwise(times)), (device, times)


def test_float32_of_an_engine_is_tf32_as_it_comes() -> None:
    c = T4.replace(device=find("A100"), precision="fp32", batch=16)
    fast, same, ieee = (
        latency_ms(attentive(), c.replace(precision=p)) for p in ("fp32", "tf32", "fp32-ieee")
    )
    assert fast == pytest.approx(same)
    assert fast < ieee


def test_eight_bits_take_less_memory_and_say_what_stays_in_half() -> None:
    c = T4.replace(batch=64)
    half, narrow = (ask(convolutional(), c.replace(precision=p)) for p in ("fp16", "int8"))
    saved = half.values["memory_mb"].value - narrow.values["memory_mb"].value
    tensors_mb = 64 * 56 * 56 * 64 / 2**20  # a result in 8 bits is so much smaller than in 16
    assert saved > tensors_mb
    parts = narrow.memory_parts
    assert parts is not None
    assert parts.reserved_mb + parts.context_mb == pytest.approx(narrow.values["memory_mb"].value)
    assert narrow.values["memory_mb"].interval.high == half.values["memory_mb"].interval.high
    assert any("norms, softmax and attention stay in fp16" in w for w in narrow.warnings)
    assert any("never measured on T4 in int8" in w for w in narrow.warnings)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"runtime": "pytorch"}, "runtime=tensorrt"),
        ({"runtime": "onnxruntime"}, "runtime=tensorrt"),
        ({"device": find("P100")}, "DP4A"),
        ({"precision": "fp8"}, "Ada, Hopper"),
    ],
)
def test_eight_bits_need_an_engine_and_hardware(change: dict[str, Any], hint: str) -> None:
    with pytest.raises(UnsupportedPrecisionError) as error:
        T4.replace(**{"precision": "int8", **change})
    assert hint in f"{error.value} {error.value.hint}"


@pytest.mark.parametrize(
    ("device", "has_none"), [("V100", True), ("GTX-1080-Ti", True), ("T4", False)]
)
def test_a_gpu_without_tensor_cores_for_integers_is_named(device: str, has_none: bool) -> None:
    found = ask(convolutional(), T4.replace(device=find(device), precision="int8"))
    assert any("DP4A" in warning for warning in found.warnings) is has_none


@pytest.mark.parametrize("device", ["A100", "RTX-3090", "T4", "V100"])
def test_runtimes_of_the_same_libraries_save_launches_alone(device: str) -> None:
    c = T4.replace(device=find(device))
    small, large = c.replace(batch=1), c.replace(batch=512)
    for runtime in ("torchscript", "onnxruntime"):
        for one, at_most in ((small, 0.75 if device == "A100" else 1.0), (large, 1.0)):
            eager = ask(convolutional(), one.replace(runtime="pytorch"))
            found = ask(convolutional(), one.replace(runtime=runtime))
            ratio = found.values["latency_ms"].value / eager.values["latency_ms"].value
            assert ratio <= 1.001 * at_most, (runtime, one.batch)
            assert any(f"{runtime} was never measured" in w for w in found.warnings)
            wide, narrow = (a.values["latency_ms"].interval for a in (found, eager))
            assert wide.high / wide.low > narrow.high / narrow.low


@pytest.mark.parametrize("graph", [convolutional, attentive])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("device", ["A100", "T4"])
def test_a_session_exceeds_the_compiler_by_no_more_than_its_interval(
    device: str, precision: Precision, graph: Callable[[], ModelGraph]
) -> None:
    c = T4.replace(device=find(device), precision=precision, timer="kernel")
    for batch in (1, 128):
        one = c.replace(batch=batch)
        compiled = one.replace(runtime="pytorch", mode="compiled", precision=as_run(one).precision)
        found = ask(graph(), one.replace(runtime="onnxruntime")).values["latency_ms"]
        assert latency_ms(graph(), compiled) >= 0.999 * found.value**2 / found.interval.high


def test_a_runtime_that_launches_says_how_often() -> None:
    eager, session = (
        ask(convolutional(), T4.replace(runtime=runtime)).host
        for runtime in ("pytorch", "onnxruntime")
    )
    assert eager is not None
    assert session is not None
    assert session.launches == eager.launches == 24  # the pass that adds a bias stands for the norm


def test_an_operator_that_needs_a_plugin_is_named() -> None:
    found = ask(with_operator("bit_shift"), T4)
    assert any("needs a plugin for bit_shift ×1" in w for w in found.warnings)
    session = ask(with_operator("bit_shift"), T4.replace(runtime="onnxruntime"))
    assert not any("plugin" in w for w in session.warnings)


def test_torchscript_takes_what_pytorch_takes() -> None:
    assert ask(with_operator("fft"), T4.replace(runtime="torchscript")).values
    assert T4.replace(runtime="torchscript", precision="amp").precision == "amp"


def test_a_checkpoint_without_kernels_refuses_an_engine() -> None:
    predictor = pretrained.load("pmgns-timm-rtx3090").predictor
    c = Conditions(device=find("RTX 3090"), batch=1, precision="fp16", runtime="tensorrt")
    with pytest.raises(ConditionsError, match="predicts PyTorch, not tensorrt"):
        predictor.predict(convolutional(), c)


@pytest.fixture(scope="module")
def linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))


ASKED: dict[str, Any] = {"input": "64", "precision": "fp16", "runtime": "tensorrt"}


def test_every_verb_that_takes_conditions_takes_a_runtime(linear: torch.nn.Module) -> None:
    one = dippm.predict(linear, device="T4", batch=1, **ASKED)
    assert "tensorrt" in one.title
    assert one.to_dict()["conditions"]["runtime"] == "tensorrt"
    (row,) = dippm.compare([linear], device="T4", **ASKED)
    assert row.latency_ms == pytest.approx(one.latency_ms)
    swept = dippm.sweep(linear, batch=(1, 4), device="T4", **ASKED)
    assert [p.conditions.runtime for p in swept.predictions] == ["tensorrt"] * 2
    chosen = dippm.choose(linear, devices=("T4", "A100"), slices=False, **ASKED)
    assert "tensorrt" in chosen.conditions


def test_what_if_asks_for_compiled_pytorch_instead_of_a_mode(linear: torch.nn.Module) -> None:
    found = dippm.what_if(linear, device="T4", **ASKED).changes
    assert "compiled PyTorch" in [change.name for change in found]
    assert all(change.prediction is not None for change in found)


def test_a_space_says_its_runtime_only_where_it_is_an_engine() -> None:
    engine = Space("timm:resnet18", batch=1, device="T4", **ASKED)
    assert engine.describe()["runtime"] == "tensorrt"
    assert {c.runtime for c in engine.every_condition()} == {"tensorrt"}
    plain = Space("timm:resnet18", input="64", batch=1, device="T4")
    assert "runtime" not in plain.describe()


def test_products_that_gpus_share_are_refused(linear: torch.nn.Module) -> None:
    with pytest.raises(ConditionsError, match="not estimated for tensorrt"):
        dippm.parallelize(linear, gpus=2, strategy="tensor", device="A100", **ASKED)


def test_a_request_for_an_engine_says_why_no_command_checks_it(linear: torch.nn.Module) -> None:
    found = dippm.request_resources(linear, devices="A100", **ASKED)
    assert found.prediction.conditions.runtime == "tensorrt"
    assert found.verify is None
    assert "dippm.io/verify" not in found.annotations
    assert "tensorrt" in found.annotations["dippm.io/conditions"]
    document = found.to_dict()
    assert document["verify"] is None
    assert "runs PyTorch" in document["absent"]["verify"]
    assert "no command: dippm measure runs PyTorch" in str(found)
    eager = dippm.request_resources(linear, devices="A100", input="64")
    assert eager.absent["verify"].startswith("a model in memory")


def test_a_difference_takes_a_runtime_for_either_side(linear: torch.nn.Module) -> None:
    found = dippm.diff(
        linear, device="T4", input="64", precision="fp16", runtime=("pytorch", "trt")
    )
    assert found.changed == {"runtime": ("pytorch", "tensorrt")}
    sides = [side.prediction.conditions.runtime for side in (found.before, found.after)]
    assert sides == ["pytorch", "tensorrt"]
    assert sum(row.change_ms for row in found.changes()) == pytest.approx(found.change_ms)
    alone = dippm.predict(linear, device="T4", **ASKED)
    assert found.after.latency_ms == pytest.approx(alone.latency_ms)


def test_an_operator_that_an_engine_does_not_take_is_refused_everywhere() -> None:
    graph = with_operator("fft")
    with pytest.raises(ConditionsError, match="no layer for fft ×1"):
        dippm.diff(graph, precision="fp16", runtime=("pytorch", "tensorrt"))
    with pytest.raises(NothingFeasibleError, match="no layer for fft ×1"):  # as `choose`
        dippm.request_resources(graph, precision="fp16", runtime="tensorrt")


def test_commands_of_a_difference_and_a_request_take_a_runtime(onnx_file: Path) -> None:
    asked = [str(onnx_file), "--precision", "fp16", "--quiet", "--json"]
    found = CliRunner().invoke(app, ["diff", *asked, "--runtime", "pytorch,tensorrt"])
    assert json.loads(found.stdout)["changed"] == {"runtime": ["pytorch", "tensorrt"]}
    found = CliRunner().invoke(app, ["request", *asked, "--runtime", "tensorrt"])
    document = json.loads(found.stdout)
    assert document["prediction"]["conditions"]["runtime"] == "tensorrt"
    assert document["verify"] is None
