from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dippm.devices import Calibration, find, read_device, write_device
from dippm.errors import DeviceError
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.models.calibration import LAUNCH_SD, MeasuredRow, calibrate, log_ms
from tests.unit.models.test_hybrid import conditions, perceptron, predictor

CLASSES = list(KERNEL_CLASSES)
GEMM, COPY = CLASSES.index("gemm"), CLASSES.index("copy")


def rows(
    common: float = 0.0,
    gemm: float = 0.0,
    launch: float = 0.0,
    count: int = 12,
    launches: float = 100.0,
) -> list[MeasuredRow]:
    """Made-up rows of a GPU that differs from what is predicted by known factors."""
    random = np.random.default_rng(1)
    found = []
    for i in range(count):
        class_ms = np.zeros(len(CLASSES))
        class_ms[[GEMM, COPY]] = random.uniform(0.5, 5.0, 2)
        host_ms = (0.12 if i % 3 == 0 else 0.001) * launches
        row = MeasuredRow(f"model {i}", class_ms, launches, host_ms, 0.0, 1.0)
        offsets = np.zeros(2 + len(CLASSES))
        offsets[0], offsets[1], offsets[2 + GEMM] = common, launch, gemm
        found.append(replace(row, latency_ms=float(np.exp(log_ms([row], offsets)[0][0]))))
    return found


def test_a_common_factor_is_found():
    found = calibrate(rows(common=0.4), "A100-40GB")
    own = [found.log_factor(name, 100.0) for name in ("gemm", "copy")]
    assert own == pytest.approx([0.4, 0.4], abs=0.02)
    assert found.log_slowdown > 0.3
    assert found.log_launch == pytest.approx(0.0, abs=0.02)
    assert found.rows == 12
    assert found.operator_rows == 0
    assert found.log_error == pytest.approx(0.0, abs=0.02)


def test_a_class_of_its_own_is_found():
    found = calibrate(rows(gemm=0.3), "A100-40GB")
    own = {name: found.log_slowdown + log for name, log in found.classes.items()}
    assert own["gemm"] == pytest.approx(0.3, abs=0.05)
    assert own["copy"] == pytest.approx(0.0, abs=0.08)
    assert set(found.classes) == {"gemm", "copy"}


def test_a_slower_host_is_found():
    found = calibrate(rows(launch=math.log(2.0)), "A100-40GB")
    assert found.log_launch == pytest.approx(math.log(2.0), abs=0.05)
    assert found.log_slowdown == pytest.approx(0.0, abs=0.05)


def operators(common: float) -> list[MeasuredRow]:
    """Made-up single operators that all differ from what is predicted by one factor."""
    return rows(common=common, count=100, launches=1.0)


def test_many_operators_move_models_less_than_ten_models_do():
    alone = calibrate(operators(common=0.3), "A100-40GB")
    assert 0.02 < alone.log_factor("gemm", 100.0) < 0.15
    assert alone.log_factor("gemm", 1.0) == pytest.approx(0.3, abs=0.02)
    assert not alone.has_models
    models = calibrate(rows(common=0.3, count=10), "A100-40GB")
    assert models.log_factor("gemm", 100.0) == pytest.approx(0.3, abs=0.02)
    assert models.has_models


def test_a_device_that_was_calibrated_with_operators_was_not_measured_for_models():
    learned = ["A100-40GB"]
    for base, before in (("A100-40GB", True), ("T4", False)):
        operators_only = replace(
            find(base), name="mine", calibration=calibrate(operators(common=0.1), base)
        )
        assert operators_only.was_measured(learned) is before
        assert operators_only.was_measured(learned, launches=1.0)
        models = replace(operators_only, calibration=calibrate(rows(common=0.1), base))
        assert models.was_measured(learned)


def test_operators_do_not_outvote_models():
    both = calibrate([*operators(common=0.3), *rows(common=-0.1, count=10)], "A100-40GB")
    assert both.log_factor("gemm", 100.0) == pytest.approx(-0.1, abs=0.03)
    assert both.log_factor("gemm", 1.0) == pytest.approx(0.3, abs=0.03)
    assert (both.rows, both.operator_rows) == (110, 100)


def test_few_rows_of_one_model_state_no_error():
    found = calibrate([replace(row, model="one") for row in rows(common=0.2)], "A100-40GB")
    assert found.log_error is None


def test_each_model_has_its_error_while_it_was_left_out():
    found = calibrate([*rows(common=0.2), *operators(common=0.2)[:5]], "A100-40GB")
    assert len(found.models) == 12
    assert {m.name for m in found.models} == {f"model {i}" for i in range(12)}
    for model in found.models:
        assert model.log_error < 0.05
        assert 0 <= model.distance <= 1
        assert sum(model.shares.values()) == pytest.approx(1, abs=0.001)
        assert set(model.shares) == {"gemm", "copy"}
    assert found.log_error_before is None
    asked = [replace(row, before_ms=row.latency_ms * 1.5) for row in rows(common=0.2)]
    before = calibrate(asked, "A100-40GB").log_error_before
    assert before == pytest.approx(math.log(1.5))


def test_of_very_many_models_those_farthest_from_one_another_are_kept(monkeypatch):
    monkeypatch.setattr("dippm.estimate.models.calibration.MOST_MODELS", 3)
    shares = [0.0, 0.02, 0.5, 0.52, 1.0]
    some = []
    for i, share in enumerate(shares):
        class_ms = np.zeros(len(CLASSES))
        class_ms[GEMM], class_ms[COPY] = share, 1 - share
        some.append(MeasuredRow(f"model {i}", class_ms, 100.0, 0.0, 0.0, 1.0))
    kept = [m.name for m in calibrate(some, "A100-40GB").models]
    assert kept == ["model 0", "model 2", "model 4"]


