"""Choosing a GPU or a slice, by the shipped checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import dippm
from dippm import devices
from dippm.decide.choice import Choice, Contender
from dippm.errors import (
    ConditionsError,
    ConstraintError,
    NothingFeasibleError,
    PriceError,
    UnknownNameError,
)
from dippm.estimate.largest_batch import memory_bound_mb
from dippm.estimate.models.targets import Interval
from dippm.show.report.choice import remarks

GPUS = ("T4", "A100-40GB", "RTX-4090", "H100")


@pytest.fixture(scope="module")
def by_latency(wide):
    return dippm.choose(wide, devices=GPUS, batch=32)


def named(choice) -> dict[str, Contender]:
    return {c.name: c for c in choice.contenders}


def test_each_row_is_what_predict_answers(by_latency, wide):
    found = named(by_latency)
    assert len(found) == 4 + 6 + 6
    for name, where in {
        "RTX-4090": {"device": "RTX-4090"},
        "A100-40GB 3g.20gb": {"device": "A100", "mig": "3g.20gb"},
    }.items():
        one = dippm.predict(wide, batch=32, **where)
        c = found[name]
        assert c.prediction.latency_ms == one.latency_ms
        assert c.prediction.intervals == one.intervals
        assert c.estimate("samples_per_s").value == pytest.approx(32e3 / one.latency_ms)
        if one.energy_j:
            assert c.estimate("energy_per_sample_j").value == pytest.approx(one.energy_j / 32)


def test_the_ranking_rises_and_its_probabilities_sum_to_one(by_latency):
    latencies = [c.prediction.latency_ms for c in by_latency.ranked]
    assert latencies == sorted(latencies)
    assert by_latency.best is by_latency.fastest
    assert by_latency.best.name == "H100-SXM-80GB"
    of_hardware = {c.hardware: c.probability_first for c in by_latency.ranked}
    assert sum(of_hardware.values()) == pytest.approx(1)
    assert max(of_hardware.values()) == by_latency.best.probability_first
    every = [row["rank"] for row in by_latency.rows()]
    ranks = [rank for rank in every if rank is not None]
    assert every[: len(ranks)] == ranks
    assert ranks == sorted(ranks)
    assert ranks[0] == 1
    assert ranks[-1] <= 16


def test_what_is_predicted_alike_has_one_place(by_latency):
    """A whole GPU and the slice that is all of it: one draw, one probability, one rank."""
    rows = {row["name"]: row for row in by_latency.rows()}
    whole, slice_ = rows["H100-SXM-80GB"], rows["H100-SXM-80GB 7g.80gb"]
    assert whole["latency_ms"] == slice_["latency_ms"]
    assert whole["rank"] == slice_["rank"] == 1
    assert whole["probability_first"] == slice_["probability_first"] > 0.5
    assert [c.name for c in by_latency.best_ties] == ["H100-SXM-80GB 7g.80gb"]
    assert by_latency.rivals == ()
    third = by_latency.contenders[2]
    assert rows[third.name]["rank"] == 3
    assert rows[third.name]["probability_first"] < whole["probability_first"]


def test_places_that_read_the_same_share_a_rank_and_rivals_are_named(by_latency):
    """Of a launch-bound model every GPU takes the same time; the most uncertain may win."""
    first, *others = [c for c in by_latency.ranked if c.mig is None]

    def like(c, latency_ms, spread):
        p = c.prediction
        interval = Interval(latency_ms / spread, latency_ms * spread, 0.9)
        p = replace(p, latency_ms=latency_ms, intervals={**p.intervals, "latency_ms": interval})
        return replace(c, prediction=p, probability_first=None)

    made = [like(first, 5.0, 1.2), *(like(c, 5.0001, 4.0) for c in others)]
    choice = Choice.of(made, "latency", source="m", conditions="", limits=by_latency.limits)
    assert choice.ranks == (1,) * len(made)
    best = choice.best.probability_first
    rivals = choice.rivals
    assert choice.best.name == first.name
    assert {c.name for c in rivals} == {c.name for c in others}
    assert rivals[0].probability_first > best
    said = "\n".join(remarks(choice, 20))
    assert f"as likely     {rivals[0].name}" in said
    assert "differ by less than its errors" in said
    assert "same place" in said
    assert f"{rivals[0].name} {rivals[0].probability_first:.0%}" in str(choice)
    apart = [like(first, 5.0, 1.2), *(like(c, 50.0, 1.2) for c in others)]
    apart = Choice.of(apart, "latency", source="m", conditions="", limits=by_latency.limits)
    assert apart.ranks[:2] == (1, 2)
    assert apart.rivals == ()


def test_the_most_frugal_has_the_least_energy_where_energy_is_predicted(by_latency):
    known = [c for c in by_latency.contenders if c.prediction.energy_j is not None]
    assert {c.mig for c in known} == {None}
    assert by_latency.most_frugal is min(known, key=lambda c: c.prediction.energy_j)


def test_nothing_beats_the_front(by_latency):
    places = {c.name: by_latency.position(c) for c in by_latency.contenders}
    front = {c.name for c in by_latency.front}
    known = {name: at for name, at in places.items() if at is not None}
    for name, at in known.items():
        beaten = any(o != at and o[0] <= at[0] and o[1] <= at[1] for o in known.values())
        assert beaten == (name not in front)
    assert by_latency.best.name in front


def test_by_energy_slices_are_rows_with_their_reason(wide):
    choice = dippm.choose(wide, devices=["A100", "T4"], by="energy", batch=32)
    assert {c.name for c in choice.ranked} == {"A100-40GB", "T4"}
    assert choice.best is choice.most_frugal
    rows = {row["name"]: row for row in choice.rows()}
    row = rows["A100-40GB 1g.10gb"]
    assert row["feasible"]
    assert row["rank"] is None
    assert "power is measured for the board" in row["reason"]
    assert row["energy_j"] is None
    assert row["latency_ms"] > 0


def test_by_throughput_each_place_takes_its_best_batch(wide):
    choice = dippm.choose(wide, devices=["A100"], by="throughput", batch="1:4096")
    small, large = named(choice)["A100-40GB 1g.5gb"], named(choice)["A100-40GB"]
    assert min(small.batch, large.batch) > 1
    for place, mig in ((small, "1g.5gb"), (large, None)):
        fitting = [2**n for n in range(13) if 2**n <= place.largest_batch]
        rates = {
            batch: batch / dippm.predict(wide, batch=batch, device="A100", mig=mig).latency_ms
            for batch in fitting
        }
        assert place.batch == max(rates, key=rates.get)
    slo_ms = 0.9 * large.prediction.intervals["latency_ms"].high
    limited = dippm.choose(
        wide,
        devices=["A100"],
        slices=False,
        by="throughput",
        batch="1:4096",
        slo_ms=slo_ms,
    )
    assert limited.best.batch < large.batch
    assert limited.best.prediction.intervals["latency_ms"].high <= slo_ms


def test_the_largest_batch_is_the_largest(by_latency, wide):
    sweep = dippm.sweep(wide, batch=[1], device="A100")
    by_place = {p.name: p.largest_batch for p in sweep.places}
    found = named(by_latency)
    assert found["A100-40GB"].largest_batch == by_place["A100-40GB"]
    for name in ("1g.5gb", "3g.20gb"):
        c = found[f"A100-40GB {name}"]
        where = {"device": "A100", "mig": name}
        inside, outside = (
            dippm.predict(wide, batch=batch, **where).memory_bound_mb
            for batch in (c.largest_batch, c.largest_batch + 1)
        )
        assert inside <= c.capacity_mb < outside


@pytest.mark.parametrize("phase", ["inference", "train"])
def test_the_memory_alone_is_that_of_the_whole_answer(wide, phase):
    loaded = dippm.load()

    gpu = devices.find("A100")
    for mig in (None, gpu.mig_profiles[0]):
        point = dippm.Conditions(device=gpu, batch=8, mig=mig, phase=phase)
        predictor = loaded.checkpoint.predictor
        try:
            whole = predictor.predict(wide, point).memory_bound_mb
        except dippm.DippmError:
            assert memory_bound_mb(predictor, wide, point) is None
        else:
            assert memory_bound_mb(predictor, wide, point) == whole


def test_limits_hold_at_the_upper_end_unless_the_value_is_asked_for(by_latency, wide):
    ranked = by_latency.ranked
    middle = next(c for c in ranked[2:] if c.prediction)
    interval = middle.prediction.intervals["latency_ms"]
    slo_ms = (middle.prediction.latency_ms + interval.high) / 2
    asked = {"devices": GPUS, "batch": 32, "slo_ms": slo_ms}
    upper = dippm.choose(wide, **asked)
    value = dippm.choose(wide, slo_at="value", **asked)
    for choice, latency in (
        (upper, lambda c: c.prediction.intervals["latency_ms"].high),
        (value, lambda c: c.prediction.latency_ms),
    ):
        for c in choice.contenders:
            assert c.feasible == (latency(c) <= slo_ms)
    assert not named(upper)[middle.name].feasible
    assert named(value)[middle.name].feasible
    assert "takes up to" in upper.reason(named(upper)[middle.name])


def test_memory_is_a_limit_of_its_own(wide):
    choice = dippm.choose(wide, devices=["A100"], batch=256)
    for c in choice.contenders:
        assert c.feasible == (c.prediction.memory_bound_mb <= c.capacity_mb)
    small = named(choice)["A100-40GB 1g.5gb"]
    assert not small.feasible
    assert "has 4,864" in choice.reason(small)
    bound_mb = named(choice)["A100-40GB"].prediction.memory_bound_mb
    largest = named(choice)["A100-40GB"].largest_batch
    with pytest.raises(NothingFeasibleError, match="max_memory_mb") as caught:
        dippm.choose(wide, devices=["A100"], batch=256, max_memory_mb=bound_mb / 2)
    kept = caught.value.choice
    assert len(kept.contenders) == 7
    assert named(kept)["A100-40GB"].largest_batch < largest
    assert kept.best is None
    assert kept.fastest is not None


def test_cost_is_price_times_time(wide):
    prices = {"A100": 2.0, "T4": 0.3}
    choice = dippm.choose(
        wide, devices=GPUS, by="cost", batch=32, prices=prices, dataset_size=64_000
    )
    found = named(choice)
    for name, hour in (("A100-40GB", 2.0), ("T4", 0.3), ("A100-40GB 3g.20gb", 1.0)):
        c = found[name]
        latency_ms = c.prediction.latency_ms
        assert c.estimate("cost_per_step").value == pytest.approx(hour * latency_ms / 3.6e6)
        per_sample = hour * latency_ms / 3.6e6 / 32
        assert c.estimate("cost_per_million").value == pytest.approx(1e6 * per_sample)
        assert c.estimate("cost_per_epoch").value == pytest.approx(64_000 * per_sample)
    costs = [c.estimate("cost_per_million").value for c in choice.ranked]
    assert costs == sorted(costs)
    assert len(costs) == 7
    assert not named(choice)["A100-40GB 1g.5gb"].feasible
    assert "no price" in choice.reason(found["RTX-4090"])
    assert choice.axes == ("latency_ms", "cost_per_million")
    assert choice.best in choice.front


def test_a_place_that_cannot_be_predicted_is_a_row(wide):
    choice = dippm.choose(wide, devices=["A100", "cpu", "T4", "B200"], precision="bf16")
    reasons = {row["name"]: row["reason"] for row in choice.rows()}
    assert "no hardware for bf16" in reasons["T4"]
    assert reasons["CPU-AMD-EPYC-2c"]
    assert "not known" in reasons["B200 3g.90gb"]
    assert reasons["A100-40GB"] is None
    assert [row["error"] is None for row in choice.rows()].count(False) == 5
    json.dumps(choice.to_dict(), allow_nan=False)


@pytest.mark.nightly(part="answers")
def test_all_is_every_gpu_of_the_catalogue(onnx_file, checkpoint_folder):
    choice = dippm.choose(onnx_file, devices="all", checkpoint=checkpoint_folder)
    whole = {c.device.name for c in choice.contenders if c.name == c.device.name}
    assert whole == {d.name for d in devices.all_devices()}
    slices = sum(len(d.mig_profiles) + len(d.unlisted_mig_profiles) for d in devices.all_devices())
    assert len(choice.contenders) == len(whole) + slices
    alone = dippm.choose(onnx_file, devices="all", slices=False, checkpoint=checkpoint_folder)
    assert len(alone.contenders) == len(whole)


def test_a_fixed_batch_is_the_largest_one(onnx_file, checkpoint_folder):
    asked = {"devices": "A100", "checkpoint": checkpoint_folder}
    graph = replace(dippm.read_graph(onnx_file).at_batch(4), batch_is_symbolic=False)
    choice = dippm.choose(graph, batch=4, **asked)
    assert {c.largest_batch for c in choice.contenders} == {4}
    with pytest.raises(NothingFeasibleError, match="batch"):
        dippm.choose(graph, batch=5, **asked)


def test_of_equal_places_the_smaller_part_of_a_gpu_is_first(onnx_file, checkpoint_folder):
    choice = dippm.choose(onnx_file, devices="A100", checkpoint=checkpoint_folder)
    assert len({c.prediction.latency_ms for c in choice.contenders}) == 1
    names = [c.name.removeprefix("A100-40GB").strip() for c in choice.contenders]
    assert names == ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "", "7g.40gb"]


@pytest.mark.parametrize("phase", ["train", "training"])
def test_every_condition_reaches_the_predictor(onnx_file, checkpoint_folder, phase):
    choice = dippm.choose(
        onnx_file, devices="A100", phase=phase, optimizer="adamw", checkpointing=True,
        channels_last=True, mode="compiled", attention="unfused", checkpoint=checkpoint_folder,
    )  # fmt: skip
    for p in choice.predictions:
        c = p.conditions
        assert (c.phase, c.optimizer, c.checkpointing) == ("train", "adamw", True)
        assert (c.channels_last, c.mode, c.attention) == (True, "compiled", "unfused")
    assert "training step, adamw, checkpointing" in choice.title


def test_a_training_step_is_predicted_as_such_or_refused(wide):
    step = {"phase": "train", "optimizer": "adamw"}
    try:
        choice = dippm.choose(wide, devices="A100", slices=False, batch=8, **step)
    except dippm.DippmError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "train" in refusal
        return
    (c,) = choice.contenders
    loaded = dippm.load()
    batches = (8, c.largest_batch, c.largest_batch + 1)
    points = [dippm.Conditions(device=c.device, batch=batch, **step) for batch in batches]
    asked, inside, outside = loaded.predict_points(wide, points)
    assert c.prediction.latency_ms == asked.latency_ms
    assert c.prediction.memory_bound_mb == asked.memory_bound_mb
    assert inside.memory_bound_mb <= c.capacity_mb < outside.memory_bound_mb


@pytest.mark.parametrize(
    ("asked", "error", "words", "hint"),
    [
        ({"slo_ms": 0}, ConstraintError, "slo_ms is 0", "above 0"),
        ({"slo_ms": -3}, ConstraintError, "slo_ms is -3", "above 0"),
        ({"slo_ms": float("nan")}, ConstraintError, "nan", "above 0"),
        ({"max_memory_mb": float("inf")}, ConstraintError, "inf", "MiB"),
        ({"slo_ms": 5, "slo_at": "uper"}, ConstraintError, "slo_at", "upper"),
        ({"by": "speed"}, ConditionsError, "unknown ranking 'speed'", "latency"),
        ({"by": "cost"}, ConstraintError, "needs prices", "prices="),
        ({"dataset_size": 10}, ConstraintError, "needs prices", "prices="),
        ({"dataset_size": 0, "prices": {"T4": 1}}, ConstraintError, "0 samples", "1281167"),
        ({"prices": {"T5": 1}}, PriceError, "unknown device 'T5'", "T4"),
        ({"devices": "T5"}, UnknownNameError, "unknown device 'T5'", "T4"),
        ({"devices": []}, ConstraintError, "no device", "all"),
        ({"batch": 0}, ConditionsError, "batch is 0", "from 1"),
        ({"mode": "lazy"}, ConditionsError, "unknown mode", "eager"),
        ({"precision": "bf16", "devices": "T4"}, ConditionsError, "no hardware", "fp16"),
    ],
)
def test_questions_that_have_no_answer(onnx_file, checkpoint_folder, asked, error, words, hint):
    with pytest.raises(error, match=words) as caught:
        dippm.choose(onnx_file, checkpoint=checkpoint_folder, **{"devices": "A100", **asked})
    assert hint in caught.value.hint


def test_nothing_feasible_says_what_comes_nearest_and_what_would_do(wide):
    asked = {"devices": GPUS, "batch": 32}
    with pytest.raises(NothingFeasibleError) as caught:
        dippm.choose(wide, slo_ms=0.01, **asked)
    error = caught.value
    assert "the nearest is H100-SXM-80GB" in error.message
    would_do = float(error.hint.partition("slo_ms=")[2].split()[0])
    met = dippm.choose(wide, slo_ms=would_do, **asked)
    assert met.best.name == "H100-SXM-80GB"
    assert len(error.choice.contenders) == len(met.contenders)
    assert all(error.choice.reason(c) for c in error.choice.contenders)


def test_a_model_that_no_memory_holds(wide):
    with pytest.raises(NothingFeasibleError, match="no memory holds the model") as caught:
        dippm.choose(wide, devices=["T4", "A100"], batch=100_000)
    batch = int(caught.value.hint.partition("batch=")[2].split(".")[0])
    fits = dippm.choose(wide, devices=["T4", "A100"], batch=batch)
    assert fits.best is not None


def test_only_prices_are_missing(wide):
    with pytest.raises(NothingFeasibleError, match="by cost: no price") as caught:
        dippm.choose(wide, devices=["T4"], by="cost", prices={"A100": 1.0})
    assert "T4 would meet" in caught.value.hint


def test_the_choice_shows_itself(by_latency):
    html = by_latency._repr_html_()
    assert "H100-SXM-80GB" in html
    assert "and 4 more" in html
    assert "H100-SXM-80GB" in str(by_latency)
    frame = by_latency.to_pandas()
    assert list(frame["name"]) == [c.name for c in by_latency.contenders]
    document = by_latency.to_dict()
    assert document["best"] == "H100-SXM-80GB"
    assert document["conditions"]["precision"] == "fp32"
    assert "device" not in document["conditions"]
    json.dumps(document, allow_nan=False)
