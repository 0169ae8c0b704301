from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import typer

import dippm
from dataset.join.latency_splits import HELD_OUT_GPUS, SPLITS
from dataset.measured.nodes import GraphBuilder
from dippm.devices import find, host_of
from dippm.estimate.conditions import Conditions
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView
from dippm.estimate.models.gpu_effects import EFFECT_UNITS, GpuEffects
from dippm.estimate.models.host import OVERLAP_POWER
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import GROUPS, LEAST_NOVELTY
from dippm.estimate.models.kernel_law import Place, blend_factor
from dippm.estimate.models.kernel_trees import KernelTrees
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.models.monotonic_bounds import FORMATS
from dippm.estimate.models.novelty import MeasuredModels
from dippm.estimate.models.power import SHARES, PowerModel
from dippm.model.graph.float_type import in_float32
from dippm.model.graph.model_graph import ModelGraph
from training.evaluation.held_out import (
    BASELINE,
    LEVELS,
    HeldOut,
    half_width,
    read_held_out,
    write_held_out,
)
from training.hybrid.fit.checkpoint_law import _often, checkpoint_laws
from training.hybrid.fit.effects import sampled_rows
from training.hybrid.fit.folds import LEARNERS, Runner, Settings, Task
from training.hybrid.fit.mixture import ALONE, GUARDED, NEARBY, SAGE, TREES, Mixture, Single
from training.hybrid.fit.network import NetworkSettings, bounded
from training.hybrid.fit.network_fit import FitSettings, _draws, predict_log_ms, restore
from training.hybrid.fit.novelty import measured_models, measured_tensors, row_shares
from training.hybrid.fit.residuals import added, residuals_of
from training.hybrid.fit.tree_arrays import tree_arrays
from training.hybrid.fit.trees import KernelTrees as Fitted
from training.hybrid.fit.trees import (
    TreeSettings,
    _rows,
    _weights,
    merged,
    predict_guarded_log_ms,
    predict_trees_log_ms,
)
from training.hybrid.judge.baselines import NAMES, ROOFLINE, baselines
from training.hybrid.judge.calibrated import calibrated
from training.hybrid.judge.held_out_rows import held_out_rows
from training.hybrid.judge.held_out_times import held_out_times
from training.hybrid.judge.published_folds import (
    MOST_ASKED,
    _sample_rows,
    fold_checkpoint,
    published_held_out,
)
from training.hybrid.publish import Evaluation, publish
from training.hybrid.rows.examples import Row, build_examples, join_examples
from training.hybrid.train import WEIGHTS, _fitted_folds, choose_weight
from training.provenance import check_is_new, describe_making

SETTINGS = Settings(
    FitSettings(
        NetworkSettings(width=8), steps=60, model_rows=16, operator_rows=8, head_architectures=5
    ),
    TreeSettings(rounds=8, depth=3, smallest_leaf=0.0),
)
WIDTHS, BATCHES = (32, 64, 96, 128, 160), (8, 64)


def residual_graph(blocks: int = 3, width: int = 64, *, norm: bool = True) -> ModelGraph:
    """A stack of dense layers with residuals, at batch 4; not what anything real looks like."""
    builder = GraphBuilder(batch=4)
    shape = (4, width)
    stream = builder.input(shape, "float32")
    for _ in range(blocks):
        inner = stream
        if norm:
            inner = builder.add(
                "layer_norm", [inner], shape, attributes={"normalized_size": width},
                other_parameters=2 * width,
            )  # fmt: skip
        inner = builder.add(
            "dense", [inner], shape, attributes={"in_features": width, "out_features": width},
            weights=width * width,
        )  # fmt: skip
        inner = builder.add("gelu", [inner], shape)
        stream = builder.add("add", [stream, inner], shape)
    return builder.graph()


BLOCKS = {"operator": 1, "chain": 1, "short": 2, "long": 6, "plain": 4, "deep": 9}
FAMILIES = {"operator": "operator dense", "chain": "chain gelu"}


def graph_of(key: str) -> ModelGraph:
    family, width = key.split()
    return residual_graph(BLOCKS[family], int(width), norm=family != "plain")


