from __future__ import annotations

import math

import pytest

from dippm.devices import find, memory_fraction, seed_profile, sm_fraction, smallest_profile


@pytest.mark.parametrize(
    ("memory_mb", "profile"),
    [
        (0, None),
        (0.001, "1g.5gb"),
        (5_000, "1g.5gb"),
        (5_000.001, "2g.10gb"),
        (10_000, "2g.10gb"),
        (10_001, "3g.20gb"),
        (20_000, "3g.20gb"),
        (20_001, "7g.40gb"),
        (40_000, "7g.40gb"),
        (40_001, None),
        (math.inf, None),
    ],
)
def test_equation_2_with_closed_upper_limits(memory_mb: float, profile: str | None) -> None:
    chosen = seed_profile(memory_mb)
    assert (chosen and chosen.name) == profile


@pytest.mark.parametrize(
    ("predicted_mb", "profile"),
    [
        (2865, "1g.5gb"),
        (5952, "2g.10gb"),
        (2873, "1g.5gb"),
        (6736, "2g.10gb"),
        (4771, "1g.5gb"),
        (26439, "7g.40gb"),
    ],
)
def test_equation_2_gives_table_4_of_the_deliverable(predicted_mb: float, profile: str) -> None:
    assert str(seed_profile(predicted_mb)) == profile


@pytest.mark.parametrize(
    ("device", "memory_mb", "profile"),
    [
        ("A100-40GB", 0, "1g.5gb"),
        ("A100-40GB", 4864, "1g.5gb"),
        ("A100-40GB", 4864.5, "1g.10gb"),
        ("A100-40GB", 9857, "3g.20gb"),
        ("A100-40GB", 19968, "3g.20gb"),
        ("A100-40GB", 19969, "7g.40gb"),
        ("A100-40GB", 40192, "7g.40gb"),
        ("A100-40GB", 40193, None),
        ("A100-80GB", 80896, "7g.80gb"),
        ("H100", 20096, "1g.20gb"),
        ("H100-PCIe", 40449, "7g.80gb"),
        ("H200", 143104, "7g.141gb"),
        ("B200", 45312, "1g.45gb"),
        ("B200", 45313, None),
        ("RTX-3090", 100, None),
    ],
)
def test_the_smallest_slice_by_usable_memory(
    device: str, memory_mb: float, profile: str | None
) -> None:
    chosen = smallest_profile(memory_mb, find(device))
    assert (chosen and chosen.name) == profile


def test_profiles_of_unknown_memory_are_named_where_none_fits() -> None:
    assert find("B200").unlisted_mig_profiles == ("3g.90gb", "4g.90gb", "7g.180gb")


@pytest.mark.parametrize("memory_mb", [-1.0, math.nan])
def test_memory_that_cannot_be_is_refused(memory_mb: float) -> None:
    with pytest.raises(ValueError, match="memory is"):
        smallest_profile(memory_mb, find("A100"))
    with pytest.raises(ValueError, match="memory is"):
        seed_profile(memory_mb)


def test_fractions_are_those_of_the_real_slice() -> None:
    a100, h100 = find("A100"), find("H100")
    largest, third = a100.mig_profiles[-1], h100.mig_profiles[3]
    assert sm_fraction(largest, a100) == pytest.approx(98 / 108)
    assert memory_fraction(largest, a100) == 1
    assert (third.name, sm_fraction(third, h100)) == ("3g.40gb", pytest.approx(60 / 132))
    assert memory_fraction(third, h100) == 0.5
