"""Operators predicted beside measured: a real prediction, and kernels whose times are known."""

import json

import pytest
import torch

import dippm
from dippm.errors import ConditionsError
from dippm.measure.kernels.record import TracedKernel
from dippm.measure.measurement import Measurement
from dippm.measure.operator_verification import verify_operators
from dippm.measure.protocol import Regime, Settings


@pytest.fixture(scope="module")
def prediction():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Sigmoid())
    return dippm.predict(module, input=(3, 64, 64), batch=8, device="A100", timer="kernel")


def kernel(number: int, name: str, operator: str, path: str | None, ns: int) -> TracedKernel:
    chain = (operator,) if operator else ()
    return TracedKernel(name, chain, (number,) * len(chain), path, "forward", None, 0, ns)


def measurement(*kernels: TracedKernel) -> Measurement:
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


def test_each_operator_has_the_sum_of_its_kernels_beside_its_prediction(prediction):
    result = verify_operators(measurement(*KERNELS), prediction.graph, prediction.operators)
    by_op = {check.op: check for check in result.checks}
    costs = {cost.op: cost.time_ms for cost in prediction.operators}
    assert (by_op["conv2d"].measured_ms, by_op["conv2d"].kernels) == (0.05, 2)
    assert by_op["conv2d"].predicted_ms == costs["conv2d"]
    assert by_op["conv2d"].error == pytest.approx(costs["conv2d"] / 0.05 - 1)
    assert by_op["sigmoid"].measured_ms == 0.02
    assert result.measured_ms == pytest.approx(0.071)
    assert result.predicted_ms == pytest.approx(costs["conv2d"] + costs["sigmoid"])


def test_what_no_operator_launched_stands_last_and_counts_as_not_joined(prediction):
    result = verify_operators(measurement(*KERNELS), prediction.graph, prediction.operators)
    assert result.checks[-1].node is None
    assert result.checks[-1].measured_ms == 0.001
    assert result.joined == pytest.approx(70 / 71)


def test_without_a_prediction_the_measured_operators_stand_alone_with_the_reason(prediction):
    result = verify_operators(measurement(*KERNELS), prediction.graph, reason="no checkpoint")
    assert result.predicted_ms is None
    assert {check.predicted_ms for check in result.checks} == {None}
    assert "not predicted: no checkpoint" in str(result)
    document = json.loads(json.dumps(result.to_dict()))
    assert document["checks"][0]["op"] == "conv2d"
    assert document["checks"][0]["error"] is None


def test_a_measurement_without_kernels_says_why(prediction):
    with pytest.raises(ConditionsError, match="CUPTI is missing"):
        verify_operators(measurement(), prediction.graph)