def made_up_rows() -> list[Row]:
    """Made-up latencies: nothing here was measured."""
    random = np.random.default_rng(0)
    rows = []
    for family, work in BLOCKS.items():
        source = "kernelbench" if family in FAMILIES else "timm_infer"
        for width in WIDTHS:
            for gpu in ("RTX-3090", "A100-40GB", "RTX-5090"):
                rows.append(
                    Row(
                        row_id=f"{family} {width} {gpu}",
                        source=source,
                        table=f"{source} {gpu} torch 2.4 eager",
                        device=find(gpu),
                        timer="wall",
                        precision="amp",
                        mode="eager",
                        channels_last=False,
                        batch=4,
                        graph=f"{family} {width}",
                        architecture=f"{family} {width}",
                        family=FAMILIES.get(family, family),
                        latency_ms=0.05 * work * float(np.exp(0.02 * random.normal())),
                        scale="l" if width == max(WIDTHS) else "s",
                    )
                )
    return sorted(rows, key=lambda row: row.graph)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    examples = build_examples(made_up_rows(), graph_of)
    return Runner(examples, tmp_path_factory.mktemp("fits"), SETTINGS)


@pytest.fixture(scope="module")
def tasks(runner: Runner) -> dict[str, list[Task]]:
    splits = runner.splits()
    found = {name: runner.tasks(split, (0,)) for name, split in splits.items()}
    found["S0"] = runner.tasks(splits["S0"], (0,), LEARNERS)
    found["S1"] = found["S1"][:2]
    runner.run([task for of_split in found.values() for task in of_split], processes=1)
    return found


@pytest.fixture(scope="module")
def shipped(runner: Runner) -> list[Task]:
    every, none = np.arange(len(runner.examples.rows)), np.array([], dtype=np.int64)
    tasks = [Task("shipped", "all", every, none, seed) for seed in (0, 1)]
    runner.run(tasks, processes=1)
    return tasks


def test_every_split_has_a_name_for_people(tasks):
    assert set(tasks) == set(SPLITS)


@pytest.mark.parametrize("split", ["S1", "S2-10"])
def test_an_architecture_under_test_never_trains(runner, tasks, split):
    rows = runner.examples.rows
    for task in tasks[split]:
        tested = {rows[i].architecture for i in task.test}
        assert tested
        assert not tested & {rows[i].architecture for i in task.train}


def test_operators_and_chains_train_where_families_are_held_out(runner, tasks):
    rows = runner.examples.rows
    for task in tasks["S2-10"]:
        assert all(rows[i].is_model for i in task.test)
        trained = Counter(rows[i].kind for i in task.train)
        assert (trained["operator"], trained["module"]) == (15, 15)


def test_chains_train_beside_operators(runner):
    examples, every = runner.examples, np.arange(len(runner.examples.rows))
    (models, *_), (rest, *_) = _draws(examples, every, SETTINGS.fit)
    assert all(examples.rows[i].is_model for i in models)
    assert {examples.rows[i].kind for i in rest} == {"operator", "module"}
    weights = _weights(examples, every, SETTINGS.trees)
    assert weights[rest].sum() == pytest.approx(weights[models].sum())


def test_variants_of_a_gpu_are_held_out_together(runner, tasks):
    rows = runner.examples.rows
    for task in tasks["S3a"]:
        tested = {rows[i].device.name for i in task.test}
        assert not tested & {rows[i].device.name for i in task.train}
        assert task.fold in HELD_OUT_GPUS


def test_the_network_learns(runner, tasks):
    held = runner.held_out(tasks["S0"], Single(SAGE), SAGE).rows
    error = (held["predicted latency_ms"] / held["latency_ms"] - 1).abs()
    usual = (held["latency_ms"].median() / held["latency_ms"] - 1).abs()
    assert error.median() < 0.5 * usual.median()


def test_what_was_pushed_beyond_a_bound_finds_its_way_back():
    x = torch.tensor([-3.0, -3.0, 0.5, 3.0, 3.0], requires_grad=True)
    y = bounded(x, -1.0, 1.0)
    assert y.tolist() == [-1.0, -1.0, 0.5, 1.0, 1.0]
    (y * torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])).sum().backward()
    # Descent goes against the gradient: the second and the fourth are led back.
    assert x.grad.tolist() == [0.0, -1.0, 1.0, 1.0, 0.0]


def test_an_interrupted_run_goes_on(runner, tasks):
    before = {path: path.stat().st_mtime_ns for path in runner.folder.iterdir()}
    runner.run(tasks["S0"], processes=1)
    assert before == {path: path.stat().st_mtime_ns for path in runner.folder.iterdir()}


