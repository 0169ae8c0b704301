"""The memory model's fit: installations of known context, laboratories left out, D3.5's table 4."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dataset.join.graph_store import GraphStore
from dataset.join.shipped_graphs import unpack
from dippm.devices import find, seed_profile
from dippm.errors import CheckpointError
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.footprint import MemoryFootprint
from dippm.estimate.models.memory import MIB, MemoryModel
from dippm.estimate.pretrained.store import CONFIG, WEIGHTS, read_metrics
from tests.unit.models.test_footprint import recorded
from training.hybrid.fit import memory
from training.hybrid.rows.context_samples import (
    DRIVER_RESERVES_MB,
    PUBLISHED,
    ContextSample,
    context_samples,
)
from training.hybrid.rows.memory_samples import MemorySample, memory_samples
from training.refit_memory import write_version
from training.studies.seed_memory import seed_rows

PER_SM, CONVOLUTION = 4.0, 220.0
LARGE = 1024
"""Batch at which the reserved part is most of the memory."""
BASES = {"first": 1000.0, "second": 1400.0, "third": 1150.0}
OPTIMUM_COLUMNS = (
    *("model", "torch", "batch", "seq_len", "gpus_visible", "forward_peak_memory_mb"),
    *("forward_mem_used_mb", "forward_mem_reserved_mb"),
)
OPTIMUM = (
    ("BAAI/bge-base-en-v1.5", "2.0.1", 1, 128, 4, 1888, "", ""),
    ("BAAI/bge-base-en-v1.5", "ort-gpu:1.15.1", 1, 128, 4, 3869, "", ""),
    ("llama", "2.1.0+cu118", 1, 256, 4, "", 15153, 13767),
    ("llama", "2.1.0+cu118", 2, 256, 4, "", 15392, 14006),
    ("llama", "2.1.0+cu118", 1, 256, 1, "", 25840, 23542),
    ("llama", "2.1.0+cu118", 16, 256, 1, "", 65676, 83596),
)
MIGPERF = """mode,model,mig_profile,batch,seq_len,fb_used_mib
inference,bert-base,1g.10gb,1,128,1527
training,bert-base,1g.10gb,1,128,9999
inference,vision_transformer,7g.80gb,1,,2052
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name in ("migperf", "optimum_benchmark"):
        (folder / name).mkdir()
    (folder / "migperf" / "a100_80gb_mig.csv").write_text(MIGPERF)
    lines = [",".join(OPTIMUM_COLUMNS), *(",".join(map(str, row)) for row in OPTIMUM)]
    file = folder / "optimum_benchmark" / "a100_80gb_inference.csv"
    file.write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> GraphStore:
    folder = tmp_path_factory.mktemp("graphs")
    of_seed = ("densenet121", "swin_base_patch4_window7_224", "convnext_base")
    specs = [*(f"timm:{name}@224" for name in of_seed), "hf:bert-base@128"]
    assert len(unpack(specs, folder)) == len(specs)
    return GraphStore(folder)


def rows_of(
    bases: dict[str, float], noise: float = 0.0, batches: tuple[int, ...] = (1, 8, 64)
) -> Iterator[MemorySample]:
    draw = np.random.default_rng(3)
    for spec in ("timm:regnetx_002@224", "transformers:bert@256"):
        footprint = MemoryFootprint.of(recorded(spec))
        for batch in batches:
            usage = footprint.usage(batch)
            for source, base in bases.items():
                for sm_count in (14, 42, 98):
                    context = base + PER_SM * sm_count + CONVOLUTION * usage.convolves
                    reserved = usage.reserved_mb * float(np.exp(noise * draw.normal()))
                    yield MemorySample(
                        spec, source, "whole", sm_count, batch, usage, context + reserved
                    )


def test_the_fit_finds_contexts_by_installation_and_what_they_share() -> None:
    rows = list(rows_of(BASES, batches=(1, 8, 32)))
    fitted = memory.fit_contexts(rows)
    assert fitted.per_sm == pytest.approx(PER_SM, rel=0.01)
    assert fitted.convolution_mb == pytest.approx(CONVOLUTION, rel=0.01)
    assert fitted.installations == pytest.approx(BASES, rel=0.01)
    model = memory.fit_model(rows)
    middle = np.mean(list(BASES.values()))
    assert model.context_mb == pytest.approx(middle, rel=0.01)
    assert model.software == pytest.approx({"cuda-11": middle}, rel=0.01)
    assert model.default == "cuda-11"
    assert model.unknown_sd_mb == pytest.approx(np.std(list(BASES.values()), ddof=1), rel=0.02)
    assert model.class_sd_mb == pytest.approx(model.unknown_sd_mb, rel=0.02)
    assert model.log_error == memory.UNTOLD_LOG_ERROR  # no row is mostly reserved


