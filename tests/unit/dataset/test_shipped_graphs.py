"""Graphs that come with the repository are those that a conversion gives."""

from __future__ import annotations

import json
import lzma
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

from dataset.join import raw_graphs, shipped_graphs
from dataset.join.graph_store import GraphStore
from dataset.join.grouping import family_of
from dataset.join.shipped_graphs import (
    LIBRARIES,
    SHIPPED,
    installed_versions,
    recorded_versions,
    ship,
    unpack,
)

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="needs the timm extra")

MODEL, OTHER = "timm:test_resnet@64", "timm:test_vit@64"
UNET = "sd:unet-v1@64"
SMALL_OF_EACH_ZOO = (
    "timm:resnet18@224",
    "timm:vit_tiny_patch16_224@224",
    "torchvision:vgg11@224",
    "hf:bert-base@128",
)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    assert not [o for o in raw_graphs.build([MODEL, OTHER], folder, workers=1) if o.error]
    return folder


def test_what_is_shipped_is_unpacked_as_it_was(graphs: Path, tmp_path: Path) -> None:
    pack, folder = tmp_path / "models.jsonl.xz", tmp_path / "unpacked"
    assert ship([OTHER, MODEL, "timm:never_made@64"], graphs, pack) == 2
    assert unpack([MODEL, "timm:never_made@64"], folder, pack) == [MODEL]
    assert raw_graphs.read(MODEL, folder).to_json() == raw_graphs.read(MODEL, graphs).to_json()
    assert not raw_graphs.path_of(OTHER, folder).exists()
    assert unpack([MODEL, OTHER], folder, pack) == [OTHER]


def test_a_pack_depends_on_its_graphs_alone(graphs: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.xz", tmp_path / "other.xz"
    ship([OTHER, MODEL], graphs, one)
    ship([MODEL, OTHER, MODEL], graphs, other)
    assert one.read_bytes() == other.read_bytes()


def test_a_graph_that_is_there_is_kept(graphs: Path, tmp_path: Path) -> None:
    pack = tmp_path / "models.jsonl.xz"
    ship([MODEL], graphs, pack)
    path = raw_graphs.path_of(MODEL, graphs)
    before = path.stat().st_mtime_ns
    assert unpack([MODEL], graphs, pack) == []
    assert path.stat().st_mtime_ns == before


def test_a_shipped_graph_takes_the_place_of_a_reason(graphs: Path, tmp_path: Path) -> None:
    pack, folder = tmp_path / "models.jsonl.xz", tmp_path / "refused"
    ship([MODEL], graphs, pack)
    folder.mkdir()
    raw_graphs.error_path_of(MODEL, folder).write_text("the zoo was not installed")
    assert unpack([MODEL], folder, pack) == [MODEL]
    assert raw_graphs.read(MODEL, folder).to_json() == raw_graphs.read(MODEL, graphs).to_json()


def test_graphs_of_another_format_are_not_taken(
    graphs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, folder = tmp_path / "models.jsonl.xz", tmp_path / "unpacked"
    ship([MODEL], graphs, pack)
    monkeypatch.setattr(shipped_graphs, "RAW_GRAPH_VERSION", "another")
    assert unpack([MODEL], folder, pack) == []
    assert unpack([MODEL], folder, tmp_path / "no pack") == []


def test_graphs_of_other_peoples_files_are_not_shipped() -> None:
    with lzma.open(SHIPPED, "rt", encoding="utf-8") as file:
        assert set(json.loads(file.readline())["made_with"]) == set(LIBRARIES)
    specs = [spec for spec, _ in shipped_graphs.graphs()]
    assert specs == sorted(set(specs))
    assert len(specs) > 2000
    assert {spec.partition(":")[0] for spec in specs} == {"timm", "torchvision", "hf", "gpt", "sd"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    wanted = {*SMALL_OF_EACH_ZOO, UNET}
    assert set(unpack(wanted, folder)) == wanted
    return folder


def test_the_u_net_of_stable_diffusion_is_the_published_one(unpacked: Path) -> None:
    graph = GraphStore(unpacked)[UNET]
    assert graph.param_bytes == 4 * 859_520_964
    assert graph.macs / graph.batch == pytest.approx(401.637e9, rel=1e-5)
    assert graph.histogram()["attention"] == 2 * 16
    assert graph.batch_is_symbolic
    assert not graph.unknown_ops
    assert family_of(UNET) == family_of("own:diffusion_unet(width=32)@32x32")
    with pytest.raises(ValueError, match="unet-v1"):
        raw_graphs.convert("sd:unet-v9@64")


@pytest.mark.skipif(
    find_spec("timm") is None or installed_versions() != recorded_versions(),
    reason="other versions of the zoos may build other models",
)
@pytest.mark.parametrize("spec", SMALL_OF_EACH_ZOO)
def test_what_is_shipped_is_what_a_conversion_gives(spec: str, unpacked: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fresh = raw_graphs.convert(spec)
    assert raw_graphs.read(spec, unpacked).to_json() == fresh.to_json()
