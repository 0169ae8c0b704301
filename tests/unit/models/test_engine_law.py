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
        assert law.half_width_at(here.replace(**there)) > 1.4 * law.log_half_width
    eight = here.replace(precision="int8")
    assert law.half_width_at(eight) > law.half_width_at(here.replace(precision="fp32"))


def test_elsewhere_no_kernel_takes_longer_than_that_of_a_library() -> None:
    table, law = every_class(1e5), tensorrt()
    c = Conditions(device=find("A100"), precision="fp16", runtime="tensorrt")
    view = DeviceView.of(c.device)
    own, least = law.kernel_ms(table, 1, view), roofline_ms(table, 1, view)
    library = 1.5 * least
    times = law.times(table, c, view, library)
    assert np.allclose(times, np.minimum(own, library))
    assert (law.times(table, c, view, 0.1 * least) == least).all()


def test_where_it_was_measured_the_offsets_give_way_with_the_batch() -> None:
    table, law = every_class(1e6), tensorrt()
    c = Conditions(device=find("T4"), precision="fp16", runtime="tensorrt")
    view = DeviceView.of(c.device)
    table = replace(table, per_sample=table.fixed, fixed=np.zeros_like(table.fixed))
    own = {n: law.kernel_ms(table, n, view) for n in (1, 2, 1024)}
    found = {n: law.times(table, c.replace(batch=n), view, 0.5 * own[n]) for n in own}
    assert np.allclose(found[1], own[1])
    assert (found[2] >= found[1]).all()
    assert (found[2] < own[2]).all()
    fastest = np.maximum(0.5 * own[1024], roofline_ms(table, 1024, view))
    assert np.allclose(found[1024], fastest, rtol=0.01)
