"""Device files of others: checked, kept, found by name, and never silently replaced."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.devices import read_device
from dippm.devices.device_file import age_of, all_imported, find_imported, folder, import_device
from dippm.errors import DeviceError, UnknownNameError
from dippm.estimate.place import device_of

CARD = """
name = "Lab card 7"
memory_mb = 16384
sm_count = 76
[calibration]
base = "Lab card"
log_slowdown = 0.1
rows = 30
made_on = "2026-01-01"
software = "torch 2.9.1, CUDA 13.0"
"""


@pytest.fixture
def card(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("DIPPM_DEVICES", str(tmp_path / "kept"))
    path = tmp_path / "card.toml"
    path.write_text(CARD)
    return path


def test_an_imported_device_is_found_by_its_name(card: Path) -> None:
    with pytest.raises(UnknownNameError):
        device_of("Lab card 7")
    device, kept = import_device(card)
    assert kept.parent == folder()
    assert device_of("lab CARD 7") == read_device(kept) == find_imported("Lab card 7")
    assert [d.name for d in all_imported()] == ["Lab card 7"]
    assert device.calibration.rows == 30
    assert find_imported("../card") is None


def test_another_device_of_the_name_is_not_silently_replaced(card: Path) -> None:
    import_device(card)
    import_device(card)  # the same one is no other
    card.write_text(CARD.replace("0.1", "0.2"))
    with pytest.raises(DeviceError, match="was imported before") as error:
        import_device(card)
    assert "replace=True" in error.value.hint
    assert find_imported("Lab card 7").calibration.log_slowdown == 0.1
    import_device(card, name="Lab card 8")
    import_device(card, replace=True)
    assert find_imported("Lab card 7").calibration.log_slowdown == 0.2
    assert len(all_imported()) == 2


@pytest.mark.parametrize("text", ["name = 3", 'name = "A100"\nmemory_mb = 9', "nonsense"])
def test_what_is_no_device_is_refused_and_not_kept(card: Path, text: str) -> None:
    card.write_text(text)
    with pytest.raises(DeviceError):
        import_device(card)
    assert not all_imported()


def test_the_age_is_said(card: Path) -> None:
    device = read_device(card)
    assert "on 2026-01-01, 9 days ago" in age_of(device, date(2026, 1, 10))
    assert "measure anew" in age_of(device, date(2027, 6, 1))
    card.write_text(CARD.replace('made_on = "2026-01-01"', ""))
    assert "does not say" in age_of(read_device(card))


def test_the_command_shows_what_it_keeps(card: Path) -> None:
    done = CliRunner().invoke(app, ["devices", "import", str(card)])
    assert done.exit_code == 0, done.output
    assert "2026-01-01" in done.stdout
    assert "torch 2.9.1" in done.stdout
    listed = CliRunner().invoke(app, ["devices", "lab", "card"])
    assert "Lab card 7" in listed.stdout
    card.write_text(CARD.replace("0.1", "0.2"))
    refused = CliRunner().invoke(app, ["devices", "import", str(card)])
    assert refused.exit_code == 1
    assert "--replace" in refused.output


def test_a_name_that_no_file_can_have_is_no_imported_device(card: Path) -> None:
    assert find_imported("a" * 5000) is None
    with pytest.raises(DeviceError, match="over 100 characters"):
        import_device(card, name="a" * 200)