def test_the_mean_of_learners_is_one_in_the_log(runner, tasks):
    log = runner.log_ms(tasks["S0"][0])
    held = runner.held_out(tasks["S0"], Mixture(0.25), "both").rows
    far = blend_factor(held["novelty"].to_numpy())
    network = (1 - far) * log[SAGE] + far * log[GUARDED] + log[NEARBY]
    expected = (1 - 0.75 * far) * network + 0.75 * far * log[TREES]
    assert np.log(held["predicted latency_ms"]).to_numpy() == pytest.approx(expected)
    disagreement = np.sqrt(0.25 * 0.75) * np.abs(network - log[TREES])
    assert held["spread"].to_numpy() == pytest.approx(disagreement)


def test_the_further_from_what_was_measured_the_more_the_trees_say():
    novelty = np.array([0.0, 0.03, 0.06, 0.2, 1.0])
    found = Mixture(0.4).shares(novelty)
    assert found.sum(axis=0) == pytest.approx(np.ones(5))
    assert found[1, [0, 1, 3, 4]] == pytest.approx([0, 0, 0.6, 0.6])
    assert 0 < found[1, 2] < 0.6


def test_folds_without_models_to_train_or_rows_to_test_are_named(runner, capsys):
    models, none = np.flatnonzero(runner.examples.is_model), np.array([], dtype=np.int64)
    others = np.flatnonzero(~runner.examples.is_model)
    whole, operators, empty = (
        Task("S3a", name, train, test, seed)
        for name, train, test, seed in (
            ("A100", models, others, 0),
            ("H100", others, models, 0),
            ("T4", models, none, 0),
        )
    )
    again = replace(operators, seed=1)
    assert _fitted_folds(runner, [whole, operators, again, empty]) == [whole]
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "No fit of S3a H100: no whole model trains in it.",
        "No fit of S3a T4: no row is tested in it.",
    ]


def test_the_weight_is_the_one_of_the_least_error(runner, tasks):
    def error(weight: float) -> float:
        rows = runner.held_out(tasks["S2-10"], Mixture(weight), "both").rows
        ape = (rows["predicted latency_ms"] / rows["latency_ms"] - 1).abs()
        return float(ape.groupby(rows["family_id"]).mean().mean())

    chosen = choose_weight(runner, tasks["S2-10"])
    assert error(chosen) == min(map(error, WEIGHTS))


def test_parts_of_examples_join(runner):
    rows = made_up_rows()
    whole = runner.examples
    joined = join_examples([build_examples(rows[:7], graph_of), build_examples(rows[7:], graph_of)])
    for name in ("features", "start", "inward", "inward_start", "outward", "count", "launches"):
        assert np.array_equal(getattr(whole, name), getattr(joined, name))


def test_trees_as_arrays_answer_as_xgboost_does(runner, tasks):
    task = tasks["S0"][0]
    fitted = Fitted.load(runner.weights(task, TREES), SETTINGS.trees)
    arrays = {f"trees.{name}": a for name, a in tree_arrays(fitted.booster).items()}
    arrays["trees.classes"] = fitted.classes.astype(np.float32)
    trees = KernelTrees.from_tensors(arrays, SETTINGS.trees.depth, SETTINGS.trees.reach)
    features = runner.examples.features
    assert trees.log_slowdown(features) == pytest.approx(fitted.log_slowdown(features), abs=1e-5)


def test_trees_see_one_kernel_for_all_of_a_row_that_are_alike(runner, tasks) -> None:
    """A network tells kernels apart by what is around them; the sums stay what they were."""
    task = tasks["S0"][0]
    network = restore(runner.weights(task, SAGE), SETTINGS.fit, tables=runner.tables)
    rows = _rows(runner.examples, task.train, network, runner.tables)
    found = merged(rows)
    assert len(found.row) < len(rows.row)
    assert (np.diff(found.row) >= 0).all()
    assert set(map(bytes, found.features)) == set(map(bytes, rows.features))
    before, after = (part.log_ms(part.base_ms * np.exp(part.terms))[0] for part in (rows, found))
    assert after == pytest.approx(before, abs=1e-12)


def test_baselines_stand_on_the_same_rows(runner, tasks):
    lines = baselines(runner.examples, {"S1": tasks["S1"]})
    assert {line["baseline"] for line in lines} >= {"nearest neighbour", "boosted trees on totals"}
    assert len({line["n"] for line in lines}) == 1


MIXTURE = Mixture(0.5)


POWER = PowerModel(0.3, (1.0,) * len(SHARES), 6.0, 0.1)
MEMORY = MemoryModel(500.0, 4.0, 200.0, 0.05)


@pytest.fixture(scope="module")
def by_fits(runner, tasks) -> dict[str, HeldOut]:
    return {name: runner.held_out(tasks[name], MIXTURE, "both") for name in ("S1", "S2-10")}


