import pytest
import torch

import dippm
from dippm.errors import ConditionsError
from dippm.measure.measurement import Measurement
from dippm.measure.protocol import Regime, Settings
from dippm.verification import verify


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
