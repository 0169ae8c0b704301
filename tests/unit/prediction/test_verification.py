import json
from dataclasses import replace

import pytest
import torch

import dippm
from dippm.errors import ConditionsError
from dippm.measure import state
from dippm.measure.kernels import TracedKernel
from dippm.measure.measurement import Measurement
from dippm.measure.protocol import Regime, Settings
from dippm.measure.state import LoadWatch, MachineLoad
from dippm.measure.verification import verify, verify_operators


@pytest.fixture(scope="module")
def prediction():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU())
    return dippm.predict(module, input=(3, 224, 224), batch=8, device="A100")


def measurement(prediction, **changes) -> Measurement:
    columns = {
        "device": "A100-40GB",
        "mig_profile": None,
        "timer": "wall",
        "latency_ms": prediction.latency_ms * 1.25,
        "memory_mb": prediction.intervals["memory_mb"].high * 2,
        "energy_j": None,
        "power_w": None,
        "warm_up_steps": 5,
        "timed_steps": 30,
        "framework": "torch",
        "measured_at": "2026-11-20T00:00:00+00:00",
        **changes.pop("columns", {}),
    }
    asked = {"batch": 8, "regime": Regime(), **changes}
    absent = {"energy_j": "no counter", "power_w": "no counter"}
    return Measurement("net", settings=Settings(), columns=columns, absent=absent, **asked)


def test_the_error_is_that_of_the_prediction_relative_to_the_measurement(prediction):
    result = verify(prediction, measurement(prediction))
    checks = {check.target: check for check in result.checks}
    assert checks["latency_ms"].error == pytest.approx(1 / 1.25 - 1)
    assert checks["memory_mb"].inside is False
    assert checks["energy_j"].error is None
    assert checks["energy_j"].reason == "not measured: no counter"


def test_the_table_has_predicted_and_measured_apart(prediction):
    text = str(verify(prediction, measurement(prediction)))
    assert "predicted" in text
    assert "measured" in text
    assert "-20.0%" in text
    assert "outside" in text
    assert "not measured: no counter" in text


def test_everything_goes_into_one_document(prediction):
    document = verify(prediction, measurement(prediction)).to_dict()
    assert [check["target"] for check in document["checks"]] == list(_targets())
    assert document["measurement"]["measured"]["framework"] == "torch"


def _targets():
    return ("latency_ms", "memory_mb", "power_w", "energy_j")


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 4},
        {"regime": Regime("fp16")},
        {"regime": Regime(mode="compiled")},
        {"regime": Regime(phase="train")},
        {"regime": Regime(channels_last=True)},
        {"columns": {"device": "H200"}},
        {"columns": {"mig_profile": "1g.5gb"}},
        {"columns": {"framework": "onnxruntime 1.31"}},
    ],
)
def test_other_conditions_are_refused(prediction, changes):
    with pytest.raises(ConditionsError, match="the prediction is for"):
        verify(prediction, measurement(prediction, **changes))


def test_a_pass_under_autograd_is_not_what_is_measured(prediction):
    asked = replace(prediction.conditions, autograd=True)
    with pytest.raises(ConditionsError, match="the prediction is for autograd"):
        verify(replace(prediction, conditions=asked), measurement(prediction))


def test_the_verdict_of_a_busy_machine_says_so(prediction):
    idle, busy = MachineLoad(0.2, 1.0, 2, 0.02), MachineLoad(7.0, 8.0, 2, 0.8)
    told = replace(measurement(prediction), load=busy)
    assert "the machine was busy" in told.warnings[0]
    assert told.to_dict()["load"]["busy"] is True
    assert told.to_dict()["warnings"] == list(told.warnings)
    found = verify(prediction, told)
    assert "verdict of a busy machine (load 7.0 before, 8.0 after" in str(found)
    assert found.to_dict()["warnings"] == list(found.warnings)
    assert any("busy machine" in warning for warning in found.warnings)
    calm = verify(prediction, replace(measurement(prediction), load=idle))
    assert "load 0.2 before, 1.0 after, on 2 cores, others took 2%" in str(calm)
    assert "busy" not in str(calm)
    assert MachineLoad(1.5, 2.0, 2, None).is_busy, "by the load where no share is told"
    assert not MachineLoad(7.0, 8.0, 2, 0.01).is_busy, "what ran a minute ago disturbs nobody"


