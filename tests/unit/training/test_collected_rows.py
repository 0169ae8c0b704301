"""Sets of our own teach the default predictor: a made-up GPU whose laws are known, end to end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dataset.families import registry
from dataset.families.family import Workload
from dataset.join import raw_graphs
from dataset.join.graph_store import GraphStore
from dataset.join.splits import random_split
from dippm.devices import find
from dippm.estimate.features.kernel import PARTS
from dippm.estimate.features.kernel_table import KernelTable
from dippm.measure.collected.kernels import read_kernels
from dippm.measure.kernels import kernel_ms
from dippm.measure.kernels.profile import profile_step
from dippm.measure.protocol import Regime
from dippm.measure.regimes import prepare_step
from tests import simulated_gpu as simulated
from training.hybrid.fit import memory, power
from training.hybrid.fit.folds import Runner, Settings, Task, table_of
from training.hybrid.fit.mixture import SAGE, Mixture
from training.hybrid.fit.network import NetworkSettings
from training.hybrid.fit.network_fit import FitSettings, restore
from training.hybrid.fit.trees import TreeSettings
from training.hybrid.judge.report import summary
from training.hybrid.rows import collected_kernels
from training.hybrid.rows.collected_examples import digest_of, load_collected
from training.hybrid.rows.collected_kernels import certain, rows_of_kernels
from training.hybrid.rows.collected_memory import collected_memory
from training.hybrid.rows.collected_power import collected_power
from training.hybrid.rows.collected_rows import (
    TIMERS,
    CollectedSet,
    NothingToLearnError,
    read_collected,
    rows_of,
    rows_that_teach,
)
from training.hybrid.rows.examples import Examples, Row, build_examples
from training.steps.examples import build_steps
from training.steps.memory import collected_step_memory
from training.steps.rows import collected_operator_rows, collected_step_rows
from training.steps.splits import InferenceFold, step_folds

CPU_SET = Path(__file__).parents[3] / "dataset" / "data" / "cpu"
SOURCE = "collected/h100"
TABLE = f"{SOURCE} H100-SXM-80GB torch 2.13.0, cuda 12.9 eager"
SETTINGS = Settings(
    FitSettings(NetworkSettings(width=16), steps=300, model_rows=16, operator_rows=32),
    TreeSettings(rounds=40, depth=4, smallest_leaf=0.0),
)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    works = (*simulated.models(), *simulated.OPERATORS)
    outcomes = list(raw_graphs.build([work.model for work in works], folder, workers=1))
    assert not [outcome for outcome in outcomes if outcome.error]
    return folder


@pytest.fixture(scope="module")
def store(graphs: Path) -> GraphStore:
    return GraphStore(graphs)


@pytest.fixture(scope="module")
def gpu(store: GraphStore) -> simulated.SimulatedGpu:
    return simulated.SimulatedGpu(store)


@pytest.fixture(scope="module")
def found(gpu: simulated.SimulatedGpu, graphs: Path, tmp_path_factory) -> CollectedSet:
    folder = gpu.write(tmp_path_factory.mktemp("data") / "h100")
    return read_collected(folder, graphs)


@pytest.fixture(scope="module")
def examples(found: CollectedSet, graphs: Path, tmp_path_factory) -> Examples:
    work = tmp_path_factory.mktemp("work")
    return load_collected(found, graphs, work, place=simulated.place)


@pytest.fixture(scope="module")
def runner(examples: Examples, tmp_path_factory) -> Runner:
    torch.set_num_threads(1)
    return Runner(examples, tmp_path_factory.mktemp("fits"), SETTINGS)


@pytest.fixture(scope="module")
def tasks(runner: Runner) -> list[Task]:
    split = runner.splits()["S1"]
    return runner.tasks(split, (0,))[:2]


@pytest.fixture(scope="module")
def fitted(runner: Runner, tasks: list[Task]) -> list[Task]:
    for task in tasks:
        runner.fit(task)
    return tasks


def points(found: CollectedSet, store: GraphStore) -> list[Row]:
    return rows_of(found, store)


def test_a_point_is_a_row_in_each_regime_and_events_are_a_table_of_their_own(found, store) -> None:
    rows = points(found, store)
    assert Counter((row.timer, row.is_model) for row in rows) == {
        **dict.fromkeys([("wall", True), ("event", True), ("kernel", True)], 72),
        **dict.fromkeys([("wall", False), ("event", False), ("kernel", False)], 12),
    }
    assert len({row.row_id for row in rows}) == len(rows)
    assert {(row.table, row.timer) for row in rows} == {
        (TABLE, "wall"),
        (TABLE, "kernel"),
        (f"{TABLE} events", "event"),
    }
    by_point = {(row.point, row.timer): row.latency_ms for row in rows}
    for record in found.records:
        assert by_point[record["row_id"], "wall"] == record["latency_ms"]
        assert by_point[record["row_id"], "event"] == record["event_ms"] != record["latency_ms"]
        assert by_point[record["row_id"], "kernel"] == record["kernel_ms"]


def test_times_of_a_host_and_sums_of_short_kernels_do_not_teach(found, store) -> None:
    records = {record["row_id"]: record for record in found.records}
    rows = points(found, store)
    taught = {row.row_id for row in rows_that_teach(found, rows)}
    for row in rows:
        record = records[row.point]
        mean_ms = record["kernel_ms"] / record["kernel_launches"]
        is_of_kernels = (
            mean_ms >= 0.02
            if row.timer == "kernel"
            else record["kernel_ms"] >= 0.8 * row.latency_ms
        )
        assert (row.row_id in taught) == (is_of_kernels or not row.is_model)
    assert 100 < len(taught) < len(rows)
    unknown = [{**record, "kernel_ms": None, "kernel_launches": None} for record in found.records]
    assert rows_that_teach(replace(found, records=tuple(unknown)), rows) == rows


def test_a_profile_of_another_step_does_not_teach(found, store, graphs, tmp_path) -> None:
    point = next(r for r in found.records if r["kernel_ms"] and r["kind"] == "model")
    other = replace(
        found,
        digest="0" * 12,
        records=tuple(
            {**r, "latency_ms": r["kernel_ms"] / 3, "cold_latency_ms": None} if r is point else r
            for r in found.records
        ),
    )
    examples = load_collected(other, graphs, tmp_path)
    mine = [row for row in examples.rows if row.point == point["row_id"]]
    assert all(row.timer != "kernel" for row in mine)
    assert any(row.timer == "kernel" for row in examples.rows)


def test_a_set_in_which_the_host_takes_all_of_the_time_is_refused(found, store) -> None:
    hosts = [row for row in points(found, store) if row.is_model and row.batch == 1]
    slow = [replace(row, latency_ms=100.0) for row in hosts if row.timer == "wall"]
    with pytest.raises(NothingToLearnError, match="the time of all of its 24") as error:
        rows_that_teach(found, slow)
    assert "larger batches" in error.value.hint


def test_models_and_operators_have_the_keys_of_other_tables(found, store) -> None:
    rows = points(found, store)
    models = {row.family for row in rows if row.is_model}
    assert models == {"text_encoder", "vgg", "resnet", "tabular_mlp"}
    assert len({row.architecture for row in rows if row.is_model}) == 12
    operators = {(row.family, row.architecture) for row in rows if not row.is_model}
    assert operators == {
        ("operator dense", "dense(bias=true,k=768,n=768)"),
        ("operator elementwise", "elementwise(name=relu)"),
    }


def test_an_operator_with_cold_caches_counts(found, store) -> None:
    operator = next(record for record in found.records if record["kind"] == "operator")
    cold = replace(found, records=({**operator, "cold_kernel_ms": 9.0, "cold_latency_ms": None},))
    assert {row.timer: row.latency_ms for row in rows_of(cold, store)} == {
        "wall": operator["latency_ms"],
        "event": operator["event_ms"],
        "kernel": 9.0,
    }


def test_what_does_not_teach_is_counted_with_its_reason(found) -> None:
    assert set(found.left_out.values()) == {1}
    assert str(found).splitlines() == [
        f"{SOURCE}: 84 rows teach",
        "  left out: 1 rows: training step: for the predictor of training steps",
        "  left out: 1 rows: oom",
    ]


def test_gradients_of_operators_amid_a_step_teach(found, graphs, store) -> None:
    steps = read_collected(found.folder, graphs, phase="train")
    (record,) = steps.records
    rows = collected_operator_rows(steps, store, place=simulated.place)
    assert rows
    assert {row.point for row in rows} == {record["row_id"]}
    assert {row.optimizer for row in rows} == {"sgd"}
    kept, arrays = build_steps(rows, store.__getitem__)
    assert kept
    assert set(arrays["part"]) <= {PARTS.index(n) for n in ("backward_input", "backward_weight")}
    assert not arrays["launches"].any()
    for row in kept:
        assert row.timer == "kernel"
        assert row.latency_ms > simulated.GRADIENT_NS / 1e6
        assert row.table.endswith(" operators")
    anything = InferenceFold("a", found.folder, frozenset(), frozenset())
    folds = step_folds(kept, found.folder, [anything])
    assert all(not len(fold.test) for of_split in folds.values() for fold in of_split)


def test_training_steps_of_a_set_teach_the_predictor_of_training_steps(
    found, graphs, store
) -> None:
    steps = read_collected(found.folder, graphs, phase="train")
    assert str(steps).splitlines() == [
        f"{SOURCE}: 1 rows teach",
        "  left out: 84 rows: inference: for the predictor of inference",
        "  left out: 1 rows: oom",
    ]
    (record,) = steps.records
    long = {**record, "kernel_launches": int(record["kernel_ms"] / 0.03)}
    short = {**record, "kernel_launches": int(record["kernel_ms"] / 0.01)}
    wall, kernels = collected_step_rows(replace(steps, records=(long,)), store)
    assert (wall.timer, wall.latency_ms) == ("wall", record["latency_ms"])
    assert (kernels.timer, kernels.latency_ms) == ("kernel", record["kernel_ms"])
    assert kernels.table == wall.table
    assert collected_step_rows(replace(steps, records=(short,)), store) == [wall]
    asked = wall.conditions
    assert (asked.phase, asked.optimizer, asked.batch) == ("train", "sgd", 8)
    (sample,) = collected_step_memory(steps, store)
    assert (sample.gpu, sample.context_mb) == (simulated.GPU.name, simulated.CONTEXT_MB)
    assert sample.memory_mb == record["memory_mb"]
    kept, arrays = build_steps([wall, kernels], store.__getitem__)
    assert [row.timer for row in kept] == ["wall", "kernel"]
    assert arrays["launches"][0].min() > 0 == arrays["launches"][1].max()
    inference = [InferenceFold("0", Path("fold"), frozenset(), frozenset())]
    (gpu_out,) = step_folds(kept, Path("shipped"), inference)["S3a"]
    assert (gpu_out.name, gpu_out.test.tolist()) == ("H100", [0, 1])


def test_the_committed_cpu_set_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NothingToLearnError, match=r"[3-4]\d\d rows: a CPU ran it.*train_own"):
        read_collected(CPU_SET, tmp_path)


def test_a_row_of_a_kernel_table_has_the_kernels_of_its_operator_alone(examples, store) -> None:
    amid = [i for i, row in enumerate(examples.rows) if row.node is not None]
    assert len(amid) > 100
    for i in amid[::10]:
        row = examples.rows[i]
        table = KernelTable.of(store[row.graph], row.precision, row.mode)
        times = simulated.times_ms(table, row.batch)[table.node == row.node]
        assert examples.count[examples.of_row(i)].sum() == len(times)
        assert row.latency_ms == pytest.approx(times.sum(), rel=0.05)
        assert row.latency_ms >= 0.02 * len(times)  # shorter ones a profiler does not see whole
        assert (row.timer, row.kind) == ("kernel", "operator")


def test_operators_are_equally_present_where_tables_are_large(found, store) -> None:
    models = [row for row in points(found, store) if row.is_model]
    given = models, read_kernels(found.folder), store.__getitem__
    every = Counter(row.family for row in rows_of_kernels(*given, place=simulated.place))
    rows = rows_of_kernels(*given, place=simulated.place, most=60)
    few = Counter(row.family for row in rows)
    assert sum(few.values()) == 60
    rare = {family for family, count in every.items() if few[family] == count}
    common = [few[family] for family in every.keys() - rare]
    assert len(rare) > 2
    assert len(common) > 2
    assert max(common) - min(common) <= 1
    assert max(few[family] for family in rare) <= min(common)


def test_rows_of_a_model_stay_on_one_side_with_its_kernels(runner, tasks) -> None:
    rows = runner.examples.rows
    for task in tasks:
        tested = {rows[i].graph for i in task.test}
        assert any(rows[i].node is not None for i in task.test)
        assert not tested & {rows[i].graph for i in task.train}


def test_a_random_split_keeps_a_point_together(examples) -> None:
    table = table_of(examples)
    (fold,) = random_split(table).folds
    side = table["row_id"].isin(fold.test)
    assert 0.05 < side.mean() < 0.3
    assert (side.groupby(table["point"]).nunique() == 1).all()
    alone = table.drop(columns="point")
    assert random_split(alone) == random_split(alone.assign(point=alone["row_id"]))


@pytest.mark.nightly(part="answers")
def test_the_fit_recovers_the_laws_of_time(runner, fitted) -> None:
    held = runner.held_out(fitted, Mixture(0.5), "shipped mean").rows
    error = (held["predicted latency_ms"] / held["latency_ms"] - 1).abs()
    rows = [runner.examples.rows[i] for i in held["position"]]
    by_timer = error.groupby([row.timer for row in rows]).median()
    assert by_timer["kernel"] < 0.02  # the noise is 0.01
    assert by_timer["wall"] < 0.04  # the corner between device and host is soft
    assert by_timer["event"] < 0.04
    alone = error[[row.node is not None for row in rows]]
    assert alone.quantile(0.9) < 0.06
    network = restore(runner.weights(fitted[0], SAGE), SETTINGS.fit, tables=runner.tables)
    launch_ms = (network.log_launch_ms + network.offset).exp()
    by_wall, by_events = (float(launch_ms[runner.tables[t]]) for t in (TABLE, f"{TABLE} events"))
    assert by_wall == pytest.approx(simulated.LAUNCH_MS, rel=0.1)
    # Launches are shorter there, so fewer rows are bound by them.
    assert by_events == pytest.approx(simulated.EVENT_LAUNCH_MS, rel=0.2)


@pytest.mark.nightly(part="answers")
def test_all_three_targets_have_lines_of_the_set(runner, fitted, found, store) -> None:
    held = runner.held_out(fitted, Mixture(0.5), "shipped mean")
    latency = summary(runner.examples, [held])
    rows = [runner.examples.rows[i] for i in held.rows["position"]]
    models = {(row.precision, row.timer) for row in rows if row.is_model and row.node is None}
    assert len(models) > 3
    assert {line["data"] for line in latency} == {
        f"{SOURCE} ({precision}, eager, {what})"
        for precision in simulated.PRECISIONS
        for what in (
            *(f"whole models, {timer}" for p, timer in models if p == precision),
            "kernels of models, kernel",
            *(f"single operators, {timer}" for timer in TIMERS.values() if _operators(held)),
        )
    }
    asked = {line["data"]: line["question"] for line in latency if line["question"]}
    assert asked == {
        f"{SOURCE} ({p}, eager, whole models, wall)": (
            f"an architecture never seen, {SOURCE}, {p}, eager"
        )
        for p in simulated.PRECISIONS
    }
    ours = list(collected_power(found, store))
    others = [replace(s, source="others", row_id="", device=find("A100")) for s in ours]
    _, lines = power.evaluate([*ours, *others])
    lines += power.energy_lines([*ours, *others], held.rows, "S1 architectures held out")
    of_set = {line["target"] for line in lines if line["data"].startswith(SOURCE)}
    assert of_set == {"power_w", "energy_j"}
    _, report = memory.evaluate(list(collected_memory(found, store)))
    lines = memory.memory_lines(report)
    assert {(line["gpu"], line["data"]) for line in lines} == {
        (simulated.GPU.name, f"{SOURCE}, {precision}") for precision in simulated.PRECISIONS
    }
    assert all(line["mape"] < 1 for line in lines)


def _operators(held) -> bool:
    return held.rows["family_id"].isin({"operator elementwise"}).any()


def test_the_fit_recovers_the_law_of_power_with_the_idle_power_that_was_measured(
    found, store
) -> None:
    samples = list(collected_power(found, store))
    assert len(samples) == len(found.records)
    board = replace(simulated.GPU, idle_power_w=simulated.IDLE_W, power_limit_w=simulated.LIMIT_W)
    law = power.fit_power(samples)
    found_w = power.predictions(law, [replace(s, device=board) for s in samples])
    error = np.abs(found_w / [s.power_w for s in samples] - 1)
    assert error.mean() < 0.03  # the noise is 0.01, and the fit leans on its prior
    assert error.max() < 0.1


def test_a_window_that_heat_or_a_brake_disturbed_has_no_power(found, store) -> None:
    record = found.records[0]
    for column, value in {
        "energy_throttle_reasons": ["hw_thermal_slowdown"],
        "power_w": None,
        "kernel_ms": None,
        "mig_profile": "1g.10gb",
    }.items():
        without = replace(found, records=({**record, column: value},))
        assert not list(collected_power(without, store))
    slow = {**record, "energy_sm_clock_mhz": record["sm_clock_mhz"] / 1.5}
    before, after = (
        next(collected_power(replace(found, records=(r,)), store)).busy for r in (record, slow)
    )
    assert after == pytest.approx(min(1.0, 1.5 * before))


def test_the_fit_recovers_the_context(found, store) -> None:
    samples = list(collected_memory(found, store))
    assert len(samples) == 72
    law = memory.fit_model(samples)
    for sample in samples:
        whole = law.memory_mb(sample.usage, sample.gpu)
        assert whole == pytest.approx(sample.memory_mb, rel=0.01)


def test_a_large_set_weighs_as_much_as_the_tables_of_others(found, store) -> None:
    ours = list(collected_memory(found, store))
    other = [replace(s, part="", memory_mb=s.memory_mb + 400) for s in ours[:10]]
    weights = memory._weights([*ours, *other])
    assert (weights[: len(ours)] ** 2).sum() == pytest.approx((weights[len(ours) :] ** 2).sum())


def test_examples_of_other_rows_are_not_taken_for_these(found, graphs, tmp_path) -> None:
    fewer = replace(found, records=found.records[:2], digest="fewer")
    first = load_collected(fewer, graphs, tmp_path, place=simulated.place)
    again = load_collected(fewer, graphs, tmp_path, place=simulated.place)
    assert again.rows == first.rows
    np.testing.assert_array_equal(again.features, first.features)
    one = replace(found, records=found.records[:1], digest="one")
    assert len(load_collected(one, graphs, tmp_path, place=simulated.place).rows) < len(first.rows)
    assert len({digest_of([]), digest_of([found]), digest_of([fewer])}) == 3


@pytest.mark.parametrize("number", [0, 3, 6, 9])
def test_a_real_profile_labels_the_operators_that_it_is_of(
    number, found, store, monkeypatch
) -> None:
    """Of a CPU, for want of a GPU: its operators are what kernels are there, however short."""
    monkeypatch.setattr(collected_kernels, "LONG_KERNEL_MS", 0.0)
    work: Workload = simulated.models()[number]
    graph, device = store[work.model], torch.device("cpu")
    module = registry.build(work, "cpu")
    inputs = registry.make_inputs(work, 4, "cpu")
    with prepare_step(module, inputs, Regime(), device=device) as step:
        kernels = profile_step(step, device, module=module)
    template = next(row for row in points(found, store) if row.graph == work.model)
    rows = rows_of_kernels([template], {template.point: kernels}, store.__getitem__)
    nodes = certain(kernels, graph)
    taught = sum(kernel.ns for kernel, node in zip(kernels, nodes, strict=True) if node is not None)
    assert taught / 1e6 > 0.9 * kernel_ms(kernels)
    examples = build_examples(rows, store.__getitem__)
    worked = sum(row.latency_ms for row in examples.rows)
    assert worked > 0.95 * sum(row.latency_ms for row in rows)
    assert {"operator dense"} <= {row.family for row in examples.rows}
