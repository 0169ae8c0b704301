"""A training goes without sources that cannot be had, and says which and what follows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dataset.join import raw_graphs
from dataset.join.graph_store import GraphStore
from dataset.join.shipped_graphs import unpack
from dataset.measured.location import REPOSITORY, DataNotFoundError
from dataset.measured.sources import all_sources
from dataset.published.registry import all_published
from training.hybrid.fit.memory import evaluate as evaluate_memory
from training.hybrid.fit.power import evaluate as evaluate_power
from training.hybrid.judge.report_strata import STRATA
from training.hybrid.publish import card_of, limits_of
from training.hybrid.rows import sources
from training.hybrid.rows.absent_sources import TEACHES, absent_sources, tell_absent
from training.hybrid.rows.memory_samples import memory_samples
from training.hybrid.rows.power_samples import power_samples

SAMPLE = REPOSITORY / "dataset" / "sample"
MODELS = ("torchvision:vgg19@224", "torchvision:resnet50@224", "timm:resnet50@224")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "graphs"
    unpack([*MODELS, *raw_graphs.specs_of(["optimum_benchmark"], SAMPLE)], folder)
    return folder


def with_every_table(data: Path) -> Path:
    """Return a folder with a file in the place of every table that teaches."""
    for source in all_published().values():
        for table in source.tables:
            (data / source.name).mkdir(parents=True, exist_ok=True)
            (data / source.name / table.file).touch()
    return data


def test_every_source_that_trains_is_known_with_what_it_teaches() -> None:
    known = all_sources()
    folders = {known[name].folder if name in known else name for name in TEACHES}
    assert folders == {s.name for s in all_published().values() if s.use == "trains"}
    read = {*sources.MODEL_SOURCES, *sources.OPERATOR_SOURCES, "hwgpt", "kernelbench"}
    read.add("optimum_benchmark")
    assert read == {name for name, taught in TEACHES.items() if "latency" in taught}


def test_nothing_is_said_where_nothing_is_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell_absent(with_every_table(tmp_path)) == []
    assert capsys.readouterr().err == ""


def test_what_is_absent_is_named_with_the_lines_that_have_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_every_table(tmp_path)
    shutil.rmtree(tmp_path / "sd_webui")
    (tmp_path / "hwgpt" / "archs.parquet").unlink()
    gone, gpts = tell_absent(tmp_path)
    assert (gone.name, gone.remedy) == ("sd_webui", "")
    assert "no licence" in gone.said
    told = capsys.readouterr().err
    assert gone.said in told
    assert "`python -m dataset.fetch hwgpt --from BUNDLE` gets them." in told
    limits = limits_of([gone, gpts])
    assert limits[0] == f"{gone.said} No row of: several (fp16, U-Nets of images, wall)."
    of_gpts = [f"{v.gpu} ({v.conditions})" for v in STRATA if v.data == "hwgpt"]
    assert limits[1] == f"{gpts.said} No row of: {'; '.join([*of_gpts, 'power of hwgpt'])}."
    assert card_of(["timm_infer"], [gone, gpts])["limits"][:2] == limits


def test_a_folder_that_teaches_nothing_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE / "raphischer", tmp_path / "raphischer")
    with pytest.raises(DataNotFoundError, match="no table that teaches latency"):
        absent_sources(tmp_path)
    assert {each.name for each in absent_sources(tmp_path, ours=True)} == {*TEACHES} - {
        "raphischer"
    }


def test_rows_of_the_sources_that_are_there_are_read(graphs: Path) -> None:
    rows, graph = sources.load_rows(SAMPLE, graphs)
    found = {row.source for row in rows}
    assert found == {"migperf", "parvagpu", "optimum_benchmark", "flagperf"}
    assert graph("torchvision:vgg19@224").nodes


def test_power_and_memory_come_from_the_sources_that_are_there(graphs: Path) -> None:
    samples = power_samples(SAMPLE, GraphStore(graphs))
    assert {sample.source for sample in samples} == {"flagperf", "raphischer"}
    kept = {sample.source for sample in memory_samples(SAMPLE, GraphStore(graphs))}
    assert kept == {"migperf", "optimum_benchmark"}  # of D3.5's models there is no graph here


def test_power_of_one_laboratory_and_memory_of_none_are_refused(graphs: Path) -> None:
    alone = [s for s in power_samples(SAMPLE, GraphStore(graphs)) if s.source == "flagperf"]
    with pytest.raises(DataNotFoundError, match="rows of A100-40GB alone") as refused:
        evaluate_power(alone)
    assert "dataset.fetch flagperf raphischer" in refused.value.hint
    with pytest.raises(DataNotFoundError, match="no row of memory"):
        evaluate_memory([])