def test_what_others_take_is_all_work_of_the_machine_but_our_own(tmp_path, monkeypatch):
    times, own = tmp_path / "stat", iter((10.0, 13.0))
    monkeypatch.setattr(state, "PROCESSOR_TIMES", times)
    monkeypatch.setattr(state.os, "times", lambda: (next(own), 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(state.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(state.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(state.time, "monotonic", iter((0.0, 10.0)).__next__)
    times.write_text("cpu  1000 0 500 9000 10 0 0 0 0 0\n")
    watch = LoadWatch()
    times.write_text("cpu  1500 100 600 9100 10 0 0 400 0 0\n")
    assert watch.load().others_share == pytest.approx((11.0 - 3.0) / 20)
    times.unlink()
    monkeypatch.undo()
    monkeypatch.setattr(state, "PROCESSOR_TIMES", times)
    assert LoadWatch().load().others_share is None


@pytest.fixture(scope="module")
def per_operator():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Sigmoid())
    return dippm.predict(module, input=(3, 64, 64), batch=8, device="A100", timer="kernel")


def kernel(number: int, name: str, operator: str, path: str | None, ns: int) -> TracedKernel:
    chain = (operator,) if operator else ()
    return TracedKernel(name, chain, (number,) * len(chain), path, "forward", None, 0, ns)


def profiled(*kernels: TracedKernel) -> Measurement:
    columns = {"device": "A100-40GB", "kernel_ms": 1.0}
    absent = {} if kernels else {"kernel_ms": "CUPTI is missing"}
    asked = {"batch": 8, "regime": Regime(), "settings": Settings()}
    return Measurement("net", columns=columns, absent=absent, kernels=kernels, **asked)


KERNELS = (
    kernel(0, "implicit_gemm", "aten::conv2d", "0", 40_000),
    kernel(0, "add_bias", "aten::conv2d", "0", 10_000),
    kernel(1, "elementwise", "aten::sigmoid", "1", 20_000),
    kernel(-1, "Memset", "", None, 1_000),
)


def test_each_operator_has_the_sum_of_its_kernels_beside_its_prediction(per_operator):
    result = verify_operators(profiled(*KERNELS), per_operator.graph, per_operator.operators)
    by_op = {check.op: check for check in result.checks}
    costs = {cost.op: cost.time_ms for cost in per_operator.operators}
    assert (by_op["conv2d"].measured_ms, by_op["conv2d"].kernels) == (0.05, 2)
    assert by_op["conv2d"].predicted_ms == costs["conv2d"]
    assert by_op["conv2d"].error == pytest.approx(costs["conv2d"] / 0.05 - 1)
    assert by_op["sigmoid"].measured_ms == 0.02
    assert result.measured_ms == pytest.approx(0.071)
    assert result.predicted_ms == pytest.approx(costs["conv2d"] + costs["sigmoid"])


def test_what_no_operator_launched_stands_last_and_counts_as_not_joined(per_operator):
    result = verify_operators(profiled(*KERNELS), per_operator.graph, per_operator.operators)
    assert result.checks[-1].node is None
    assert result.checks[-1].measured_ms == 0.001
    assert result.joined == pytest.approx(70 / 71)


def test_without_a_prediction_the_measured_operators_stand_alone_with_the_reason(per_operator):
    result = verify_operators(profiled(*KERNELS), per_operator.graph, reason="no checkpoint")
    assert result.predicted_ms is None
    assert {check.predicted_ms for check in result.checks} == {None}
    assert "not predicted: no checkpoint" in str(result)
    document = json.loads(json.dumps(result.to_dict()))
    assert document["checks"][0]["op"] == "conv2d"
    assert document["checks"][0]["error"] is None


def test_a_measurement_without_kernels_says_why(per_operator):
    with pytest.raises(ConditionsError, match="CUPTI is missing"):
        verify_operators(profiled(), per_operator.graph)
