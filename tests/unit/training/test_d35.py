"""D3.5's experiment with a dozen graphs: it trains, resumes, and says what it imitates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

import dippm
from dataset.d35.graphs import RAW, graphs_of, make
from dataset.d35.labels import PROVENANCE, label, labels_folder
from dippm.errors import ConditionsError, DippmError
from dippm.estimate.pretrained import find
from dippm.estimate.pretrained.store import read_metrics
from training.d35 import experiment
from training.d35.examples import about_labels, load_examples
from training.d35.experiment import CONFIG, fold_of, jobs_of, run, started, write_results
from training.d35.publish import publish
from training.d35.report import errors_by_target
from training.pmgns.examples import Examples

MODELS = {
    "vit": ["timm:test_vit2@160", "timm:test_vit3@160"],
    "resnet": ["timm:test_resnet@160"],
    "efficientnet": ["timm:test_efficientnet@160", "timm:test_efficientnet_gn@160"],
}
WANTED = {"vit": 6, "resnet": 3, "efficientnet": 5}
JOBS = """
narrow:
  gnn: [sage]
  splits: {S0: [0], S2: [1]}
  network: {hidden: 8}
  training: {epochs: 2, batch_size: 4, learning_rate: 1.0e-3, bfloat16: false}
shipped:
  gnn: [sage]
  splits: {all: [0]}
  network: {hidden: 8}
  training: {epochs: 2, batch_size: 4, learning_rate: 1.0e-3, bfloat16: false}
finder:
  gnn: [mlp]
  splits: {all: [0]}
  network: {hidden: 8}
  training: {epochs: 1, batch_size: 4, learning_rate: finder, bfloat16: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("d35")
    list(make(folder, WANTED, (1, 2, 4), models=MODELS.__getitem__))
    list(label(folder, find()))
    return folder


@pytest.fixture(scope="module")
def examples(folder: Path) -> Examples:
    return load_examples(folder, labels_folder(folder, find()))


def test_examples_have_the_graphs_and_labels_in_order(folder: Path, examples: Examples) -> None:
    assert len(examples) == sum(WANTED.values())
    assert set(examples.families) == set(WANTED)
    assert examples.targets.isfinite().all()
    batches = [int(row.rpartition("/")[2]) for row in examples.rows]
    assert [int(graph.static[0, 1]) for graph in examples.graphs] == batches
    few = load_examples(folder, labels_folder(folder, find()), most=2)
    assert len(few) == 2 * len(WANTED)


def test_passes_that_would_not_have_run_do_not_train(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    shutil.copytree(labels_folder(folder, find()), labels)
    path = labels / "resnet-0000.parquet"
    table = pq.read_table(path)
    too_much = pa.array([1e5, *table["memory_mb"].to_pylist()[1:]])
    pq.write_table(table.set_column(1, table.schema.field(1), too_much), path)
    found = load_examples(folder, labels)
    assert len(found) == sum(WANTED.values()) - 1
    assert len(found.graphs) == len(found.targets) == len(found.rows)


def test_no_labels_is_an_error_that_names_the_command(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DippmError) as error:
        load_examples(folder, tmp_path)
    assert "dataset.d35.labels" in error.value.hint


def test_shipped_configuration_has_tables_2_and_3() -> None:
    jobs = list(jobs_of(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))))
    table3 = [job for job in jobs if job.name == "table3"]
    assert {job.network.gnn for job in table3} == {"sage", "gat", "gcn", "gin", "mlp"}
    assert all(job.network.hidden == 512 and job.network.dropout == 0.05 for job in table3)
    assert all(job.training.epochs == 10 for job in table3)
    assert len({job.key for job in jobs}) == len(jobs)


def test_jobs_run_and_results_say_what_is_imitated(
    folder: Path, examples: Examples, tmp_path: Path
) -> None:
    about = about_labels(labels_folder(folder, find()))
    document = started(tmp_path, examples, about)
    jobs = list(jobs_of(yaml.safe_load(JOBS)))
    for job in jobs:
        document["results"][job.key] = run(job, examples, tmp_path)
        write_results(tmp_path, document)
    first = document["results"]["narrow/S0/0/sage"]
    assert first["epochs"] == 2
    assert first["graphs_per_s"] > 0
    assert first["test"]["mape"] > 0
    assert first["test"]["energy_j"]["mape"] > 0
    assert "test" not in document["results"]["finder/all/0/mlp"]
    assert len(first["validation_curve"]) == 2
    tried = document["results"]["finder/all/0/mlp"]["range_test"]
    assert len(tried["losses"]) == len(tried["rates"]) > 10
    assert tried == json.loads((tmp_path / "finder/all/0/mlp/range_test.json").read_text())
    assert started(tmp_path, examples, about)["results"] == document["results"]
    assert PROVENANCE in (tmp_path / "results.md").read_text()
    resumed = run(jobs[0], examples, tmp_path)
    assert resumed["graphs_per_s"] is None
    assert resumed["test"] == first["test"]


def test_the_checkpoint_says_first_that_it_imitates(
    folder: Path, examples: Examples, tmp_path: Path
) -> None:
    labels = labels_folder(folder, find())
    config, out = tmp_path / "jobs.yaml", tmp_path / "pmgns-a100" / "0.1.0"
    config.write_text(JOBS, encoding="utf-8")
    with pytest.raises(DippmError, match="nothing of shipped/all/0/sage"):
        publish(folder, out, tmp_path, examples, list(jobs_of(yaml.safe_load(JOBS))), labels)
    asked = ["--runs", str(tmp_path), "--config", str(config), "--labels", str(labels)]
    done = CliRunner().invoke(app_of(experiment.main), [str(folder), *asked])
    assert done.exit_code == 0, done.output
    publish(folder, out, tmp_path, examples, list(jobs_of(yaml.safe_load(JOBS))), labels)
    assert (out / "README.md").read_text().splitlines()[2].startswith("It imitates hybrid-gpu")
    table4 = read_metrics(out)["D3.5's Table 4, memory in MB"]
    assert [row["slice, measured"] for row in table4[:2]] == ["1g.5gb", "2g.10gb"]
    assert all(0.5 < row["teacher"] / row["measured"] < 2 for row in table4)
    graph = next(graphs_of("timm:test_vit3@160", folder / RAW, (2,)))
    loaded = dippm.load(out)
    found = loaded.predict(graph, batch=2, device="A100-40GB", autograd=True)
    assert found.memory_mb > 0
    assert found.energy_j > 0
    assert found.seed_mig.name in ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
    with pytest.raises(ConditionsError, match="autograd"):
        loaded.predict(graph, batch=2, device="A100-40GB")


def app_of(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer()
    app.command()(command)
    return app


def test_a_family_held_out_trains_nowhere(examples: Examples) -> None:
    job = next(job for job in jobs_of(yaml.safe_load(JOBS)) if job.split == "S2")
    split, fold = fold_of(job, examples)
    family = dict(zip(examples.rows, examples.families, strict=True))
    assert {family[row] for row in fold.test} == {fold.name}
    assert fold.name not in {family[row] for row in split.train(fold)}


def test_errors_leave_out_what_has_no_label() -> None:
    labels = torch.tensor([[1.0, float("nan")], [2.0, 4.0]])
    errors = errors_by_target(torch.tensor([[1.1, 9.0], [2.0, 5.0]]), labels, ("a", "b"))
    assert errors["mape"] == pytest.approx((0.1 + 0 + 0.25) / 3, abs=1e-5)
    assert errors["b"] == {"mape": 0.25, "median_ape": 0.25}
