"""The laws of board power."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dippm.devices import Device, all_devices, check_device, find
from dippm.errors import DeviceError
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.checkpoint_schemas import PowerPart
from dippm.estimate.models.power import SHARES, PowerModel, achieved_shares, idle_power_w, silicon
from tests.unit.models.test_hybrid import perceptron

share = st.floats(0, 1)
shares = st.tuples(*[share] * len(SHARES))
models = st.builds(
    PowerModel,
    floor=st.floats(0, 5),
    coefficients=st.tuples(*[st.floats(0, 20)] * len(SHARES)),
    sharpness=st.floats(0.5, 50),
    log_error=st.just(0.1),
    waiting_share=st.floats(0, 0.9),
    silicon_exponent=st.floats(0, 2),
)
devices = st.sampled_from(all_devices())


@given(models, devices, share, shares)
def test_power_is_between_idle_and_limit(model, device, busy, work) -> None:
    power = model.power_w(device, busy, work)
    assert idle_power_w(device) <= power <= device.known("power_limit_w") * (1 + 1e-12)


@given(models, devices, share, shares, shares)
def test_more_work_never_draws_less(model, device, busy, some, more) -> None:
    more = tuple(map(max, some, more))
    least = model.power_w(device, busy, some)
    assert model.power_w(device, busy, more) >= least * (1 - 1e-12)
    assert model.power_w(device, 1.0, some) >= least * (1 - 1e-12)


def test_an_idle_board_draws_its_idle_power() -> None:
    model = PowerModel(0.3, (1.0,) * len(SHARES), 6.0, 0.1)
    for name in ("L4", "T4"):
        assert model.power_w(find(name), 0.0, (1.0,) * len(SHARES)) == find(name).idle_power_w


def test_a_board_with_its_own_memory_waits_above_idle() -> None:
    model = PowerModel(0.3, (1.0,) * len(SHARES), 6.0, 0.1, waiting_share=0.27)
    work = (0.0,) * len(SHARES)
    for name in ("Quadro-RTX-5000", "T4"):
        waiting = 0.27 * find(name).known("power_limit_w")
        assert model.waiting_w(find(name)) == model.power_w(find(name), 0.0, work) == waiting
    for name in ("A100", "H200"):  # one clock of the memory, busy or not
        assert model.waiting_w(find(name)) == idle_power_w(find(name))


def test_what_silicon_cannot_draw_is_not_drawn() -> None:
    """A P100 at full work stays below its limit, a T4 is at it; a law of shares tells neither."""
    work = (0.0, 0.5, 0.0, 0.3)
    flat, law = (PowerModel(0.37, (1.6, 1.1, 1.3, 0.5), 4.0, 0.1, 0.0, e) for e in (0.0, 1.0))

    def share(model: PowerModel, name: str) -> float:
        device = find(name)
        room = device.known("power_limit_w") - idle_power_w(device)
        return (model.power_w(device, 1.0, work) - idle_power_w(device)) / room

    assert share(flat, "P100") == pytest.approx(share(flat, "T4"))
    assert share(law, "P100") < 0.65 < 0.8 < share(law, "V100-PCIe-16GB") < share(law, "T4")
    assert silicon(replace(find("T4"), power_limit_w=35.0)) > silicon(find("T4"))
    # Half as many multiprocessors, twice as wide: the chips of a 1080 Ti and a P100.
    wide = replace(find("P100"), sm_count=28, compute_capability=6.1)
    assert silicon(wide) == silicon(find("P100"))


def test_a_law_without_the_new_parts_answers_as_before() -> None:
    """Checkpoints before 0.10 state floor, coefficients and sharpness alone."""
    part = {"floor": 0.33, "coefficients": [1.4, 0.6, 1.0, 0.4], "sharpness": 6.0, "log_error": 0.1}
    read = PowerPart.model_validate(part)
    model = PowerModel(**{**read.model_dump(), "coefficients": tuple(read.coefficients)})
    score = 0.33 + 0.6 * 0.5 + 0.4 * 0.7
    u = score / (1 + score**6.0) ** (1 / 6.0)
    for name in ("T4", "P100", "RTX-3090"):
        idle, limit = find(name).idle_power_w, find(name).power_limit_w
        found = model.power_w(find(name), 0.5, (0.0, 0.5, 0.0, 0.7))
        assert found == pytest.approx(idle + (limit - idle) * 0.5 * u)
    for bad in ({"waiting_share": 1.5}, {"silicon_exponent": -1.0}, {"other": 1.0}):
        with pytest.raises(ValidationError):
            PowerPart.model_validate(part | bad)


def test_a_precision_counts_by_the_share_of_its_unit() -> None:
    """Where tensor cores are no faster than plain units, half and fp32 products are one thing."""
    device = find("P100")
    tables = [KernelTable.of(perceptron(), precision) for precision in ("fp32-ieee", "fp16")]
    found = [achieved_shares(t, 8192, DeviceView.of(device), busy_ms=1e4) for t in tables]
    assert found[0][0] == found[1][0] == 0.0
    assert found[0][1] == pytest.approx(found[1][1])


def test_shares_are_work_over_what_fits_in_the_time() -> None:
    table, view = KernelTable.of(perceptron(), "fp16"), DeviceView.of(find("A100"))
    slow, fast = (achieved_shares(table, 64, view, ms) for ms in (100.0, 50.0))
    assert fast == pytest.approx([2 * s for s in slow])
    assert slow[0] > 0 < slow[3]
    assert set(achieved_shares(table, 64, view, 1e-12)) <= {0.0, 1.0}


def test_idle_power_that_is_not_known_is_that_of_the_class() -> None:
    unknown = [replace(find(name), idle_power_w=None) for name in ("A100", "RTX-3090")]
    assert [idle_power_w(d) for d in unknown] == pytest.approx([56.0, 28.0])


@pytest.mark.parametrize("idle", [320.0, 400.0])
def test_idle_power_above_the_limit_is_refused(idle: float) -> None:
    device = Device(name="mine", memory_mb=8192, power_limit_w=320.0, idle_power_w=idle)
    with pytest.raises(DeviceError, match="not below power_limit_w"):
        check_device(device)


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.name)
def test_every_gpu_has_an_idle_power_with_its_origin(device: Device) -> None:
    assert 0.03 < device.known("idle_power_w") / device.known("power_limit_w") < 0.2
    assert "idle power" in device.source


def test_all_shares_at_their_peak_stay_at_the_limit() -> None:
    model = PowerModel(0.3, (20.0,) * len(SHARES), 6.0, 0.1)
    for device, work in product(all_devices(), [(1.0,) * len(SHARES)]):
        assert model.power_w(device, 1.0, work) == pytest.approx(device.power_limit_w, rel=1e-3)
