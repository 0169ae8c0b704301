"""Carbon of a choice, and what inference and training runs cost, from the user's own files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dippm
from dippm.cli.app import app
from dippm.errors import CarbonError, ConditionsError, ConstraintError
from dippm.estimate.carbon import Region, carbon_of, read_carbon

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MODEL, ASKED = "timm:resnet18", {"input": "3,64,64", "batch": 8}
KWH = 3.6e6


@pytest.fixture(scope="module")
def passed():
    return dippm.predict(MODEL, **ASKED, device="A100")


@pytest.fixture(scope="module")
def trained():
    return dippm.predict(MODEL, **ASKED, device="A100", phase="train", optimizer="adam")


def test_inference_of_a_million_samples(passed):
    region = Region("FR", 50, pue=1.2)
    found = dippm.cost_of(passed, price_per_hour=2.0, region=region)
    steps = 1_000_000 // 8
    assert found.steps == steps
    assert found.gpu_hours.value == pytest.approx(steps * passed.latency_ms / 3.6e6)
    energy = steps * passed.energy_j / KWH * 1.2
    assert found.energy_kwh.value == pytest.approx(energy)
    assert found.price.value == pytest.approx(2 * found.gpu_hours.value)
    assert found.carbon_g.value == pytest.approx(50 * energy)
    assert not found.absent
    interval = passed.intervals["energy_j"]
    assert found.carbon_g.interval.high == pytest.approx(50 * 1.2 * steps * interval.high / KWH)


def test_a_training_run_agrees_with_its_epochs(trained):
    samples = 1_281_167
    found = dippm.cost_of(trained, samples=samples, epochs=3, price_per_hour=1.6)
    epochs = trained.epoch(samples, epochs=3, price_per_hour=1.6)
    assert found.steps == epochs.steps
    assert found.gpu_hours.value == pytest.approx(epochs.time_s / 3600)
    assert found.energy_kwh.value == pytest.approx(epochs.energy_kwh)
    assert found.price.value == pytest.approx(epochs.price)
    assert "neither a region" in found.absent["carbon_g"]


def test_idle_hours_cost_price_and_idle_power(passed):
    busy = dippm.cost_of(passed, price_per_hour=2.0)
    idle = dippm.cost_of(passed, price_per_hour=2.0, idle_hours=10, pue=1.5)
    watts = passed.conditions.device.idle_power_w
    assert idle.price.value == pytest.approx(busy.price.value + 20)
    energy = 1.5 * (busy.energy_kwh.value + 10 * watts / 1000)
    assert idle.energy_kwh.value == pytest.approx(energy)
    assert idle.gpu_hours == busy.gpu_hours


def test_what_cannot_be_had_is_absent_with_its_reason():
    on_slice = dippm.predict(MODEL, **ASKED, device="A100", mig="2g.10gb")
    found = dippm.cost_of(on_slice, region=Region("FR", 50))
    assert found.energy_kwh is None
    assert found.carbon_g is None
    assert "slice" in found.absent["energy_kwh"]
    assert "no price" in found.absent["price"]
    assert "not available: " in str(found)


def test_a_choice_by_carbon_goes_by_region_and_pue():
    carbon = read_carbon(EXAMPLES / "carbon.toml")
    choice = dippm.choose(
        MODEL, **ASKED, devices=["A100", "H100", "L4"], slices=False, by="carbon",
        carbon=EXAMPLES / "carbon.toml", region="fr",
    )  # fmt: skip
    rows = {row["name"]: row for row in choice.rows()}
    assert rows["H100-SXM-80GB"]["region"] == "PL"
    for row in rows.values():
        region = carbon.region(row["region"])
        grams = row["energy_per_sample_j"] * 1e6 / KWH * region.pue * region.g_per_kwh
        assert row["carbon_per_million_g"] == pytest.approx(grams)
    grams = [row["carbon_per_million_g"] for row in choice.rows()]
    assert grams == sorted(grams)
    without = dippm.choose(MODEL, **ASKED, devices="A100", slices=False)
    assert without.rows()[0]["carbon_per_million_g"] is None


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"by": "carbon"}, ConstraintError, "needs intensities"),
        ({"region": "FR"}, ConstraintError, "needs intensities"),
        ({"by": "carbon", "carbon": {"FR": 50}}, ConstraintError, "needs a region"),
        ({"by": "carbon", "carbon": {"FR": 50}, "region": "FA"}, CarbonError, "unknown region"),
        ({"by": "carbon", "carbon": "none.toml", "region": "FR"}, CarbonError, "no such file"),
    ],
)
def test_choices_that_lack_what_they_need_are_refused(asked, error, said):
    with pytest.raises(error, match=said):
        dippm.choose(MODEL, **ASKED, devices="A100", slices=False, **asked)


def test_the_tables_of_a_file_may_be_given_as_they_are():
    table = {"pue": 1.2, "regions": {"FR": {"g_per_kwh": 50}}, "where": {"A100": "FR"}}
    found = carbon_of(table)
    assert found.region("fr").pue == 1.2
    assert found.where == {"A100-40GB": "FR"}
    with pytest.raises(CarbonError, match="unknown table"):
        carbon_of({**table, "region": 3})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no region"),
        ("regions = 3", "regions is not a table"),
        ("region = 3", "unknown table 'region'"),
        ("[regions]\nFR = 50", "the region FR is 50"),
        ("[regions]\nFR = {}", "g_per_kwh is 'missing'"),
        ("[regions]\nFR = { g_per_kwh = -1 }", "g_per_kwh is -1"),
        ("[regions]\nFR = { g_per_kwh = nan }", "g_per_kwh is nan"),
        ("[regions]\nFR = { g_per_kwh = true }", "g_per_kwh is True"),
        ("[regions]\nFR = { g_per_kwh = 50, pue = 0.5 }", "pue is 0.5"),
        ("pue = 9\n[regions]\nFR = { g_per_kwh = 50 }", "pue is 9"),
        ("[regions]\nFR = { g_per_kwh = 50 }\nfr = { g_per_kwh = 60 }", "twice"),
        ("[regions]\nFR = { g_per_kwh = 50 }\n[where]\nA10000 = 'FR'", "A10000"),
        ("[regions]\nFR = { g_per_kwh = 50 }\n[where]\nA100 = 'FA'", "unknown region"),
        ("[regions]\nFR = { g_per_kwh = 50 }\n[where]\nA100 = 3", "is in 3"),
        ("[regions", "is not TOML"),
    ],
)
def test_files_of_intensities_that_are_none_are_refused(tmp_path, text, said):
    path = tmp_path / "carbon.toml"
    path.write_text(text)
    with pytest.raises(CarbonError, match=said):
        carbon_of(path)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"samples": 0}, ConditionsError),
        ({"epochs": 1.5}, ConditionsError),
        ({"samples": True}, ConditionsError),
        ({"idle_hours": -1}, ConditionsError),
        ({"idle_hours": float("inf")}, ConditionsError),
        ({"price_per_hour": float("nan")}, ConditionsError),
        ({"pue": 0.9}, CarbonError),
    ],
)
def test_costs_of_numbers_that_are_none_are_refused(passed, asked, error):
    with pytest.raises(error):
        dippm.cost_of(passed, **asked)


def test_the_command_says_the_same(passed):
    words = (
        f"cost {MODEL} --input 3,64,64 --batch 8 --carbon {EXAMPLES / 'carbon.toml'} --region DE"
    )
    words += f" --prices {EXAMPLES / 'prices.toml'} --idle-hours 2"
    answer = CliRunner().invoke(app, [*words.split(), "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    told = dippm.cost_of(
        passed, price_per_hour=1.6, region=Region("DE", 350, 1.15), idle_hours=2
    ).to_dict()
    assert found["cost"] == json.loads(json.dumps(told))
    assert found["currency"] == "EUR"
    shown = CliRunner().invoke(app, [*words.split(), "--quiet"]).stdout
    assert "DE 350 g/kWh" in shown
    assert re.search(r"^ price +[\d.]+ EUR ", shown, re.MULTILINE)
    assert found["verify"].startswith(f"dippm measure {MODEL} --batch 8")
    assert found["absent"] == {}
    assert "2 h idle" in shown


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--region FR", 1),
        (f"--carbon {EXAMPLES / 'carbon.toml'}", 1),
        (f"--carbon {EXAMPLES / 'carbon.toml'} --region XX", 1),
        ("--g-per-kwh -5", 1),
        ("--pue 0.2", 1),
        ("--g-per-kwh 5 --region FR", 2),
        (f"--price-per-hour 1 --prices {EXAMPLES / 'prices.toml'}", 2),
        ("--idle-hours -1", 2),
    ],
)
def test_questions_that_make_no_sense_are_refused(words, code):
    line = f"cost {MODEL} --input 3,64,64 {words} --json"
    answer = CliRunner().invoke(app, line.split())
    assert answer.exit_code == code, answer.output
    assert json.loads(answer.stdout)["error"]["message"]
