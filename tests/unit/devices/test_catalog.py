from __future__ import annotations

import pytest

from dippm.devices import (
    all_cpus,
    all_devices,
    check_device,
    find,
    memory_fraction,
    sm_fraction,
)
from dippm.errors import UnknownNameError


@pytest.mark.parametrize(
    ("name", "catalogue_name"),
    [
        ("A100", "A100-40GB"),
        ("a100", "A100-40GB"),
        ("A100-80GB", "A100-80GB"),
        ("a100 80gb", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("rtx_3090_ti", "RTX-3090-Ti"),
        ("Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("AMD Instinct MI250X/MI250", "MI250X"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA L20", "L20"),
    ],
)
def test_a_device_is_found_by_any_of_its_spellings(name: str, catalogue_name: str) -> None:
    assert find(name).name == catalogue_name


def test_an_unknown_device_names_the_closest_ones() -> None:
    with pytest.raises(UnknownNameError) as error:
        find("RTX-3091")
    assert "RTX-3090" in error.value.hint


@pytest.mark.parametrize("name", ["TPUv4", "tpu-v5e", "Gaudi2", "Apple M3 Max", "Inferentia2"])
def test_an_accelerator_of_another_kind_is_not_guessed_to_be_a_gpu(name: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        find(name)
    assert "Did you mean" not in error.value.hint
    assert "of this kind" in error.value.hint
    assert name in error.value.message


def test_names_and_aliases_mean_one_device_each() -> None:
    for device in all_devices():
        assert all(find(name) is device for name in (device.name, *device.aliases))


def test_every_device_has_values_that_a_gpu_can_have() -> None:
    assert all_devices()
    for device in all_devices():
        assert device.source
        assert device.memory_mb > 8_000
        assert 100 < device.bandwidth_gb_s < 10_000
        assert all(rate > 1 for rate in device.peak_tflops.values())


@pytest.mark.parametrize(
    ("name", "memory_type", "family"),
    [
        ("A100", "HBM2", "stacked"),
        ("A100-80GB", "HBM2e", "stacked"),
        ("H100-SXM-80GB", "HBM3", "stacked"),
        ("H200", "HBM3e", "stacked"),
        ("P4", "GDDR5", "board"),
        ("GTX 1080 Ti", "GDDR5X", "board"),
        ("T4", "GDDR6", "board"),
        ("RTX-3090", "GDDR6X", "board"),
        ("RTX-5090", "GDDR7", "board"),
        ("cpu", None, None),
    ],
)
def test_memory_is_stacked_or_on_the_board(name, memory_type, family) -> None:
    assert (find(name).memory_type, find(name).memory_family) == (memory_type, family)


def test_the_memory_of_every_gpu_is_known_and_as_wide_as_its_kind() -> None:
    for device in all_devices():
        assert device.memory_family in ("stacked", "board"), device.name
        if device.bandwidth_gb_s > 1800:
            assert device.memory_family == "stacked", device.name
        if device.bandwidth_gb_s < 600:
            assert device.memory_family == "board", device.name


def test_a_cpu_is_known_by_name_only() -> None:
    cpu = find("cpu")
    assert cpu in all_cpus()
    assert cpu is find("AMD EPYC")
    assert cpu.source
    assert cpu.mig_profiles == ()
    assert cpu.peak_tflops == {}
    assert cpu.bandwidth_gb_s is None


CORES = {6.0: 64, 7.0: 64, 7.5: 64, 8.0: 64, None: 64}
"""Float32 units of a multiprocessor; 128 where nothing else is said."""

HALF_OVER_FP32 = {
    6.0: 1, 6.1: 1, 7.0: 8, 7.5: 8, 8.0: 16, 8.6: 4, 8.9: 4, 9.0: 14.78, 10.0: 30, 12.0: 4,
    "CDNA2": 8, "CDNA3": 16,
}  # fmt: skip
"""By compute capability, or AMD's architecture: tensor rate with float32 accumulation. GeForce
cards have half of it where their tensor units are more than their float32 units, and so have some
boards of data centres."""
LOWER_CLOCK = 0.07
"""A board with a low power limit may state its tensor rates for a clock that is so much lower."""


@pytest.mark.parametrize("device", all_devices(), ids=lambda device: device.name)
def test_rates_follow_from_the_architecture(device) -> None:
    rates, version = device.peak_tflops, device.compute_capability
    units = device.sm_count * CORES.get(version, 128)
    assert rates["fp32"] == pytest.approx(units * 2e-6 * device.boost_clock_mhz, rel=0.025)
    full = HALF_OVER_FP32[version or device.architecture]
    half = full / 2
    consumer = "GeForce" in " ".join(device.aliases) and rates["fp16"] > rates["fp32"]
    allowed = [half] if consumer else [full] if full <= 1 else [full, half]
    shares = [rates["fp16"] / rates["fp32"] / rate for rate in allowed]
    assert any(1 - LOWER_CLOCK < share < 1.03 for share in shares)
    has_tf32 = version is not None and version >= 8.0
    assert ("tf32" in rates) == has_tf32
    assert ("bf16" in rates) == (has_tf32 or version is None)
    assert ("fp8" in rates) == (version is not None and version >= 8.9)
    if has_tf32:
        assert rates["tf32"] / rates["fp16"] == pytest.approx(0.5, rel=0.02)
    if "bf16" in rates:
        assert rates["bf16"] == pytest.approx(rates["fp16"], rel=0.001)
    if "fp8" in rates:
        assert rates["fp8"] / rates["fp16"] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("device", all_devices(), ids=lambda device: device.name)
def test_figures_of_a_card_are_those_of_one(device) -> None:
    check_device(device)
    assert 50 <= device.power_limit_w <= 1000
    assert 0.5 <= device.l2_mb <= 200
    assert device.memory_mb / device.bandwidth_gb_s > 10, "it reads its memory in over 10 ms"
    assert device.peak_tflops["fp16"] / device.power_limit_w < 3
    assert "confidence" in device.source, "the source says how sure its figures are"
    if device.mig_profiles:
        last = device.mig_profiles[-1]
        assert device.unlisted_mig_profiles or last.memory_slices == device.memory_slices
        for profile in device.mig_profiles:
            share = profile.memory_mb / device.memory_mb
            assert share == pytest.approx(profile.memory_slices / device.memory_slices, abs=0.06)


SIBLINGS = [
    ("A100-40GB", "A100-80GB"), ("A100-PCIe-40GB", "A100-PCIe-80GB"), ("H100-SXM-80GB", "H200"),
    ("H200", "B200"), ("A30", "A100-PCIe-80GB"), ("RTX-3080", "RTX-3090"), ("L4", "L40S"),
    ("RTX-3070", "RTX-3070-Ti"), ("GTX-1070", "GTX-1080"), ("GTX-1080", "GTX-1080-Ti"),
    ("TITAN-X-Pascal", "TITAN-Xp"), ("RTX-2070", "RTX-2070-SUPER"), ("RTX-4070", "RTX-4070-Ti"),
    ("RTX-2070-SUPER", "RTX-2080-SUPER"), ("RTX-4070-Ti", "RTX-4080"),
    ("RTX-3090", "RTX-3090-Ti"), ("RTX-3090-Ti", "RTX-4090"), ("RTX-4090", "RTX-5090"),
    ("V100-PCIe-32GB", "V100-SXM2-32GB"), ("RTX-5090", "RTX-PRO-6000"),
    ("RTX-PRO-6000-Server", "RTX-PRO-6000"), ("H100-PCIe-80GB", "H100-NVL-94GB"),
    ("H100-NVL-94GB", "GH200-96GB"), ("MI250X", "MI300X"),
]  # fmt: skip


@pytest.mark.parametrize(("smaller", "larger"), SIBLINGS)
def test_the_larger_sibling_has_more_of_everything(smaller: str, larger: str) -> None:
    less, more = find(smaller), find(larger)
    assert more.sm_count >= less.sm_count
    assert more.bandwidth_gb_s >= less.bandwidth_gb_s
    assert more.memory_mb >= less.memory_mb
    assert more.l2_mb >= less.l2_mb
    assert all(more.peak_tflops[p] >= rate for p, rate in less.peak_tflops.items())


def test_slices_of_a30_are_quarters() -> None:
    a30 = find("A30")
    assert [p.name for p in a30.mig_profiles] == ["1g.6gb", "2g.12gb", "4g.24gb"]
    half = a30.mig_profiles[1]
    assert (memory_fraction(half, a30), sm_fraction(half, a30)) == (0.5, 0.5)


def test_a_precision_without_hardware_is_absent() -> None:
    assert set(find("P100").peak_tflops) == {"fp32", "fp16"}
    assert "fp8" not in find("A100").peak_tflops
    assert find("A100").peak_tflops["tf32"] == 156


def test_consumer_cards_carry_the_rate_with_fp32_accumulation() -> None:
    assert find("RTX-3090").peak_tflops["fp16"] == 71


def test_profiles_are_sorted_and_fit_on_the_card() -> None:
    for device in all_devices():
        profiles = device.mig_profiles
        assert list(profiles) == sorted(profiles, key=lambda p: (p.memory_mb, p.sm_count))
        assert all(p.memory_mb < device.memory_mb for p in profiles)
        assert all(p.sm_count <= device.sm_count for p in profiles)
        assert all(p.name.startswith(f"{p.compute_slices}g.") for p in profiles)
