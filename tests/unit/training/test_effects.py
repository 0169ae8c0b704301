"""Mixed effects of GPUs and laboratories, found again in rows that were made with known ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dippm.devices import find
from dippm.devices.hosts import default_host
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.gpu_effects import BYTES, EFFECT_UNITS, GpuEffects
from training.hybrid.fit.effects import Effects, RowKernels, fit_effects
from training.hybrid.rows.examples import Row

GEMM, ELEMENTWISE = 6, 18
HALF, FP32 = EFFECT_UNITS.index("half"), EFFECT_UNITS.index("fp32")
OF_GPU = {"A100-40GB": 0.0, "V100-SXM2-16GB": 0.2, "T4": -0.3, "RTX-3090": 0.1}
"""How much slower the half-precision arithmetic of each runs than the law says, log."""
OF_LABORATORY = {"north": 0.08, "south": -0.08, "east": 0.0}
MEASURED_BY = {
    "A100-40GB": ("north", "south", "east"),
    "V100-SXM2-16GB": ("north", "south"),
    "T4": ("north", "south", "east"),
    "RTX-3090": ("east",),
}


def _row(gpu: str, laboratory: str, number: int, latency_ms: float, timer: str = "kernel") -> Row:
    return Row(
        row_id=f"{gpu}-{laboratory}-{number}",
        source=laboratory,
        table=f"{laboratory} {gpu} eager",
        device=find(gpu),
        timer=timer,  # type: ignore[arg-type]
        precision="fp16",
        mode="eager",
        channels_last=False,
        batch=1,
        graph="made up",
        architecture=str(number),
        family="operator gemm",
        latency_ms=latency_ms,
    )


def _kernel(
    base_ms: float, kind: int = GEMM, share: float = 1.0, launches: float = 1
) -> RowKernels:
    return RowKernels(
        np.array([base_ms]),
        np.array([kind]),
        np.array([HALF]),
        np.array([share]),
        0.0,
        launches,
        0.0,
    )


def _rows() -> Iterator[tuple[Row, RowKernels]]:
    random = np.random.default_rng(0)
    for gpu, laboratories in MEASURED_BY.items():
        for laboratory in laboratories:
            for number in range(60):
                base = float(np.exp(random.uniform(-2, 3)))
                slower = OF_GPU[gpu] + OF_LABORATORY[laboratory] + random.normal(0, 0.02)
                yield _row(gpu, laboratory, number, base * np.exp(slower)), _kernel(base)


@pytest.fixture(scope="module")
def found() -> Effects:
    """Effects that were found in rows of four GPUs and three laboratories."""
    rows, kernels = zip(*_rows(), strict=True)
    return fit_effects(rows, kernels, copy_bytes_per_ms=1e7)


def test_gpus_differ_as_they_were_made_to(found: Effects) -> None:
    """Half-precision products of a T4 are 0.5 faster than those of a V100, in the log."""
    t4, v100 = (found.of_gpus[gpu, "eager"][GEMM, HALF] for gpu in ("T4", "V100-SXM2-16GB"))
    assert v100 - t4 == pytest.approx(0.5, abs=0.06)


def test_what_a_laboratory_adds_is_not_the_gpu_s(found: Effects) -> None:
    """Three laboratories, 0.16 apart, leave the GPU that all measured where it is."""
    assert found.of_gpus["T4", "eager"][GEMM, HALF] == pytest.approx(-0.3, abs=0.07)
    north, south = (
        found.terms["source", name]
        + found.terms["source_class", name, GEMM, HALF]
        + found.terms["laboratory", f"{name} T4 eager"]
        for name in ("north", "south")
    )
    assert north - south == pytest.approx(0.16, abs=0.04)


def test_what_laboratories_of_reference_measured_is_what_an_answer_means() -> None:
    """A GPU that only such a laboratory measured is answered as it measured."""
    rows, kernels = zip(*((r, k) for r, k in _rows() if r.source == "north"), strict=True)
    heads = [("T4", "eager", "north T4 eager")]
    found = fit_effects(rows, kernels, copy_bytes_per_ms=1e7, heads=heads)
    assert found.of_gpus["T4", "eager"][GEMM, HALF] == pytest.approx(-0.3 + 0.08, abs=0.03)


def test_a_unit_that_nobody_measured_stays_where_the_law_has_it(found: Effects) -> None:
    """Rows of tensor cores say nothing of a GPU's memory, nor of its IEEE products."""
    for unit in (BYTES, FP32):
        effect = found.of_gpus["T4", "eager"][GEMM, unit] - found.terms["laboratories", "others"]
        assert effect == pytest.approx(0.0, abs=1e-9)


