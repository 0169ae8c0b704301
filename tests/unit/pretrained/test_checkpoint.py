import json
import shutil

import pytest
import torch

from dippm.errors import CheckpointError, UnknownNameError
from dippm.estimate import pretrained
from dippm.estimate.pretrained import checkpoint, store


@pytest.fixture
def folder(checkpoint_folder, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(checkpoint_folder, tmp_path / "roofline-test" / "1.0.0")


def change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip(folder):
    loaded = pretrained.load(folder)
    assert (loaded.name, loaded.version, loaded.kind) == (
        "roofline-test",
        "1.0.0",
        "test-roofline",
    )
    assert loaded.predictor.slowdown == 2.0
    assert loaded.metrics["summary"][0]["median_ape"] == 5.25


def test_loading_twice_gives_the_same_object(folder):
    assert pretrained.load(folder) is pretrained.load(folder)


def test_path_may_be_text(folder):
    assert pretrained.load(str(folder)).path == folder


def test_changed_weights_are_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CheckpointError, match="sha256 differs"):
        pretrained.load(folder)
    with pytest.raises(CheckpointError, match="sha256 differs"):
        checkpoint.verify(store.read_info(folder))


@pytest.mark.parametrize("key", ["graph_version", "feature_version"])
def test_other_versions_are_refused(folder, key):
    change(folder, **{key: "0"})
    with pytest.raises(CheckpointError, match=f"trained with {key} 0"):
        pretrained.load(folder)


def test_unknown_kind_is_refused(folder):
    change(folder, kind="oracle")
    with pytest.raises(CheckpointError, match="kind 'oracle'"):
        pretrained.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        pretrained.load(folder)


def test_damaged_configuration(folder):
    (folder / "config.json").write_text('{"kind":')
    with pytest.raises(CheckpointError, match="not JSON"):
        pretrained.load(folder)


def test_weights_that_do_not_fit(folder):
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match="does not fit its predictor"):
        pretrained.save_checkpoint(folder, {"other": torch.ones(1)}, config, {})


@pytest.fixture
def shelf(checkpoint_folder, tmp_path, monkeypatch):
    """Three versions of one name, as the only shipped checkpoints."""
    for version in ("1.0.0", "1.10.0", "1.9.0"):
        target = shutil.copytree(checkpoint_folder, tmp_path / "sage-a100" / version)
        change(target, name="sage-a100", version=version)
    monkeypatch.setattr(store, "roots", lambda: (tmp_path,))
    return tmp_path


def test_a_name_means_its_newest_version(shelf):
    assert store.find("sage-a100").version == "1.10.0"


def test_a_version_can_be_named(shelf):
    assert store.find("sage-a100@1.9.0").path == shelf / "sage-a100" / "1.9.0"


def test_misspelt_names_get_a_guess(shelf):
    with pytest.raises(UnknownNameError, match="Did you mean sage-a100"):
        store.find("sage_a100")
    with pytest.raises(UnknownNameError, match=r"1\.9\.0"):
        store.find("sage-a100@1.9")


def test_a_name_is_never_a_path(shelf, monkeypatch):
    monkeypatch.chdir(shelf / "sage-a100")
    with pytest.raises(UnknownNameError):
        store.find("1.0.0")


def test_all_are_listed_newest_first(shelf):
    assert [info.version for info in store.available()] == ["1.10.0", "1.9.0", "1.0.0"]


def test_the_card_is_made_from_the_files(checkpoint_folder):
    card = (checkpoint_folder / "README.md").read_text()
    config = json.loads((checkpoint_folder / "config.json").read_text())
    assert card.startswith("# roofline-test 1.0.0\n\nFor tests.")
    assert "| A100-40GB | latency_ms | 3 | 5.25 |" in card
    assert "* everything" in card
    assert config["sha256"] in card