def test_a_launch_time_is_as_uncertain_as_rows_leave_it():
    bound = calibrate(rows(launch=0.3), "A100-40GB").launch_log_sd
    free = calibrate([replace(r, host_ms=0.001) for r in rows()], "A100-40GB").launch_log_sd
    assert bound < 0.1
    assert free == pytest.approx(LAUNCH_SD, rel=0.01)


def test_derivatives_are_those_of_the_law():
    some = rows(common=0.2, gemm=0.1)
    offsets = np.full(2 + len(CLASSES), 0.05)
    value, slopes = log_ms(some, offsets)
    for k in (0, 1, 2 + GEMM):
        step = offsets.copy()
        step[k] += 1e-6
        assert (log_ms(some, step)[0] - value) / 1e-6 == pytest.approx(slopes[:, k], abs=1e-4)


def test_a_calibrated_device_is_predicted_by_what_was_measured():
    graph, model = perceptron(), predictor()
    point = conditions(batch=64, precision="fp16")
    before = model.predict(graph, point).values["latency_ms"]
    made = Calibration(base="A100-40GB", log_slowdown=0.25, classes={"gemm": 0.1}, rows=9)
    device = replace(find("A100-40GB"), name="mine", calibration=made)
    after = model.predict(graph, replace(point, device=device))
    ratio = math.log(after.values["latency_ms"].value / before.value)
    assert 0.25 < ratio < 0.35
    assert not any("never measured" in words for words in after.warnings)


def test_a_slower_host_of_a_calibrated_device_counts():
    graph, model = perceptron(), predictor(launch_ms=5.0)
    made = Calibration(base="A100-40GB", log_slowdown=0.0, log_launch=math.log(2.0))
    device = replace(find("A100-40GB"), name="mine", calibration=made)
    one, two = (
        model.predict(graph, replace(conditions(), device=d)).values["latency_ms"].value
        for d in (find("A100-40GB"), device)
    )
    assert two == pytest.approx(2 * one, rel=0.01)


def test_the_class_times_of_a_row_sum_to_its_latency():
    graph, model = perceptron(), predictor()
    class_ms, launches, host_ms, copy_ms = model.class_ms(graph, conditions())
    latency = model.predict(graph, conditions()).values["latency_ms"].value
    assert class_ms.sum() == pytest.approx(latency)
    assert launches >= 1
    assert host_ms == copy_ms == 0.0


def test_a_device_file_keeps_its_calibration(tmp_path):
    made = calibrate(rows(common=0.4), "A100-40GB")
    device = replace(find("A100-40GB"), name="mine", aliases=(), calibration=made)
    write_device(device, tmp_path / "mine.toml")
    again = read_device(tmp_path / "mine.toml")
    assert again.calibration == made
    assert replace(again, source="") == replace(device, source="")


MODELS = '[calibration]\nbase = "x"\nlog_slowdown = 0\nmodels = ['


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("calibration = 3", "calibration is 3"),
        ("[calibration]\nlog_slowdown = 0.1", "base is missing"),
        ('[calibration]\nbase = "A100-40GB"', "log_slowdown is missing"),
        ('[calibration]\nbase = "x"\nlog_slowdown = nan', "log_slowdown is nan"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 99', "log_slowdown is 99"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0.1\nodd = 1', "odd"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nclasses = 2', "classes is 2"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nclasses = {gemm = "a"}', "classes.gemm"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nrows = 0', "rows is 0"),
        (
            '[calibration]\nbase = "x"\nlog_slowdown = 0\nrows = 2\noperator_rows = 3',
            "operator_rows is 3",
        ),
        (
            '[calibration]\nbase = "x"\nlog_slowdown = 0\noperator_classes = {gemm = "a"}',
            "operator_classes.gemm",
        ),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nlaunch_log_sd = -1', "launch_log_sd is -1"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nmade_on = "once"', "made_on is 'once'"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nsoftware = 3', "software is 3"),
        ('[calibration]\nbase = "x"\nlog_slowdown = 0\nmodels = [3]', "models[0] is 3"),
        (f"{MODELS}{{name = 'a', log_error = 0, distance = 0}}]", "shares is missing"),
        (f"{MODELS}{{odd = 1}}]", "odd"),
        (
            f"{MODELS}{{name = 'a', log_error = 0, distance = 2, shares = {{gemm = 1}}}}]",
            "distance is 2",
        ),
        (
            f"{MODELS}{{name = 'a', log_error = 0, distance = 0, shares = {{gemm = 0.5}}}}]",
            "shares sum to 0.5",
        ),
    ],
)
def test_a_damaged_calibration_is_refused(tmp_path, line, words):
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\nmemory_mb = 1024\n{line}\n')
    with pytest.raises(DeviceError) as error:
        read_device(path)
    assert words in error.value.message
    assert error.value.hint


def test_a_calibration_says_how_far_its_models_are_from_one_another():
    def row(model: str, **shares: float) -> MeasuredRow:
        class_ms = np.array([shares.get(name, 0.0) for name in CLASSES])
        return MeasuredRow(model, class_ms, 100.0, 0.0, 0.0, 1.0)

    first, second = row("a", gemm=1.0), row("b", gemm=1.6, softmax=0.4)
    twins = [first, replace(first, latency_ms=2.0)]
    assert calibrate(twins, "A100-40GB").novelty is None
    assert calibrate([*twins, second], "A100-40GB").novelty == pytest.approx(0.2)
    operator = replace(row("c", copy=1.0), launches=1.0)
    assert calibrate([*twins, second, operator], "A100-40GB").novelty == pytest.approx(0.2)
    assert calibrate([operator, replace(operator, model="d")], "A100-40GB").novelty == 0.0
