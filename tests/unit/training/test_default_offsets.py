"""What GPUs that were never measured take from the tables of others, and that nothing leaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.estimate.conditions import Conditions, Timer
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import N_DEVICE_FEATURES, DeviceView
from dippm.estimate.features.kernel_table import KernelGraph, KernelTable
from dippm.estimate.models.gpu_effects import by_class
from dippm.estimate.models.kernel_law import KernelLaw, Place
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.fit.batches import Batches
from training.hybrid.fit.checkpoint_law import _tensors
from training.hybrid.fit.default_offsets import (
    TableOffsets,
    adopt_default_offsets,
    default_offsets,
    table_offsets,
)
from training.hybrid.fit.folds import Runner, Settings, Task
from training.hybrid.fit.mixture import GUARDED, SAGE, TREES, Mixture
from training.hybrid.fit.network import KernelNetwork, NetworkSettings
from training.hybrid.fit.network_fit import FitSettings, _with_head, predict_log_ms
from training.hybrid.fit.novelty import measured_tensors
from training.hybrid.fit.trees import KernelTrees, TreeSettings, predict_trees_log_ms
from training.hybrid.judge.calibrated import measured_rows
from training.hybrid.judge.held_out_times import fitted, held_out_times
from training.hybrid.rows.examples import Examples, Row, build_examples

A, B, C = list(KERNEL_CLASSES)[:3]


def table(
    gpu: str,
    terms: dict[str, float],
    *,
    rows: float = 1e6,
    mode: Any = "eager",
    timer: Any = "wall",
    of_models: bool = True,
) -> TableOffsets:
    support = by_class(dict.fromkeys(terms, rows))
    return TableOffsets(find(gpu), mode, timer, of_models, by_class(terms), support)


def close(**terms: float) -> Any:
    return pytest.approx(terms, abs=1e-4)


def test_stacked_memory_and_memory_on_the_board_have_offsets_of_their_own() -> None:
    defaults = default_offsets([
        table("A100-40GB", {A: 0.3, B: 0.1}), table("V100", {A: 0.1}),
        table("RTX-3090", {A: -0.2}), table("T4", {A: -0.3, C: 0.4}),
    ])  # fmt: skip
    assert defaults["stacked"]["eager"] == close(**{A: 0.2, B: 0.1})
    assert defaults["board"]["eager"] == close(**{A: -0.25, C: 0.4})
    assert defaults["any"]["eager"] == close(**{A: -0.025, B: 0.1, C: 0.4})


def test_modes_stand_in_for_each_other_and_then_other_kinds_of_memory() -> None:
    defaults = default_offsets([
        table("RTX-3090", {A: -0.2}), table("RTX-4090", {A: -0.4}, mode="compiled"),
        table("A100-40GB", {A: 0.3}),
    ])  # fmt: skip
    assert defaults["board"] == {"eager": close(**{A: -0.2}), "compiled": close(**{A: -0.4})}
    assert defaults["stacked"]["compiled"] == defaults["stacked"]["eager"] == close(**{A: 0.3})
    alone = default_offsets([table("RTX-3090", {A: -0.2}), table("L4", {B: 0.2}, mode="compiled")])
    assert alone["stacked"] == {"eager": close(**{A: -0.2}), "compiled": close(**{B: 0.2})}
    assert default_offsets([])["board"] == {"eager": {}, "compiled": {}}


def test_tables_of_models_speak_before_those_of_operators() -> None:
    """Of a GPU, and of all with the same memory; operators alone speak where there is no model."""
    of_models = [table("RTX-3090", {A: -0.2}, timer="kernel")]
    of_parts = [table(gpu, {A: 0.4}, of_models=False) for gpu in ("RTX-3090", "L4", "A100-40GB")]
    defaults = default_offsets([*of_models, *of_parts])
    assert defaults["board"]["eager"] == close(**{A: -0.2})
    assert defaults["stacked"]["eager"] == close(**{A: 0.4})


def test_a_gpu_speaks_once_by_its_best_clock() -> None:
    defaults = default_offsets([
        table("RTX-3090", {A: 0.1}), table("RTX-3090", {A: 0.3}),
        table("RTX-3090", {A: 0.9, B: 0.9}, timer="kernel"),
        table("T4", {A: 0.4}, timer="wall+copy"), table("T4", {A: -0.9}, timer="kernel"),
    ])  # fmt: skip
    assert defaults["board"]["eager"] == close(**{A: 0.3})


def test_what_was_hardly_taught_and_what_is_far_off_counts_little() -> None:
    hardly = [table("RTX-3090", {A: 0.1}), table("T4", {A: 0.4}, rows=0.01)]
    assert default_offsets(hardly)["board"]["eager"][A] == pytest.approx(0.1, abs=0.01)
    odd = [table(gpu, {A: 0.1}) for gpu in ("RTX-3090", "RTX-4090", "L4")] + [table("T4", {A: 9.0})]
    assert default_offsets(odd)["board"]["eager"][A] == pytest.approx(0.1 + 0.5 / 3, abs=1e-3)


def test_a_gpu_whose_memory_is_not_known_speaks_for_all_alone() -> None:
    strange = replace(table("T4", {A: 0.5}), device=replace(find("T4"), memory_type=None))
    defaults = default_offsets([strange, table("RTX-3090", {A: 0.1})])
    assert defaults["board"]["eager"] == close(**{A: 0.1})
    assert defaults["any"]["eager"] == close(**{A: 0.3})


GPUS = ("RTX-3090", "RTX-4090", "V100", "RTX-5090", "A100-40GB")
SETTINGS = Settings(
    FitSettings(
        NetworkSettings(width=8), steps=60, model_rows=16, operator_rows=8, head_architectures=5
    ),
    TreeSettings(rounds=8, depth=3, smallest_leaf=0.0),
)


def stack_of(key: str) -> ModelGraph:
    """Dense layers with activations; what anything real looks like does not matter."""
    blocks, width = map(int, key.split())
    builder = GraphBuilder(batch=4)
    stream = builder.input((4, width), "float32")
    for _ in range(blocks):
        attributes = {"in_features": width, "out_features": width}
        stream = builder.add(
            "dense", [stream], (4, width), attributes=attributes, weights=width * width
        )
        stream = builder.add("gelu", [stream], (4, width))
    return builder.graph()


def made_up_examples(held_out_ms: float = 1.0, timer: Timer = "kernel") -> Examples:
    """Made-up latencies: stacked memory is slow; GPUs held out have a factor of their own."""
    slow = {"V100": 4.0, "A100-40GB": 3.0 * held_out_ms, "RTX-5090": held_out_ms}
    rows = [
        Row(
            row_id=f"{key} {gpu} {mode}",
            source="timm_infer",
            table=f"timm_infer {gpu} torch 2.4 {mode}",
            device=find(gpu),
            timer=timer,
            precision="amp",
            mode=mode,
            channels_last=False,
            batch=4,
            graph=key,
            architecture=key,
            family=key,
            latency_ms=0.03 * int(key.split()[0]) * slow.get(gpu, 1.0),
        )
        for key in (f"{blocks} {width}" for blocks in (1, 2, 4, 8) for width in (64, 128, 256))
        for gpu in GPUS
        for mode in ("eager", "compiled")
        if mode == "eager" or gpu in ("RTX-4090", "RTX-5090")
    ]
    return build_examples(sorted(rows, key=lambda r: (r.graph, r.mode)), stack_of)


def of_gpus(examples: Examples, *names: str) -> Any:
    return np.array([i for i, row in enumerate(examples.rows) if row.device.name in names])


def fold(examples: Examples) -> Task:
    measured = [find(gpu).name for gpu in GPUS[:3]]
    held = of_gpus(examples, "RTX-5090", "A100-40GB")
    return Task("S3a", "both", of_gpus(examples, *measured), held, 0)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runner = Runner(made_up_examples(), tmp_path_factory.mktemp("fits"), SETTINGS)
    runner.run([fold(runner.examples)], processes=1)
    return runner


@pytest.fixture(scope="module")
def by_the_wall(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    runner = Runner(made_up_examples(timer="wall"), tmp_path_factory.mktemp("fits"), SETTINGS)
    runner.run([fold(runner.examples)], processes=1)
    return runner


@pytest.fixture(scope="module")
def fit(runner: Runner) -> tuple[KernelNetwork, KernelTrees]:
    return fitted(runner, fold(runner.examples))


def enumerated(terms: Any) -> Any:
    return zip(KERNEL_CLASSES, terms.tolist(), strict=True)


def of_table(runner: Runner, network: KernelNetwork, gpu: str, mode: str = "eager") -> Any:
    return network.terms.detach()[runner.tables[f"timm_infer {gpu} torch 2.4 {mode}"]].numpy()


def test_a_gpu_held_out_has_what_its_kind_of_memory_adds(runner, fit) -> None:
    network, _ = fit
    task = fold(runner.examples)
    tables = table_offsets([network], runner.examples, task.train, runner.tables)
    assert {t.device.name for t in tables} == {"RTX-3090", "RTX-4090", "V100-SXM2-32GB"}
    defaults = default_offsets(tables)
    board, stacked = (of_table(runner, network, gpu) for gpu in ("RTX-5090", "A100-40GB"))
    compiled = of_table(runner, network, "RTX-5090", "compiled")
    assert compiled == pytest.approx(by_class(defaults["board"]["compiled"]), abs=1e-6)
    assert board == pytest.approx(by_class(defaults["board"]["eager"]), abs=1e-6)
    assert stacked == pytest.approx(by_class(defaults["stacked"]["eager"]), abs=1e-6)
    gemm = list(KERNEL_CLASSES).index("gemm")
    assert stacked[gemm] > board[gemm] + 0.05


def test_a_measured_gpu_keeps_its_own_terms(runner, fit) -> None:
    network, _ = fit
    task = fold(runner.examples)
    again = replace_terms(network, network.terms.detach().clone())
    adopt_default_offsets(again, runner.examples, task.train, runner.tables)
    for gpu in ("RTX-3090", "RTX-4090", "V100"):
        assert np.array_equal(of_table(runner, again, gpu), of_table(runner, network, gpu))


def replace_terms(network: KernelNetwork, terms: torch.Tensor) -> KernelNetwork:
    return replaced(network, {"terms": terms})


def replace_heads(network: KernelNetwork, heads: torch.Tensor) -> KernelNetwork:
    return replaced(network, {"heads": heads})


def replaced(network: KernelNetwork, tensors: dict[str, torch.Tensor]) -> KernelNetwork:
    state = {**network.state_dict(), **tensors}
    other = KernelNetwork(
        state["mean"], state["scale"], state["static_mean"], state["static_scale"],
        state["log_launch_ms"], network.settings,
    )  # fmt: skip
    other.load_state_dict(state)
    return other.eval()


def test_what_a_gpu_held_out_measures_changes_nothing(runner, tmp_path) -> None:
    other = Runner(made_up_examples(held_out_ms=7.0), tmp_path, SETTINGS)
    task = fold(other.examples)
    other.run([task], processes=1)
    before, after = runner.log_ms(task), other.log_ms(task)
    for learner in (SAGE, GUARDED, TREES):
        assert np.array_equal(before[learner], after[learner])


def test_default_offsets_move_every_prediction_for_a_gpu_held_out(runner, fit) -> None:
    network, trees = fit
    task = fold(runner.examples)
    known, without = runner.log_ms(task), replace_terms(network, torch.zeros_like(network.terms))
    given = runner.examples, task.test
    free = predict_log_ms(without, *given, tables=runner.tables)
    by_trees = predict_trees_log_ms(trees, *given, without, tables=runner.tables)
    assert (known[SAGE] != free).all()
    assert (known[TREES] != by_trees).all()


@pytest.mark.parametrize("network_weight", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("gpu", ["RTX-5090", "A100-40GB"])
def test_prediction_says_of_a_gpu_held_out_what_training_said(
    runner, fit, network_weight, gpu
) -> None:
    network, trees = fit
    task = fold(runner.examples)
    tables = table_offsets([network], runner.examples, task.train, runner.tables)
    config = {
        "members": 1, "network_weight": network_weight, "tree_depth": SETTINGS.trees.depth,
        "tree_reach": SETTINGS.trees.reach, "tables": [],
        "range": {name: [-9.0, 9.0] for name in KERNEL_CLASSES}, "usual": default_offsets(tables),
    }  # fmt: skip
    measured = measured_tensors(runner.measured_models(task))
    tensors = _tensors([network], trees, []) | measured
    seen = {"devices": {table.device.name: ["amp"] for table in tables}}
    law = KernelLaw.from_checkpoint(tensors, {"law": config, "seen": seen})
    chosen = of_gpus(runner.examples, gpu)
    expected = held_out_times(runner, task, chosen, Mixture(network_weight)).device_ms
    for position, expected_ms in zip(chosen, expected, strict=True):
        row = runner.examples.rows[position]
        kernels = KernelGraph.of(KernelTable.of(stack_of(row.graph), "amp", row.mode), ROUNDS)
        asked = Conditions(device=row.device, batch=4, precision="amp", mode=row.mode)
        place = Place(DeviceView.of(row.device), asked)
        (found,) = law.times(LawKernels.of(kernels), 4, [place])
        assert found.device_ms == pytest.approx(expected_ms, rel=1e-4)


def test_prediction_says_of_a_measured_gpu_what_training_said(by_the_wall) -> None:
    """With the terms and the last layer of its own table, which others have not."""
    runner = by_the_wall
    network, trees = fitted(runner, fold(runner.examples))
    examples, names = runner.examples, ("RTX-3090", "V100-SXM2-32GB")
    chosen = of_gpus(examples, *names)
    tables = {
        examples.rows[i].device.name: examples.rows[i].table
        for i in chosen
        if examples.rows[i].mode == "eager"
    }
    published = [runner.tables[tables[name]] for name in names]
    terms = network.terms.detach().numpy()[published]
    law = {
        "members": 1, "network_weight": 1.0, "tree_depth": SETTINGS.trees.depth,
        "tree_reach": SETTINGS.trees.reach, "usual": {},
        "range": {name: [-9.0, 9.0] for name in KERNEL_CLASSES},
        "tables": [
            {"device": name, "mode": "eager", "terms": dict(enumerated(row))}
            for name, row in zip(names, terms, strict=True)
        ],
    }  # fmt: skip
    measured = measured_tensors(runner.measured_models(fold(examples)))
    config = {"law": law, "seen": {"devices": {name: ["amp"] for name in names}}}
    tensors = _tensors([network], trees, published) | measured
    own = KernelLaw.from_checkpoint(tensors, config)
    for position in chosen:
        batch = Batches(examples, runner.tables).take(np.array([position]))
        with torch.no_grad():
            slow = network.log_slowdown(batch) + network.terms[batch.table[0]] @ (
                batch.features[:, : terms.shape[1]].T
            )
            times = torch.exp(batch.log_roofline + slow) * batch.count
        row = examples.rows[position]
        kernels = LawKernels.of(
            KernelGraph.of(KernelTable.of(stack_of(row.graph), "amp", row.mode), ROUNDS)
        )
        asked = Conditions(device=row.device, batch=4, precision="amp", mode=row.mode)
        place = Place(DeviceView.of(row.device), asked)
        (found,) = own.times(kernels, 4, [place])
        assert found.device_ms == pytest.approx(float(times.sum()), rel=1e-4)
        (shared,) = replace(own, table_heads={}).times(kernels, 4, [place])
        assert found.device_ms != pytest.approx(shared.device_ms, rel=1e-6)


def test_only_tables_of_models_by_the_wall_have_a_last_layer_of_their_own(
    runner, fit, by_the_wall
) -> None:
    by_kernels, _ = fit
    assert by_kernels.heads.any()
    chosen = of_gpus(runner.examples, "RTX-3090")
    shared = replace_heads(by_kernels, torch.zeros_like(by_kernels.heads))
    given = runner.examples, chosen
    for one in (by_kernels, shared):
        found = predict_log_ms(one, *given, tables=runner.tables)
        assert np.array_equal(found, predict_log_ms(by_kernels, *given, tables=runner.tables))
    network, _ = fitted(by_the_wall, fold(by_the_wall.examples))
    examples, task = by_the_wall.examples, fold(by_the_wall.examples)
    trained = {by_the_wall.tables[examples.rows[i].table] for i in task.train}
    for position, head in enumerate(network.heads.detach()):
        assert bool(head.any()) == (position in trained)
    most = len({row.architecture for row in examples.rows})
    for least, expected in ((most, trained), (most + 1, set())):
        has = _with_head(examples, task.train, by_the_wall.tables, least)
        assert set(has.nonzero()[:, 0].tolist()) == expected


def test_networks_see_descriptors_of_gpus_that_trained_alone(runner, fit) -> None:
    network, _ = fit
    examples = runner.examples
    strange = examples.features.copy()
    strange[:, -N_DEVICE_FEATURES:] += 1.0
    elsewhere = replace(examples, features=strange)
    for gpus, moved in ((("RTX-3090", "V100"), True), (("RTX-5090", "A100-40GB"), False)):
        chosen = of_gpus(examples, *[find(gpu).name for gpu in gpus])
        before, after = (
            predict_log_ms(network, e, chosen, tables=runner.tables) for e in (examples, elsewhere)
        )
        assert len(chosen)
        assert np.array_equal(before, after) != moved


def test_a_calibration_starts_from_default_offsets(runner, fit) -> None:
    """What it is fitted to is what is predicted without it."""
    task, mixture = fold(runner.examples), Mixture(0.4)
    expected = held_out_times(runner, task, task.test, mixture).device_ms
    found = measured_rows(runner, task, task.test, mixture)
    assert [row.class_ms.sum() for row in found] == pytest.approx(expected.tolist(), rel=1e-4)
