from __future__ import annotations

import pytest

from dippm.devices import all_cpus, all_devices, find
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
    ],
)
def test_a_device_is_found_by_any_of_its_spellings(name: str, catalogue_name: str) -> None:
    assert find(name).name == catalogue_name


def test_an_unknown_device_names_the_closest_ones() -> None:
    with pytest.raises(UnknownNameError) as error:
        find("RTX-3091")
    assert "RTX-3090" in error.value.hint


def test_names_and_aliases_mean_one_device_each() -> None:
    for device in all_devices():
        assert all(find(name) is device for name in (device.name, *device.aliases))


def test_every_device_has_values_that_a_gpu_can_have() -> None:
    assert len(all_devices()) == 33
    for device in all_devices():
        assert device.source
        assert device.memory_mb >= 8 * 1024
        assert 100 < device.bandwidth_gb_s < 10_000
        assert all(rate > 1 for rate in device.peak_tflops.values())


def test_a_cpu_is_known_by_name_only() -> None:
    cpu = find("cpu")
    assert cpu in all_cpus()
    assert cpu is find("AMD EPYC")
    assert cpu.source
    assert cpu.mig_profiles == ()
    assert cpu.peak_tflops == {}
    assert cpu.bandwidth_gb_s is None


def test_a_precision_without_hardware_is_absent() -> None:
    assert set(find("P100").peak_tflops) == {"fp32"}
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
