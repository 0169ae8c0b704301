"""What a user gets from the wheel: the package, its catalogue, and the checkpoints."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dippm.estimate.pretrained.store import available

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.nightly(part="package")
def test_the_wheel_holds_what_predicting_needs(tmp_path):
    options = [
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
        "--wheel-dir",
        tmp_path,
    ]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True)
    (wheel,) = tmp_path.glob("dippm-*.whl")
    members = set(zipfile.ZipFile(wheel).namelist())
    assert {"dippm/devices/catalog.toml", "dippm/py.typed"} <= members
    assert "dippm/show/report/templates/collected.html.jinja" in members
    assert {"dippm/show/ui/page/assets/page.js", "dippm/show/ui/page/assets/page.css"} <= members
    for info in available():
        place = f"dippm/checkpoints/{info.path.parent.name}/{info.path.name}"
        for name in ("model.safetensors", "config.json", "metrics.json", "README.md"):
            assert f"{place}/{name}" in members
    folders = {member.partition("/")[0] for member in members}
    assert not folders & {"tests", "training", "dataset", "benchmarks", "scripts"}
