"""The checkpoints that travel in the wheel: intact, documented, and sane on a real model."""

from __future__ import annotations

import json
import math

import pytest

import dippm
from dataset.join.latency_splits import HASHES
from dippm.devices import all_devices
from dippm.estimate.models.targets import TARGETS
from dippm.estimate.pretrained import DEFAULT, available, find, load
from dippm.estimate.pretrained.checkpoint import verify
from dippm.estimate.pretrained.model_card import render
from dippm.estimate.pretrained.store import CARD, read_metrics

SHIPPED = pytest.mark.parametrize(
    "info", available(), ids=lambda info: f"{info.name}-{info.version}"
)


@pytest.fixture(scope="module")
def vgg16():
    """Layers of VGG16, as the documented example has them."""
    from torch import nn

    layers, channels = [], 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, *(512, 512, 512, 0) * 2):
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1, device="meta"), nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for fan_in, fan_out in ((512 * 7 * 7, 4096), (4096, 4096)):
        layers += [nn.Linear(fan_in, fan_out, device="meta"), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Linear(4096, 1000, device="meta"))
    return dippm.read_graph(module, input=(3, 224, 224))


def test_the_default_is_shipped():
    assert find().name == DEFAULT


@SHIPPED
def test_it_is_intact_and_its_card_is_generated(info):
    verify(info)
    assert (info.path / CARD).read_text(encoding="utf-8") == render(
        info.config, read_metrics(info.path)
    )
    assert info.summary


@SHIPPED
def test_it_states_its_errors(info):
    rows = read_metrics(info.path)["summary"]
    assert rows
    for row in rows:
        assert row["n"] > 0
        assert row["gpu"]
        assert row["target"]
        assert row["split"]
        assert row["median_ape"] is None or 0 <= row["median_ape"] < 1000


def test_the_errors_of_the_default_belong_to_the_committed_splits():
    splits = find().config["splits"]
    assert splits
    assert splits.items() <= json.loads(HASHES.read_text()).items()


@SHIPPED
def test_it_loads(info):
    assert load(info.path).kind == info.kind


def test_the_documented_example(vgg16):
    out = dippm.load().predict(vgg16, batch=32, device="A100")
    memory, energy, latency, mig = out
    weights_mb = vgg16.param_bytes / 2**20
    assert weights_mb < memory < 20_000
    # 32 x 15.5 GMACs at no more than the TF32 peak of 156 TFLOP/s, and at no less than 2 % of it.
    floor_ms = 2 * 32 * 15.47 / 156
    assert floor_ms < latency < 50 * floor_ms
    assert energy is None or 0.05 * 400 < 1000 * energy / latency <= 400
    assert mig is not None
    for target in TARGETS:
        value, interval = getattr(out, target), out.intervals.get(target)
        if value is not None:
            assert 0 < interval.low <= value <= interval.high
    assert math.isclose(sum(cost.time_ms for cost in out.operators), latency, rel_tol=1e-3)


def test_more_work_takes_longer(vgg16):
    predictor = dippm.load()
    points = predictor.predict_grid(vgg16, batches=[1, 8, 64, 256], devices=["A100"])
    for target in ("latency_ms", "memory_mb"):
        values = [getattr(point, target) for point in points]
        assert values == sorted(values)
    slices = predictor.predict_grid(vgg16, batches=[64], migs=[None, "3g.20gb", "1g.5gb"])
    times = [point.latency_ms for point in slices]
    assert times == sorted(times)


def test_every_gpu_gets_an_answer_or_a_reason(vgg16):
    predictor = dippm.load()
    for device in all_devices():
        for precision in ("fp32", "fp16"):
            out = predictor.predict(vgg16, batch=8, device=device, precision=precision)
            assert out.latency_ms > 0
            assert set(TARGETS) == {t for t in TARGETS if getattr(out, t) is not None} | (
                set(out.absent) - {"mig"}
            )