def test_labels_of_the_allocator_teach_no_context() -> None:
    """What the reserved part is off is in its error, and moves no context by much."""
    batches = (1, 8, LARGE)
    exact, noisy = (memory.fit_model(list(rows_of(BASES, n, batches))) for n in (0.0, 0.1))
    assert exact.log_error < 0.07 < noisy.log_error
    assert noisy.context_mb == pytest.approx(exact.context_mb, rel=0.02)
    assert exact.log_error == memory.LEAST_LOG_ERROR


def test_contexts_alone_teach_their_class() -> None:
    rows = list(rows_of(BASES))
    alone = [
        ContextSample("x", "mine", "lazy", 108, 50.0 + PER_SM * 108 + 870, 870.0, whole_model=True),
        ContextSample("x", "bare", "cuda-10", 80, 650.0 + PER_SM * 80),
    ]
    model = memory.fit_model(rows, alone)
    assert model.software is not None
    assert model.software["lazy"] == pytest.approx(50.0, abs=10)
    assert model.software["cuda-10"] == pytest.approx(650.0, rel=0.01)
    without = memory.fit_model(rows)
    assert model.context_mb == pytest.approx(without.context_mb)
    away = 50.0 + 870 - model.context_mb  # as it was counted, by a whole model; bare ones are none
    squares = 2 * without.unknown_sd_mb**2 + away**2
    assert model.unknown_sd_mb == pytest.approx(np.sqrt(squares / 3), rel=0.02)


def test_sets_of_ours_do_not_widen_what_is_not_known_of_the_software_of_others() -> None:
    others = list(rows_of(BASES))
    ours = [
        replace(row, software="lazy", part=f"{row.source} 0")
        for row in rows_of({"ours": 50.0, "ours too": 60.0})
    ]
    with_ours = memory.fit_model([*others, *ours])
    assert with_ours.unknown_sd_mb == pytest.approx(memory.fit_model(others).unknown_sd_mb, rel=0.1)
    assert with_ours.software is not None
    assert with_ours.software["lazy"] == pytest.approx(55.0, abs=10)
    assert memory.fit_model(ours).unknown_sd_mb > 0


def test_a_spread_covers_the_worst_of_few_errors_and_all_but_one_in_a_hundred_of_many() -> None:
    few = np.array([-0.4, *np.zeros(20)])
    assert memory.log_spread(few) == pytest.approx(0.4 / memory.Z99)
    many = np.array([-0.4, *np.zeros(200)])
    assert memory.log_spread(many) == 0


def test_a_laboratory_left_out_is_inside_its_interval_and_below_the_bound() -> None:
    bases = {f"laboratory {n}": base for n, base in enumerate((1000.0, 1400.0, 1050.0) * 2)}
    rows = list(rows_of(bases, 0.03))
    model, report = memory.evaluate(rows)
    assert np.mean([report[f"L: {source}"]["coverage"] for source in bases]) >= 0.9
    for source in bases:
        found = report[f"L: {source}"]
        assert found["coverage"] >= 0.7
        assert found["below_bound"] >= 0.97
        assert found["n"] == len(rows) / len(bases)
    # Of a model left out, whose installation is known, errors are as small as those of the rest.
    assert report["all"]["median_ape"] < 0.02 < report["L: laboratory 1"]["median_ape"]
    lines = memory.memory_lines(report)
    assert {line["split"] for line in lines} == {"model held out", "laboratory held out"}
    assert all({"coverage", "below_bound", "median_ape", "n"} <= set(line) for line in lines)
    assert model.unknown_sd_mb > 0


def test_one_laboratory_alone_says_nothing_of_others() -> None:
    rows = list(rows_of({"only": 1000.0}))
    model, report = memory.evaluate(rows)
    assert not any(name.startswith("L:") for name in report)
    assert model.context_mb == pytest.approx(1000.0, rel=0.01)


