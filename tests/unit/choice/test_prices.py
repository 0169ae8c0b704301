"""Prices of an hour, from files of users."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dippm import devices
from dippm.decide.choice import Prices, read_prices
from dippm.decide.choice.prices import prices_of
from dippm.errors import PriceError

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "prices.toml"


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "prices.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_example_has_prices_and_says_that_they_are_none_of_ours():
    prices = read_prices(EXAMPLE)
    assert prices.currency == "EUR"
    assert prices.as_of.endswith("made up")
    assert len(prices.per_hour) >= 5
    assert "made up" in EXAMPLE.read_text()


def test_a_slice_costs_its_share_or_its_own_price():
    prices = read_prices(EXAMPLE)
    gpu = devices.find("A100-80GB")
    slices = {p.name: p for p in gpu.mig_profiles}
    whole = prices.of(gpu, None)
    assert prices.of(gpu, slices["3g.40gb"]) == pytest.approx(whole / 2)
    assert prices.of(gpu, slices["4g.40gb"]) == pytest.approx(whole * 4 / 7)
    assert prices.of(gpu, slices["1g.20gb"]) == pytest.approx(whole / 4)
    assert prices.of(gpu, slices["7g.80gb"]) == whole
    assert prices.of(gpu, slices["1g.10gb"]) == 0.32
    assert prices.of(devices.find("B200"), None) is None


def test_names_are_those_of_devices(written):
    path = written("[per_hour]\n'nvidia a100' = 1\nmine = 2\n")
    mine = replace(devices.find("T4"), name="Mine", aliases=())
    prices = read_prices(path, [mine])
    assert prices.per_hour == {"A100-40GB": 1.0, "Mine": 2.0}
    assert prices.currency == ""
    with pytest.raises(PriceError, match="unknown device 'mine'") as error:
        read_prices(path)
    assert "its file is among devices=" in error.value.hint


def test_a_mapping_does_too():
    assert prices_of({"T4": 0.5}).per_hour == {"T4": 0.5}
    ready = Prices({"T4": 0.5})
    assert prices_of(ready) is ready
    with pytest.raises(PriceError, match="the price is 5e-324"):
        prices_of(Prices({}, {("A100-40GB", "1g.5gb"): 5e-324}))
    with pytest.raises(PriceError, match="the prices: unknown device 'T5'"):
        prices_of({"T5": 0.5})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[per_hour]\nA10O = 1", "unknown device 'A10O'", "Did you mean A10"),
        ("[per_hour]\nT4 = 0", "T4: the price is 0", "above 0"),
        ("[per_hour]\nT4 = -1.5", "the price is -1.5", "above 0"),
        ("[per_hour]\nT4 = nan", "the price is nan", "above 0"),
        ("[per_hour]\nT4 = inf", "the price is inf", "above 0"),
        ("[per_hour]\nT4 = 5e-324", "the price is 5e-324", "from 1e-06"),
        ("[per_hour]\nT4 = 1e300", "the price is 1e+300", "to 1e+09"),
        ("[per_hour]\nT4 = true", "the price is True", "above 0"),
        ("[per_hour]\nT4 = '1'", "the price is '1'", "above 0"),
        ("[per_hour]\nA100 = 1\n'A100-40GB' = 2", "A100-40GB has two prices", "another name"),
        ("[per_hours]\nT4 = 1", "unknown table 'per_hours'", "per_hour"),
        ("per_hour = 3", "per_hour is not a table", "[per_hour]"),
        ("currency = 3\n[per_hour]\nT4 = 1", "currency is not a short text", "EUR"),
        ("", "has no price", "[per_hour]"),
        ("[slices.A100]\n'3g.21gb' = 1", "unknown MIG slice of A100-40GB", "3g.20gb"),
        ("[slices.T4]\n'1g.5gb' = 1", "unknown MIG slice of T4", "cannot be sliced"),
        ("[slices]\nA100 = 1", "slices of A100 are not a table", "[slices"),
        ("[per_hour\nT4 = 1", "is not TOML", "examples/prices.toml"),
        (b"\xff\xfe", "is not TOML", "examples/prices.toml"),
        (b"#" * 70_000, "larger than 64 KiB", "examples/prices.toml"),
        ("a = " + "[" * 5_000, "is not TOML", "examples/prices.toml"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(written, text, message, hint):
    with pytest.raises(PriceError) as caught:
        read_prices(written(text))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_only_files_are_read(tmp_path):
    for path in (tmp_path, tmp_path / "none.toml", Path("/dev/zero")):
        with pytest.raises(PriceError) as caught:
            read_prices(path)
        assert caught.value.hint
