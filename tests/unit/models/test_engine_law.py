"""How long an engine takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dippm.devices import find
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.engine_law import GROUPS, tensorrt


def every_class(elements: float) -> KernelTable:
    return KernelTable.of_kernels([Kernel.stream(0, k, elements, 2) for k in KERNEL_CLASSES])


def test_every_class_of_kernels_is_in_one_group() -> None:
    assert sorted(kind for kinds in GROUPS.values() for kind in kinds) == sorted(KERNEL_CLASSES)


def test_no_kernel_is_faster_than_its_roofline() -> None:
    for device in ("T4", "A100-SXM-40GB", "H100-SXM", "RTX 4090"):
        view = DeviceView.of(find(device))
        for elements in (1e2, 1e5, 1e8):
            table = every_class(elements)
            assert (tensorrt().kernel_ms(table, 1, view) >= roofline_ms(table, 1, view)).all()


def test_layers_follow_the_clock() -> None:
    table = every_class(1.0)
    slow, fast = (DeviceView.of(find(name)) for name in ("T4", "RTX 4090"))
    ratio = tensorrt().kernel_ms(table, 1, slow) / tensorrt().kernel_ms(table, 1, fast)
    assert np.allclose(ratio, fast.clock_mhz / slow.clock_mhz, rtol=0.05)


def test_a_gpu_without_measurements_has_a_wider_interval() -> None:
    law, here = tensorrt(), Conditions(device=find("T4"), precision="fp16", runtime="tensorrt")
    assert law.half_width_at(here) == law.log_half_width
    for there in ({"device": find("H100")}, {"precision": "fp32"}, {"batch": 8}):
        assert law.half_width_at(replace(here, **there)) > 1.5 * law.log_half_width
