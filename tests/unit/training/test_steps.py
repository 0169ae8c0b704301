"""The fit of training steps finds laws that made the data; what is held out stays out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.estimate import pretrained
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_features import N_KINDS
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.models.step_law import N_STEP_FEATURES, step_features
from dippm.estimate.models.training_memory import StepMemoryModel, TrainingFootprint
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.fit.trees import TreeSettings
from training.hybrid.rows.examples import Row
from training.hybrid.rows.sources import steady
from training.steps.examples import StepExamples, build_steps, load_steps
from training.steps.fit import (
    FITTED,
    Multipliers,
    Started,
    StepSettings,
    fit_multipliers,
    fit_step,
    fitted_part,
    kernel_rows,
    predict_step,
)
from training.steps.folds import StepRunner
from training.steps.memory import StepMemorySample, fit_step_memory
from training.steps.rows import StepRow, known, optimizer_of
from training.steps.splits import InferenceFold, StepFold, step_folds

WIDTHS, BATCHES = (512, 1024, 2048), (64, 256, 1024)
SETTINGS = StepSettings(TreeSettings(rounds=20, depth=3, smallest_leaf=0.0, reach=1.0))


def graph_of(key: str) -> ModelGraph:
    kind, width = key.split()
    wide, size = int(width), 840
    b = GraphBuilder(batch=size)
    x: Any = b.input((size, wide))
    for _ in range({"short": 2, "long": 5, "deep": 8}[kind]):
        attributes = {"in_features": wide, "out_features": wide}
        inner = x
        if kind != "short":
            inner = b.add(
                "layer_norm",
                [x],
                (size, wide),
                attributes={"normalized_size": wide},
                other_parameters=2 * wide,
            )
        inner = b.add("dense", [inner], (size, wide), attributes=attributes, weights=wide * wide)
        inner = b.add("gelu", [inner], (size, wide))
        x = b.add("add", [x, inner], (size, wide)) if kind == "deep" else inner
    return b.graph(batch_is_symbolic=True)


def rows() -> list[StepRow]:
    """Made-up rows: nothing here was measured."""
    found = []
    for kind in ("short", "long", "deep"):
        for width in WIDTHS:
            for batch in BATCHES:
                for gpu, timer in (("RTX-3090", "wall"), ("A100-40GB", "wall+copy")):
                    row = Row(
                        row_id=f"{kind} {width} {batch} {gpu}",
                        source="made_up",
                        table=f"made_up {gpu} eager",
                        device=find(gpu),
                        timer=timer,
                        precision="amp",
                        mode="eager",
                        channels_last=False,
                        batch=batch,
                        graph=f"{kind} {width}",
                        architecture="",
                        family=kind,
                        latency_ms=1.0,
                    )
                    found.append(StepRow.of(row, "adamw" if gpu == "RTX-3090" else None, "fused"))
    return sorted(found, key=lambda step: step.graph)


@pytest.fixture(scope="module")
def examples() -> StepExamples:
    kept, arrays = build_steps(rows(), graph_of)
    return StepExamples(kept, **arrays)


@pytest.fixture(scope="module")
def truth() -> Multipliers:
    slow = np.tile(np.array([[0.1], [0.4], [0.6], [-0.1]]), (1, N_KINDS))
    slow[1, ::2] += 0.2
    return Multipliers(slow, np.log([2.0, 0.6, 3.0]), {"made_up A100-40GB eager": 0.08}, {})


def started_of(examples: StepExamples) -> Started:
    size, count = len(examples.part), len(examples.rows)
    copies = np.array([step.timer == "wall+copy" for step in examples.rows])
    return Started(
        slow=np.full(size, 0.3),
        added=np.zeros(size),
        launch_ms=np.full(count, 0.004),
        copy_ms=np.where(copies, examples.input_bytes / 8e6, 0.0),
    )


def measured(examples: StepExamples, truth: Multipliers) -> StepExamples:
    """Return the examples with the latencies that a law gives."""
    everything = np.arange(len(examples.rows))
    seen, kernels = kernel_rows(examples, started_of(examples), everything, truth)
    slow = seen.terms + truth.of_kernels(examples.part[kernels], examples.kind[kernels])
    latency = np.exp(seen.log_ms(seen.base_ms * np.exp(slow))[0])
    steps = [
        replace(step, latency_ms=float(ms)) for step, ms in zip(examples.rows, latency, strict=True)
    ]
    return replace(examples, rows=steps)


def test_a_step_without_an_update_has_no_kernels_of_one(examples: StepExamples) -> None:
    of_update = np.bincount(
        examples.row_of, examples.part == PARTS.index("optimizer"), len(examples.rows)
    )
    assert all((n > 0) == bool(s.optimizer) for n, s in zip(of_update, examples.rows, strict=True))
    assert (examples.launches > 0).all()
    nodes = [graph_of(step.graph).nodes for step in examples.rows]
    with_weights = [sum(n.op in ("dense", "layer_norm") for n in of_one) for of_one in nodes]
    assert examples.launches[:, 2].tolist() == with_weights
    assert all(step.architecture for step in examples.rows)


def test_the_fit_finds_the_law_that_made_the_data(
    examples: StepExamples, truth: Multipliers
) -> None:
    made = measured(examples, truth)
    train = np.flatnonzero([step.family != "deep" for step in made.rows])
    test = np.flatnonzero([step.family == "deep" for step in made.rows])
    started = started_of(made)
    found, booster = fit_step(made, started, train, SETTINGS)
    whole, plain = predict_step(made, started, test, found, booster, 1.0)
    error = np.abs(whole - np.log(made.latency_ms[test]))
    unfitted = kernel_rows(made, started, test)[0]
    before = np.abs(unfitted.log_ms(unfitted.base_ms * np.exp(unfitted.terms))[0] - unfitted.label)
    assert np.median(error) < 0.05 < 0.2 < np.median(before)
    assert np.median(np.abs(plain - np.log(made.latency_ms[test]))) < 0.06


def test_multipliers_are_found_where_the_time_is(
    examples: StepExamples, truth: Multipliers
) -> None:
    made = measured(examples, truth)
    everything = np.arange(len(made.rows))
    found = fit_multipliers(
        made, started_of(made), everything, np.ones(len(everything)), StepSettings()
    )
    part, kind = fitted_part(made.part), made.kind
    time = np.exp(made.log_roofline) * made.count
    by_group = np.bincount(part * N_KINDS + kind, time, len(FITTED) * N_KINDS)
    for group in np.argsort(-by_group)[:3]:
        at = divmod(int(group), N_KINDS)
        assert found.log_slowdown[at] == pytest.approx(truth.log_slowdown[at], abs=0.12)


def test_what_is_run_again_counts_as_forward() -> None:
    assert fitted_part(np.array([PARTS.index("recompute")])) == [FITTED.index("forward")]
    seen = step_features(np.zeros((5, 7), np.float32), np.arange(5), np.full(5, 0.25))
    assert seen[:, 7:10].tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert (seen[:, 10] == 0.25).all()
    assert N_STEP_FEATURES > 11


def test_examples_come_back_from_disk_and_parts_are_made_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def graph(key: str) -> ModelGraph:
        asked.append(key)
        return graph_of(key)

    some = rows()[:4]
    first = load_steps(tmp_path, lambda: (some, graph), 1)

    def never() -> Any:
        raise AssertionError("they are on disk")

    again = load_steps(tmp_path, never)
    assert [s.row_id for s in again.rows] == sorted(s.row_id for s in some)
    assert again.rows[0].device == find(again.rows[0].device.name)
    for name in ("features", "start", "launches", "part", "column", "share"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_a_name_that_means_another_model_by_now_is_left_out() -> None:
    graph, step = graph_of("short 512"), rows()[0]
    size = graph.param_bytes / 4e6
    assert known(replace(step, parameters_m=1.05 * size), graph, "a") is not None
    assert known(replace(step, parameters_m=1.3 * size), graph, "a") is None
    seen = known(step, graph, "a")
    assert seen is not None
    assert seen.architecture == "a"


def test_texts_of_many_lengths_are_no_label() -> None:
    table = pd.DataFrame({"latency_ms": [100.0, 100.0], "latency_std_ms": [5.0, 20.0]})
    assert len(steady(table)) == 1
    assert optimizer_of({"source": "migperf", "model": "hf:bert-base@64"}) == "adamw"
    assert optimizer_of({"source": "pytorch_gpu_benchmark", "model": "torchvision:vgg"}) is None


def test_what_inference_held_out_is_held_out_and_its_kin_do_not_train() -> None:
    folds_of_inference = [
        InferenceFold("0", Path("even"), frozenset(["even"]), frozenset(["a0", "a2", "a4"])),
        InferenceFold("1", Path("odd"), frozenset(["odd"]), frozenset(["a1", "a3", "a5"])),
    ]
    base = rows()[0]
    steps = [
        replace(
            base,
            row_id=f"s{n}",
            architecture=f"a{n}",
            family="even" if n % 2 == 0 else "odd",
            device=find("RTX-3090" if n < 6 else "A100-80GB"),
        )
        for n in range(8)
    ]
    steps.append(replace(base, row_id="twin", architecture="a0", family="odd"))
    folds = step_folds(steps, Path("shipped"), folds_of_inference)
    mine = folds["S2-10"]
    tested = np.concatenate([fold.test for fold in mine])
    assert sorted(tested) == list(range(len(steps)))
    for fold, of_inference in zip(mine, folds_of_inference, strict=True):
        away = {steps[i].architecture for i in fold.test} | of_inference.architectures
        assert not away.intersection(steps[i].architecture for i in fold.train)
        assert fold.inference == of_inference.checkpoint
    by_gpu = {fold.name: fold for fold in folds["S3a"]}
    assert by_gpu["A100"].test.tolist() == [6, 7]
    assert not set(by_gpu["A100"].test) & set(by_gpu["A100"].train)
    assert by_gpu["A100"].inference == Path("shipped")


def test_an_operator_is_held_out_with_the_architecture_of_its_model_alone() -> None:
    base = replace(rows()[0], architecture="a0", family="even", device=find("RTX-3090"))
    steps = [replace(base, row_id=f"s{n}", architecture=f"a{n}") for n in range(2)]
    steps[1] = replace(steps[1], family="odd")
    operators = [
        replace(step, row_id=f"{step.row_id} {op}", family=f"operator {op}", node=n)
        for step in steps
        for n, op in enumerate(("dense", "gelu", "layer_norm"))
    ]
    every = [*steps, *operators]
    inference = [
        InferenceFold(family, Path(family), frozenset({family}), frozenset({arch}))
        for family, arch in (("even", "a0"), ("odd", "a1"))
    ]
    folds = step_folds(every, Path("shipped"), inference)
    for fold, tested, other in zip(folds["S2-10"], (0, 1), (1, 0), strict=True):
        assert fold.test.tolist() == [tested]
        assert {every[i].architecture for i in fold.train} == {f"a{other}"}
        assert len(fold.train) == 4
    (by_gpu,) = folds["S3a"]
    assert by_gpu.test.tolist() == [0, 1]
    assert not len(by_gpu.train)


def test_a_step_is_asked_as_its_user_would(examples: StepExamples) -> None:
    updated = next(step for step in examples.rows if step.optimizer)
    asked = updated.conditions
    assert (asked.phase, asked.optimizer, asked.batch) == ("train", "adamw", updated.batch)
    assert updated.conditions_of_pass.phase == "inference"
    without = next(step for step in examples.rows if not step.optimizer)
    with pytest.raises(ValueError, match="without an update"):
        _ = without.conditions


def test_machines_that_launch_slower_are_told_from_kernels_that_run_slower(
    examples: StepExamples, truth: Multipliers
) -> None:
    slow = {"made_up RTX-3090 eager": float(np.log(10.0))}
    made = measured(examples, replace(truth, machines=slow))
    everything = np.arange(len(made.rows))
    found = fit_multipliers(
        made, started_of(made), everything, np.ones(len(everything)), StepSettings()
    ).machines
    apart = found["made_up RTX-3090 eager"] - found["made_up A100-40GB eager"]
    assert apart == pytest.approx(np.log(10.0), abs=0.4)


def test_some_rows_keep_their_kernels(examples: StepExamples) -> None:
    chosen = np.array([1, 4])
    some = examples.only(chosen)
    assert [row.row_id for row in some.rows] == [examples.rows[i].row_id for i in chosen]
    np.testing.assert_array_equal(some.class_roofline_ms(), examples.class_roofline_ms()[chosen])


def test_a_fold_is_published_and_asked_for_what_it_did_not_see(
    examples: StepExamples, truth: Multipliers, tmp_path: Path
) -> None:
    made = measured(examples, truth)
    inference = pretrained.load().path
    test = np.flatnonzero([step.family == "deep" for step in made.rows])
    train = np.flatnonzero([step.family != "deep" for step in made.rows])
    fold = StepFold("S2-10", "deep", inference, train, test)
    memory = StepMemoryModel(MemoryModel(500.0, 5.0, 200.0, 0.1), 1.2, 0.1)
    runner = StepRunner(made, tmp_path, SETTINGS, memory, graph_of)
    held = runner.held_out([fold]).rows
    updated = [i for i in test if made.rows[i].optimizer]
    assert sorted(held["position"]) == sorted(updated)
    assert (held["predicted latency_ms"] > 0).all()
    assert set(held["family_id"]) == {"deep"}
    own = runner.with_own_terms([fold]).rows
    assert sorted(own["position"]) == test.tolist()
    checkpoint = pretrained.load(tmp_path / "S2-10-deep.checkpoint" / "0.0.0")
    law = checkpoint.config["law"]
    assert law["effects"] == pretrained.load().config["law"]["effects"]
    again = runner.held_out([fold]).rows
    pd.testing.assert_frame_equal(held, again)


def test_the_memory_of_steps_is_fitted_and_its_error_is_of_the_model_left_out() -> None:
    context = MemoryModel(500.0, 5.0, 200.0, 0.0)
    samples = []
    for family, spread in (("short", 1.2), ("long", 1.3)):
        footprint = TrainingFootprint.of(graph_of(f"{family} 1024"), "fp32", "adamw")
        for batch in (4096, 16384, 65536):
            usage = footprint.usage(batch)
            memory = usage.memory
            reserved = memory.kept_bytes + spread * memory.saved_bytes + memory.loss_bytes
            label = 500 + 5 * 98 + (reserved + 8_519_680) / 2**20
            data = f"training steps of {family}, made up"
            samples.append(StepMemorySample(family, family, 98, usage, label, "A100-80GB", data))
    model, lines = fit_step_memory(samples, context)
    assert 1.2 < model.spread < 1.3
    assert model.log_error > 0
    by_model = {line["data"].split(" of ")[1].split(",")[0]: line for line in lines}
    assert by_model["short"]["log_bias"] > 0 > by_model["long"]["log_bias"]
