"""Links, rings, overlap, stages: each against what can be worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from dippm import devices
from dippm.decide.parallel.estimate import overlap
from dippm.decide.parallel.plan import Group, ring_ms
from dippm.decide.parallel.work import cuts_of, pipeline_ms
from dippm.devices.links import link_of, network_names, network_of
from dippm.errors import DeviceError, UnknownNameError

GB = 1e9


def group(gpus, per_node=None, device="A100", network="infiniband-hdr"):
    per_node = per_node or gpus
    between = network_of(network, per_node) if per_node < gpus else None
    return Group(gpus, per_node, link_of(devices.find(device)), between)


def test_the_rates_of_data_sheets():
    nvlink = {"V100": 150, "A100": 300, "H100": 450, "B200": 900}
    for name, gb_s in nvlink.items():
        link = link_of(devices.find(name))
        assert (link.kind, link.nominal_gb_s) == ("nvlink", gb_s)
        assert 0.7 < link.reached_gb_s / link.nominal_gb_s < 0.9
    assert link_of(devices.find("A100"), "pcie").name == "PCIe 4"
    assert link_of(devices.find("RTX-3090")).kind == "pcie"
    assert link_of(devices.find("RTX-3090"), "NVLink").joins == 2


def test_every_gpu_of_nvidia_is_joined_somehow():
    for device in devices.all_devices():
        if not device.is_of_another_vendor:
            assert link_of(device).reached_gb_s > 5


@pytest.mark.parametrize(
    ("device", "link", "error", "words"),
    [
        ("RTX-4090", "nvlink", DeviceError, "no NVLink"),
        ("A100", "ethernet", UnknownNameError, "unknown link"),
        ("MI250X", None, DeviceError, "not known"),
        ("MI300X", None, DeviceError, "not known"),
        ("cpu", None, DeviceError, "not known"),
    ],
)
def test_links_that_are_not_known(device, link, error, words):
    with pytest.raises(error, match=words) as caught:
        link_of(devices.find(device), link)
    assert caught.value.hint


def test_networks():
    assert network_of("infiniband-ndr", 8).nominal_gb_s == 50
    assert network_of("Ethernet-100", 8).nominal_gb_s == 12.5 / 8
    with pytest.raises(UnknownNameError, match="unknown network"):
        network_of("carrier-pigeon", 8)
    assert "infiniband-hdr" in network_names()


def test_large_all_reduces_take_the_time_of_their_bytes():
    """A DGX A100 reaches about 230 GB/s of bus bandwidth in public all-reduce tests of NCCL."""
    took = group(8).all_reduce_ms(4 * GB)
    bus = 2 * 7 / 8 * 4 / (took / 1e3)
    assert bus == pytest.approx(240, rel=0.01)
    assert group(8).all_gather_ms(4 * GB) == pytest.approx(took / 2, rel=0.01)
    assert group(8).broadcast_ms(4 * GB) == pytest.approx(4 / 240 * 1e3, rel=0.01)


def test_small_all_reduces_take_the_time_of_their_hops():
    assert group(8).all_reduce_ms(8) == pytest.approx((6.6 + 14 * 0.6) / 1e3, rel=0.01)
    small = [group(n).all_reduce_ms(1024) for n in (2, 4, 8)]
    assert small == sorted(small)


@pytest.mark.parametrize("device", ["V100", "A100", "RTX-3090"])
@pytest.mark.parametrize(("gpus", "per_node"), [(2, 2), (8, 8), (16, 8), (64, 8), (4, 1)])
def test_time_rises_with_bytes_and_is_continuous(device, gpus, per_node):
    some = group(gpus, per_node, device)
    sizes = [2.0**i for i in range(0, 34)]
    times = [some.all_reduce_ms(size) for size in sizes]
    assert times == sorted(times)
    for a, b in itertools.pairwise(times):
        assert b <= 2.001 * a
    assert some.all_reduce_ms(0) == 0


def test_nothing_to_exchange_of_one_gpu():
    one = group(1)
    assert one.all_reduce_ms(GB) == one.all_gather_ms(GB) == one.broadcast_ms(GB) == 0


def test_the_network_decides_between_nodes():
    slow, fast = (
        group(16, 8, network=n).all_reduce_ms(GB) for n in ("ethernet-10", "infiniband-ndr")
    )
    within = group(8).all_reduce_ms(GB)
    assert within < fast < slow
    share = GB / 8 / (1.2 / 8 * 1e6)
    assert slow - within == pytest.approx(share, rel=0.01)


def test_a_ring_by_hand():
    link = link_of(devices.find("V100"), "pcie")
    by_hand = (8.4 + 6 * 5.7) / 1e3 + 6 / 4 * 1e8 / 12e6
    assert ring_ms(link, 4, 2.0, 1e8) == pytest.approx(by_hand)


def test_gradients_that_are_there_early_are_hidden():
    rate = 1e6  # bytes per ms
    steps = [(10.0, 5e6)] * 10
    found = overlap(steps, lambda size: size / rate)
    assert found.all_ms == pytest.approx(50)
    assert found.exposed_ms == pytest.approx(50e6 % (25 * 2**20) / rate, rel=0.9)
    assert found.exposed_ms < found.all_ms


def test_slow_links_are_waited_for():
    found = overlap([(1.0, 50e6)] * 4, lambda size: size / 1e6)
    assert found.all_ms == pytest.approx(200)
    assert found.exposed_ms == pytest.approx(200 - 4 + 1, abs=1)
    assert found.buckets == 1 + -(-(200e6 - 2**20) // (25 * 2**20))


def test_nothing_is_exposed_without_gradients():
    assert overlap([(1.0, 0.0)], lambda size: 1e9).exposed_ms == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_stages_are_as_equal_as_they_can_be(stages):
    times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    ends = cuts_of(times, stages)
    assert len(ends) == stages
    assert ends == sorted(set(ends))
    assert ends[-1] == len(times)

    def longest(cut):
        return max(sum(times[a:b]) for a, b in zip([0, *cut[:-1]], cut, strict=True))

    inner = itertools.combinations(range(1, len(times)), stages - 1)
    assert longest(ends) == min(longest([*cut, len(times)]) for cut in inner)


def test_stages_where_one_operator_is_all():
    assert cuts_of([1e-9, 1e-9, 100.0], 3) == [1, 2, 3]
    assert cuts_of([100.0, 1e-9, 1e-9], 3) == [1, 2, 3]


def test_a_pipeline_has_the_bubble_of_the_formula():
    m, p = 8, 4
    took = pipeline_ms([1.0] * p, [0.0] * (p - 1), m)
    assert took == m + p - 1
    assert pipeline_ms([2.0, 3.0], [0.5], 1) == 5.5
    assert pipeline_ms([2.0, 3.0], [0.5], 3) == 5.5 + 2 * 3