def test_a_fit_of_another_split_is_not_read_as_one_of_this(runner, tasks):
    task = tasks["S1"][0]
    some = replace(task, test=task.test[1:])
    kept = runner.log_ms(task)[SAGE]
    assert runner.log_ms(some)[SAGE].tolist() == kept[1:].tolist()
    others = replace(task, test=np.union1d(task.test, task.train[:1]))
    with pytest.raises(ValueError, match="another split"):
        runner.log_ms(others)


@pytest.fixture(scope="module")
def held_out_sets(runner, tasks) -> dict[str, HeldOut]:
    """Answers of the folds' checkpoints, each written, loaded and asked."""
    asked = {name: tasks[name] for name in ("S1", "S2-10", "S3a")}
    return published_held_out(runner, asked, graph_of, weight=0.5, memory=MEMORY, power=POWER)


def test_a_published_fold_answers_for_each_row_that_it_held_out(runner, tasks, held_out_sets):
    rows = held_out_sets["S2-10"].rows
    tested = np.concatenate([task.test for task in tasks["S2-10"]])
    assert sorted(rows["position"]) == sorted(tested)
    task = tasks["S2-10"][0]
    loaded = dippm.load(fold_checkpoint(runner, [task], 0.5, MEMORY, POWER))
    mine = rows[rows["fold"] == task.fold].iloc[0]
    row = runner.examples.rows[mine["position"]]
    graph = in_float32(graph_of(row.graph))
    asked = Conditions(device=row.device, batch=4, precision="amp", timer="wall")
    [found] = loaded.checkpoint_for(row.device).predictor.predict_many(graph, [asked])
    assert mine["predicted latency_ms"] == found.values["latency_ms"].value
    assert mine["features"] == found.interval_terms.features


def test_of_many_rows_alike_some_are_asked(runner):
    row = next(row for row in runner.examples.rows if row.is_model)
    many = [replace(row, row_id=f"row {i}") for i in range(MOST_ASKED + 50)]
    other = replace(row, row_id="other", channels_last=not row.channels_last)
    asked = _sample_rows([*many, other])
    assert len(asked) == MOST_ASKED + 1
    assert other in asked
    assert {row.row_id for row in _sample_rows([other, *reversed(many)])} == {
        row.row_id for row in asked
    }


@pytest.fixture(scope="module")
def rows(runner, tasks, held_out_sets) -> pd.DataFrame:
    return held_out_rows(runner, held_out_sets, tasks, MIXTURE)


def test_every_prediction_of_every_split_is_a_row(rows, held_out_sets, tmp_path):
    for split, held in held_out_sets.items():
        mine = rows[rows["split"] == split].set_index("row_id")
        known = held.rows.set_index("row_id")["predicted latency_ms"]
        assert mine["predicted_ms"][known.index].to_numpy() == pytest.approx(known.to_numpy())
    write_held_out(tmp_path, rows)
    read = read_held_out(tmp_path)
    assert read["row_id"].tolist() == rows["row_id"].tolist()
    assert list(read.columns) == list(rows.columns)


def test_rows_say_what_they_are_and_what_bounds_them(rows):
    assert set(rows["bound"]) <= {"compute", "memory", "host"}
    assert set(rows["kind"]) == {"model", "module", "operator"}
    assert set(rows["question"].dropna()) == {
        "an architecture never seen, of a known kind",
        "a kind of model never seen",
    }
    deep = rows[rows["model"] == "deep 160"].iloc[0]
    shares = [int(share) for share in re.findall(r"(\d+) %", deep["costliest"])]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 101
    assert "gemm 4×160×160 ×" in deep["costliest"]
    assert deep["gflop"] > 9 * 2 * 4 * 160 * 160 / 1e9


def test_the_kernels_of_a_row_take_what_was_predicted(runner, tasks, by_fits):
    task = tasks["S2-10"][0]
    held = by_fits["S2-10"].rows.set_index("position").loc[task.test]
    times = held_out_times(runner, task, task.test, MIXTURE)
    predicted_ms = held["predicted latency_ms"].to_numpy()
    host = (held["host_share"].to_numpy() * predicted_ms / times.device_ms) ** OVERLAP_POWER
    wall_ms = times.device_ms * (1 + host) ** (1 / OVERLAP_POWER)
    assert wall_ms == pytest.approx(predicted_ms, rel=0.15)