def test_tables_are_read_in_mib(data: Path, graphs: GraphStore) -> None:
    rows = memory_samples(data, graphs)
    by_source = {source: [r for r in rows if r.source == source] for source in
                 ("migperf", "optimum_benchmark", "seeds_reported")}  # fmt: skip
    (migperf,) = by_source["migperf"]  # of the others there is no graph, or they are training
    assert (migperf.memory_mb, migperf.sm_count, migperf.software) == (1527, 14, None)
    (bge,) = by_source["optimum_benchmark"]
    assert bge.memory_mb == pytest.approx(1888e6 / MIB)
    assert bge.software == "lazy"
    seeds = by_source["seeds_reported"]
    assert {(row.model, row.batch) for row in seeds} == {
        *(("densenet121", 8), ("densenet121", 32), ("swin_base_patch4", 2)),
        *(("swin_base_patch4", 16), ("convnext_base", 128)),
    }
    assert all(row.usage.kept_bytes > 0 for row in seeds)
    contexts = [row.memory_mb - row.usage.reserved_mb for row in seeds]
    assert max(contexts) - min(contexts) < 150  # one installation, 3 models, 2.9 to 31 GB


def test_contexts_are_read_without_what_counts_an_idle_gpu(data: Path) -> None:
    found = context_samples(data)
    assert found[1:] == list(PUBLISHED)
    assert found[0].counted_mb == pytest.approx(1386e6 / MIB)
    assert found[0].reserved_by_driver_mb == DRIVER_RESERVES_MB
    assert {sample.software for sample in PUBLISHED} == {"cuda-10", "cuda-11"}


def test_table_4_under_autograd_is_within_15_percent_and_names_its_slices(
    graphs: GraphStore,
) -> None:
    rows = seed_rows(graphs, None)
    assert [row.is_consistent for row in rows] == [True, True, True, True, False, True]
    for row in rows:
        if row.is_consistent:
            assert abs(row.error) < 0.15, (row.model, row.batch, row.error)
            assert (row.under_no_grad.memory_mb or 0) < row.under_autograd.memory_mb
            its = seed_profile(row.measured_mb)
            assert its is not None
            assert row.slice == its.name
    (odd,) = (row for row in rows if not row.is_consistent)
    assert odd.slice == "1g.5gb"
    contexts = [row.context_mb for row in rows if row.is_consistent]
    known = seed_rows(graphs, None, f"{np.mean(contexts):.0f}")
    assert all(abs(row.error) < 0.03 for row in known if row.is_consistent)


def test_a_model_of_before_reads_as_it_was() -> None:
    old = {"context_mb": 1.0, "context_mb_per_sm": 2.0, "convolution_mb": 3.0, "log_error": 0.1}
    assert MemoryModel.from_config(old) == MemoryModel(1.0, 2.0, 3.0, 0.1)


def test_a_version_with_another_memory_is_the_same_in_all_else(tmp_path: Path) -> None:
    shipped, out = pretrained.find().path, tmp_path / "hybrid-gpu" / "9.9.9"
    model, report = memory.evaluate(list(rows_of(BASES)))
    card = {"changes": "Other memory.", "command": "python -m training.refit_memory"}
    write_version(shipped, out, asdict(model), memory.memory_lines(report), card)
    before, after = (pretrained.load(folder) for folder in (shipped, out))
    assert (out / WEIGHTS).read_bytes() == (shipped / WEIGHTS).read_bytes()
    assert after.predictor.memory == model
    assert before.predictor.memory != model
    kept = {"memory", "card", "training", "version"}
    old, new = (
        {name: value for name, value in each.config.items() if name not in kept}
        for each in (before, after)
    )
    assert old == new
    assert after.config["card"]["command"].splitlines()[-1] == card["command"]
    metrics = read_metrics(out)
    lines = [line for line in metrics["summary"] if line["target"] == "memory_mb"]
    assert lines == memory.memory_lines(report)
    assert len(metrics["summary"]) > len(lines)
    graph = recorded("timm:regnetx_002@224")
    asked = Conditions(device=find("A100"), batch=8)
    one, other = (each.predictor.predict(graph, asked) for each in (before, after))
    assert one.values["latency_ms"] == other.values["latency_ms"]
    assert one.values["memory_mb"] != other.values["memory_mb"]


def test_networks_of_other_features_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "hybrid-gpu" / "0.1.0"
    shutil.copytree(pretrained.find().path, folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "feature_version": "1.0.0"}))
    with pytest.raises(CheckpointError, match=r"features 1\.0\.0") as error:
        write_version(folder, tmp_path / "hybrid-gpu" / "0.2.0", {}, [], {"command": ""})
    assert "training.hybrid.train" in error.value.hint