def test_an_unmeasured_class_of_a_measured_unit_takes_the_part_that_the_unit_has() -> None:
    """A unit's effect that four classes share is that of a fifth."""
    rows, kernels = [], []
    random = np.random.default_rng(1)
    for gpu, slower in (("T4", 0.4), ("V100-SXM2-16GB", -0.4)):
        for kind in (0, 1, 3, GEMM):
            for number in range(30):
                base = float(np.exp(random.uniform(-1, 2)))
                time_ms = base * float(np.exp(slower + random.normal(0, 0.02)))
                rows.append(_row(gpu, "north", number, time_ms))
                kernels.append(_kernel(base, kind))
    found = fit_effects(rows, kernels, copy_bytes_per_ms=1e7)
    unmeasured = 7
    gap = (
        found.of_gpus["T4", "eager"][unmeasured, HALF]
        - found.of_gpus["V100-SXM2-16GB", "eager"][unmeasured, HALF]
    )
    assert 0.3 < gap < 0.85


def test_launches_of_a_slow_machine_are_not_the_gpu_s() -> None:
    """Rows that wait for the host teach its launch time and no effect of the kernels."""
    random = np.random.default_rng(2)
    rows, kernels = [], []
    for number in range(40):
        launches = 50.0 + number
        time_ms = launches * 0.04 * float(np.exp(random.normal(0, 0.02)))
        rows.append(_row("T4", "north", number, time_ms, timer="wall"))
        kernels.append(_kernel(0.02, launches=launches))
    found = fit_effects(rows, kernels, copy_bytes_per_ms=1e7)
    launch_ms = (
        default_host(find("T4")).launch_us / 1e3 * np.exp(found.terms["launch", "north T4 eager"])
    )
    assert launch_ms == pytest.approx(0.04, rel=0.1)
    assert abs(found.of_gpus["T4", "eager"][GEMM, HALF]) < 0.1


def test_an_unmeasured_board_takes_what_laboratories_with_boards_of_its_kind_add() -> None:
    """The reference has desktop boards, the others those of servers: 0.4 apart, in the log."""
    random = np.random.default_rng(3)
    rows, kernels = [], []
    added = {"RTX-3090": -0.2, "RTX-4090": -0.2, "T4": 0.2, "V100-SXM2-16GB": 0.2, "A30": 0.2}
    for gpu, slower in added.items():
        laboratory = "desk" if gpu.startswith("RTX") else "servers"
        for number in range(40):
            base = float(np.exp(random.uniform(-1, 2)))
            time_ms = base * float(np.exp(slower + random.normal(0, 0.02)))
            rows.append(_row(gpu, laboratory, number, time_ms))
            kernels.append(_kernel(base))
    heads = [(gpu, "eager", f"desk {gpu} eager") for gpu in ("RTX-3090", "RTX-4090")]
    found = fit_effects(rows, kernels, copy_bytes_per_ms=1e7, heads=heads)
    assert found.laboratories["desktop"] < -0.02
    assert found.laboratories["data-centre"] == found.laboratories["old-desktop"] > 0.02
    assert found.of_gpus["RTX-3090", "eager"][GEMM, HALF] == pytest.approx(-0.2, abs=0.03)
    known = GpuEffects(found.of_gpus, found.defaults, laboratories=found.laboratories)
    unmeasured = {
        gpu: known.of(Conditions(device=find(gpu), precision="fp16"))[GEMM, HALF]
        for gpu in ("RTX-5090", "A10", "A100-40GB")
    }
    assert unmeasured["RTX-5090"] < unmeasured["A10"] - 0.05
    assert unmeasured["A100-40GB"] > 0.05