def test_baselines_answer_for_models_and_the_roofline_for_all(rows):
    models = rows[rows["kind"] == "model"]
    names = [name for name in rows.columns if name.startswith(BASELINE)]
    assert len(names) == len(NAMES)
    assert models[names].notna().all(axis=None)
    assert rows[f"{BASELINE}{ROOFLINE}"].notna().all()


def test_intervals_widen_with_what_they_promise(rows):
    widths = rows[[half_width(level) for level in LEVELS]].to_numpy()
    assert (np.diff(widths, axis=1) >= 0).all()
    assert (widths > 0).all()


def test_intervals_never_saw_the_rows_they_are_tried_on(runner, tasks, held_out_sets, rows):
    """A fold whose predictions are all ten times too high moves the intervals of all others."""
    held = held_out_sets["S2-10"]
    wrong = held.rows.copy()
    mine = wrong["fold"] == wrong["fold"].iloc[0]
    wrong.loc[mine, "predicted latency_ms"] *= 10
    changed = held_out_sets | {"S2-10": HeldOut(held.predictor, held.split, wrong, 0.0)}
    after = held_out_rows(runner, changed, {n: tasks[n] for n in changed}, MIXTURE)
    column = half_width(0.9)
    before = rows[rows["split"] == "S2-10"].set_index("row_id")[["fold", column]]
    ratio = after[after["split"] == "S2-10"].set_index("row_id")[column] / before[column]
    tried = before["fold"] == wrong["fold"].iloc[0]
    assert ratio[tried].to_numpy() == pytest.approx(1.0)
    assert (ratio[~tried] - 1).abs().median() > 0.01


@pytest.fixture(scope="module")
def checkpoint(runner, tasks, shipped, held_out_sets, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("checkpoints") / "hybrid-toy" / "0.1.0"
    alone = [runner.held_out(tasks["S3a"], Single(SAGE), "shipped mean")]
    report = {"n": 1, "mape": 0.1, "median_ape": 0.1}
    publish(
        out,
        runner=runner,
        made=describe_making(
            "training.hybrid.train",
            out,
            {
                "data": Path("/srv/tables"),
                "collected": [Path("dataset/data/h100")],
                "splits": ["S1", "S3a"],
            },
        ),
        law=checkpoint_laws(runner, [shipped], 0.5, graph_of)[0],
        evaluation=Evaluation(
            held_out_sets=held_out_sets,
            with_own_terms=alone,
            learners={"shipped mean": alone},
            baselines=baselines(runner.examples, {"S2-10": tasks["S2-10"]}),
            calibrated=calibrated(runner, tasks["S3a"], MIXTURE),
            hashes={"S2-10": "0" * 64},
        ),
        power=(
            POWER,
            [{"target": "power_w", "gpu": "A100-40GB", "n": 1, "median_ape": 9.0, "mape": 10.0}],
        ),
        memory=(MEMORY, {"toy": report}),
    )
    return out


def test_a_checkpoint_says_how_it_was_made_and_is_never_written_over(checkpoint):
    card = (checkpoint / "README.md").read_text(encoding="utf-8")
    command = (
        "python -m training.hybrid.train --data <data> --collected dataset/data/h100 "
        "--splits S1 --splits S3a --out checkpoints/hybrid-toy/0.1.0"
    )
    assert command in card
    made = dippm.pretrained.load(checkpoint).config["training"]
    assert made["packages"]["torch"] == version("torch")
    with pytest.raises(typer.BadParameter, match="never changes"):
        check_is_new(checkpoint)
    assert check_is_new(checkpoint.with_name("0.2.0")).name == "0.2.0"


@pytest.mark.parametrize("far", [False, True])
def test_the_checkpoint_answers_as_the_fits_do(runner, shipped, checkpoint, far):
    """Predicted by numpy on merged kernels; known from torch and xgboost, member by member."""
    row = next(row for row in runner.examples.rows if row.graph == "deep 96")
    given = runner.examples, np.array([runner.examples.rows.index(row)])
    fitted = Fitted.load(runner.weights(shipped[0], TREES), SETTINGS.trees)
    answers = []
    for task in shipped:
        settings = SETTINGS.of_seed(task.seed).fit
        network = restore(runner.weights(task, SAGE), settings, tables=runner.tables)
        answers.append(
            predict_guarded_log_ms(fitted, *given, network, tables={})[0]
            if far
            else predict_log_ms(network, *given, tables={})[0]
        )
    first = restore(runner.weights(shipped[0], SAGE), SETTINGS.fit, tables=runner.tables)
    by_trees = predict_trees_log_ms(fitted, *given, first, tables={})[0]
    loaded = dippm.pretrained.load(checkpoint).predictor
    assert isinstance(loaded, Hybrid)
    unlike = MeasuredModels(np.eye(len(KERNEL_CLASSES), dtype=np.float32)[-1:])
    measured = unlike if far else loaded.law.measured
    law = replace(
        loaded.law,
        effects=GpuEffects({}, {}),
        table_heads={},
        residuals=replace(loaded.law.residuals, groups={}),
        measured=measured,
    )
    predictor = Hybrid(law, loaded.config)
    host = host_of(1e3 * float(first.usual.exp()))
    conditions = Conditions(device=row.device, batch=4, precision="amp", host=host)
    found = predictor.predict(graph_of(row.graph), conditions).values["latency_ms"].value
    expected = np.mean([np.mean(answers), by_trees]) if far else np.mean(answers)
    assert np.log(found) == pytest.approx(expected, abs=0.02)


def test_the_checkpoint_adds_what_the_fits_left_over_of_rows_nearby(runner, shipped, checkpoint):
    loaded = dippm.pretrained.load(checkpoint).predictor
    examples, every = runner.examples, np.arange(len(runner.examples.rows))
    members = [
        added(examples, runner.points(task), runner.residuals(task), every) for task in shipped
    ]
    expected = np.mean(members, axis=0)
    law = loaded.law
    without = replace(law, residuals=replace(law.residuals, groups={}))
    chosen = [i for i, row in enumerate(examples.rows) if row.is_model][::7]
    assert np.abs(expected[chosen]).max() > 0.005
    for i in chosen:
        row = examples.rows[i]
        asked = Conditions(device=row.device, batch=row.batch, precision="amp")
        kernels = loaded._kernels(graph_of(row.graph), asked)[1]
        place = [Place(DeviceView.of(row.device), asked)]
        times = [one.times(kernels, row.batch, place)[0].device_ms for one in (law, without)]
        assert np.log(times[0] / times[1]) == pytest.approx(expected[i], abs=2e-3)


def test_residuals_of_a_fold_are_of_rows_that_train(runner, tasks):
    for task in tasks["S1"]:
        known = runner.residuals(task)
        rows = [runner.examples.rows[i] for i in known.rows]
        assert set(known.rows) <= set(task.train)
        assert all(row.is_end_to_end for row in rows)
        assert len(rows) > 10
    network = runner.network(tasks["S0"][0])
    found = residuals_of(runner.examples, tasks["S0"][0].train, network, tables=runner.tables)
    predicted = predict_log_ms(network, runner.examples, found.rows, tables=runner.tables)
    measured = np.log([runner.examples.rows[i].latency_ms for i in found.rows])
    assert found.log_error == pytest.approx(measured - predicted, abs=1e-5)


def test_a_gpu_held_out_has_nothing_added(runner, tasks):
    assert not any(runner.log_ms(task)[NEARBY].any() for task in tasks["S3a"])


def test_what_is_left_over_of_models_nearby_makes_predictions_better(runner, tasks):
    """Where all rows of a table are a tenth slower than the network says, so are its others."""
    task = tasks["S1"][0]
    known = runner.residuals(task)
    slower = replace(known, log_error=np.full(len(known.rows), 0.1))
    points = runner.points(task)
    found = added(runner.examples, points, slower, known.rows)
    assert found == pytest.approx(0.1, abs=0.02)
    assert (added(runner.examples, points, slower, task.test) <= 0.11).all()


def test_novelty_of_a_held_out_row_is_that_of_a_prediction_without_its_fold(
    runner, tasks, by_fits, checkpoint
):
    """Measured by the predictor against a checkpoint of the rows that trained in the fold."""
    rows = runner.examples.rows
    predictor = dippm.pretrained.load(checkpoint).predictor
    for task in tasks["S2-10"]:
        trained = build_examples([rows[i] for i in task.train], graph_of)
        is_model = trained.is_model
        gpus = np.array([row.device.name for row in trained.rows])
        found = measured_models(row_shares(trained)[is_model], gpus[is_model])
        arrays = {name: tensor.numpy() for name, tensor in measured_tensors(found).items()}
        measured = MeasuredModels.from_tensors(arrays, list(found.on_gpus))
        predictor.law = replace(predictor.law, measured=measured)
        held = by_fits["S2-10"].rows.set_index("position").loc[task.test]
        for i, known in held[["novelty", "gpu_novelty"]].iterrows():
            asked = Conditions(device=rows[i].device, batch=rows[i].batch, precision="amp")
            found = predictor._times(graph_of(rows[i].graph), asked)
            assert found.novelty == pytest.approx(tuple(known), abs=1e-5)


def test_a_model_whose_architecture_is_held_out_is_no_kin_of_itself(runner, tasks, by_fits):
    shares = row_shares(runner.examples)
    is_model = runner.examples.is_model
    for split in ("S1", "S2-10"):
        for task in tasks[split]:
            tested = {runner.examples.rows[i].architecture for i in task.test}
            others = [
                i
                for i, row in enumerate(runner.examples.rows)
                if row.is_model and row.architecture not in tested and i in set(task.train)
            ]
            least = np.abs(shares[task.test][:, None] - shares[others]).sum(axis=2).min(axis=1) / 2
            known = by_fits[split].rows.set_index("position").loc[task.test, "novelty"]
            assert known.to_numpy() == pytest.approx(least, abs=LEAST_NOVELTY / 2 + 1e-3)
    plain = [i for i in np.flatnonzero(is_model) if runner.examples.rows[i].family == "plain"]
    known = by_fits["S2-10"].rows.set_index("position").loc[plain, "novelty"]
    assert (known > 2 * LEAST_NOVELTY).all()


def test_measurements_on_a_gpu_held_out_help(runner, tasks):
    lines = calibrated(runner, tasks["S3a"], MIXTURE)
    found = {(line["gpu"], line["measured"]): line["mape"] for line in lines}
    for gpu in ("A100-40GB", "RTX-5090"):
        assert found[gpu, "10 models"] < found[gpu, "no measurement"]
        assert found[gpu, "5 operators"] > 0


def test_operators_sum_to_the_latency(checkpoint):
    predictor = dippm.pretrained.load(checkpoint).predictor
    found = predictor.predict(graph_of("deep 96"), Conditions(device=find("A100-40GB"), batch=4))
    total = sum(row.time_ms for row in found.operators)
    assert total == pytest.approx(found.values["latency_ms"].value, rel=1e-6)


def test_what_is_no_whole_model_leaves_its_table_and_often_measured_gpus_alone(
    checkpoint, runner, monkeypatch
):
    law = dippm.pretrained.load(checkpoint).config["law"]
    assert {line["table"].split()[0] for line in law["heads"]} == {"timm_infer"}
    monkeypatch.setattr("training.hybrid.fit.checkpoint_law.OFTEN_OPERATORS", 6)
    parts = [i for i, row in enumerate(runner.examples.rows) if not row.is_model]
    rows = [runner.examples.rows[i] for i in parts]
    assert len(rows) == 30
    assert _often(rows, FORMATS["amp"]) == []
    monkeypatch.setattr("training.hybrid.fit.checkpoint_law.OFTEN_OPERATORS", 5)
    assert len(_often(rows, FORMATS["amp"])) == 3


def test_the_card_says_splits_learners_and_intervals(checkpoint):
    card = (checkpoint / "README.md").read_text()
    for words in ("families held out", "nearest neighbour", "ntervals of 90 %"):
        assert words in card
    config = dippm.pretrained.load(checkpoint).config
    assert set(config["intervals"]["latency_ms"]["quantile"]) == set(GROUPS)
    assert config["splits"] == {"S2-10": "0" * 64}


def test_the_checkpoint_has_effects_of_measured_gpus_and_for_others(checkpoint):
    loaded = dippm.pretrained.load(checkpoint)
    law = loaded.config["law"]
    measured = {(line["device"], line["mode"]) for line in law["effects"]}
    assert {("A100-40GB", "eager"), ("RTX-3090", "eager"), ("RTX-5090", "eager")} <= measured
    taught = {(line["memory"], line["mode"]): line["units"] for line in law["default_effects"]}
    assert {"gemm", "layer_norm"} <= set(taught["stacked", "eager"]["bytes"]) <= set(KERNEL_CLASSES)
    assert set(law["effect_spread"]) >= {"gpu", "laboratory"}
    effects = loaded.predictor.law.effects
    for line in law["effects"]:
        array = effects.of_gpus[line["device"], line["mode"]]
        for column, unit in enumerate(EFFECT_UNITS):
            named = dict(zip(KERNEL_CLASSES, array[:, column].tolist(), strict=True))
            assert {name: value for name, value in named.items() if value} == line["units"][unit]


def test_a_kernel_alone_is_no_graph(runner, tasks):
    log = runner.log_ms(tasks["S0"][0])
    assert not np.array_equal(log[ALONE], log[SAGE])


def own_rows() -> list[Row]:
    """Rows of our own set on one of the GPUs, three halves as slow as all others; made up.

    Of each model also the first of its operators.
    """
    models = [
        replace(
            row,
            row_id=f"own {row.row_id}",
            source="collected/a100",
            table="collected/a100 A100-40GB eager",
            latency_ms=1.5 * row.latency_ms,
        )
        for row in made_up_rows()
        if row.device.name == "A100-40GB" and row.is_model
    ]
    amid = [
        replace(
            row,
            row_id=f"{row.row_id} node 0",
            timer="kernel",
            family="operator layer_norm",
            latency_ms=0.05 * row.latency_ms,
            node=0,
        )
        for row in models
        if not row.graph.startswith("plain")
    ]
    return [*models, *amid]


@pytest.fixture(scope="module")
def with_own(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The same rows beside a set of our own."""
    own = build_examples(sorted(own_rows(), key=lambda row: row.graph), graph_of)
    assert len(own.rows) == len(own_rows())
    every = join_examples([runner.examples, own])
    return Runner(every, tmp_path_factory.mktemp("with_own"), SETTINGS)


def test_our_own_rows_train_or_are_held_out_with_what_they_share(with_own, tasks):
    rows = with_own.examples.rows
    splits = with_own.splits()
    for name, split in splits.items():
        found = with_own.tasks(split, (0,))
        if name == "S1":
            found = found[:2]
        of_others = [task for task in found if len(task.test)]
        for task, alone in zip(of_others, tasks[name], strict=True):
            assert np.array_equal(task.train, alone.train)
            assert np.array_equal(task.test, alone.test)
            assert not set(task.own_train) & set(task.own_test)
            assert list(task.taught) == sorted([*task.train, *task.own_train])
            assert all(rows[i].node is None for i in task.own_test)
        if name in ("S1", "S2-10"):
            key = "architecture" if name == "S1" else "family"
            for task in of_others:
                held = {getattr(rows[i], key) for i in task.test}
                assert {getattr(rows[i], key) in held for i in task.own_test} == {True}
                tested = {rows[i].graph for i in task.own_test}
                assert tested.isdisjoint(rows[i].graph for i in task.own_train)
    by_gpu = {task.fold: task for task in with_own.tasks(splits["S3a"], (0,))}
    assert len(by_gpu["A100"].own_test) == 20
    assert len(by_gpu["RTX-5090"].own_train) == 35
    assert not len(by_gpu["A100"].own_train)
    assert not len(by_gpu["RTX-5090"].own_test)


def test_operators_of_a_model_that_does_not_train_have_its_family(runner, tmp_path):
    """The host may take a model's time: then its kernels train alone."""
    alone = [replace(row, graph="timm:resnet18@224") for row in own_rows() if row.node is not None]
    assert {row.family for row in alone} == {"operator layer_norm"}
    own = build_examples(alone, lambda _: graph_of("short 32"))
    mine = Runner(join_examples([runner.examples, own]), tmp_path, SETTINGS)
    assert {mine._of_whole_model(mine.examples.rows[i]).family for i in mine.own} == {"resnet"}


def test_a_source_of_our_own_is_held_out_as_a_laboratory(with_own, tasks):
    splits = with_own.splits()
    *others, ours = with_own.tasks(splits["L"], (0,))
    assert [task.fold for task in others] == [task.fold for task in tasks["L"]]
    assert all(len(task.own_train) == 35 for task in others)
    assert ours.fold == "collected/a100"
    assert (len(ours.own_train), len(ours.own_test), len(ours.test)) == (0, 20, 0)
    assert len(ours.train) == len(made_up_rows())


def test_our_own_rows_teach_the_law_and_operators_amid_a_model_no_effect(with_own, runner, shipped):
    ours = [replace(task, own_train=with_own.own) for task in shipped]
    with_own.run(ours)
    (plain,) = checkpoint_laws(runner, [shipped], 0.5, graph_of)
    (taught,) = checkpoint_laws(with_own, [ours], 0.5, graph_of)
    assert plain.law["heads"] == taught.law["heads"]
    assert plain.tensors.keys() == taught.tensors.keys()
    assert not torch.equal(plain.tensors["0.enter.weight"], taught.tensors["0.enter.weight"])
    assert plain.law["effects"] != taught.law["effects"]
    rows = with_own.examples.rows
    sampled = sampled_rows([rows[i] for i in ours[0].taught])
    assert {row.source for row in sampled} >= {"collected/a100"}
    assert all(row.node is None for row in sampled)