def test_what_sums_kernels_and_what_reads_a_clock_are_told_apart() -> None:
    """Two laboratories of each timer, 0.2 apart: an answer for either timer means what it reads."""
    random = np.random.default_rng(4)
    rows, kernels = [], []
    timers = {"north": "kernel", "south": "kernel", "east": "wall", "west": "wall"}
    for laboratory, timer in timers.items():
        for gpu in ("T4", "V100-SXM2-16GB", "A100-40GB"):
            for number in range(30):
                base = float(np.exp(random.uniform(0, 2)))
                slower = (-0.1 if timer == "kernel" else 0.1) + random.normal(0, 0.02)
                rows.append(_row(gpu, laboratory, number, base * np.exp(slower), timer))
                kernels.append(_kernel(base))
    found = fit_effects(rows, kernels, copy_bytes_per_ms=1e7)
    assert found.kernel_timer == pytest.approx(-0.2, abs=0.05)
    known = GpuEffects(found.of_gpus, found.defaults, kernel_timer=found.kernel_timer)
    device = find("A100-40GB")
    clock, summed = (
        known.of(Conditions(device=device, precision="fp16", timer=timer))[GEMM, HALF]
        for timer in ("wall", "kernel")
    )
    assert clock == pytest.approx(0.1, abs=0.05)
    assert summed == pytest.approx(-0.1, abs=0.05)


def test_our_own_rows_are_added_to_what_others_say_of_their_gpu_and_of_no_other(
    found: Effects,
) -> None:
    """An A30 that we measured 0.3 slower than it is answered, in the log; others stay."""
    random = np.random.default_rng(5)
    plain = GpuEffects(found.of_gpus, found.defaults, laboratories=found.laboratories)
    usual = plain.of(Conditions(device=find("A30"), precision="fp16"))[GEMM, HALF]
    own = []
    for number in range(60):
        base = float(np.exp(random.uniform(-2, 3)))
        slower = usual + found.kernel_timer + 0.3 + random.normal(0, 0.02)
        own.append((_row("A30", "collected/a30", number, base * np.exp(slower)), _kernel(base)))
    rows, kernels = zip(*_rows(), *own, strict=True)
    taught = fit_effects(rows, kernels, copy_bytes_per_ms=1e7)
    for place, effects in found.of_gpus.items():
        assert np.array_equal(taught.of_gpus[place], effects)
    assert (taught.sd, taught.laboratories) == (found.sd, found.laboratories)
    added = taught.of_gpus["A30", "eager"][GEMM, HALF] - usual
    assert added == pytest.approx(0.3, abs=0.05)
    untouched = (
        taught.of_gpus["A30", "eager"][GEMM, FP32]
        - plain.of(Conditions(device=find("A30"), precision="fp32"))[GEMM, FP32]
    )
    assert untouched == pytest.approx(0.0, abs=1e-9)


def test_our_own_rows_alone_teach_all_levels() -> None:
    """Without rows of others there is no answer of theirs to add to."""
    random = np.random.default_rng(6)
    rows, kernels = [], []
    for gpu, slower in (("T4", 0.2), ("A30", -0.2)):
        for number in range(40):
            base = float(np.exp(random.uniform(-1, 2)))
            time_ms = base * float(np.exp(slower + random.normal(0, 0.02)))
            rows.append(_row(gpu, "collected/ours", number, time_ms))
            kernels.append(_kernel(base))
    found = fit_effects(rows, kernels, copy_bytes_per_ms=1e7)
    t4, a30 = (found.of_gpus[gpu, "eager"][GEMM, HALF] for gpu in ("T4", "A30"))
    assert t4 - a30 == pytest.approx(0.4, abs=0.1)
