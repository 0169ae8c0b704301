"""A third-party frontend, installed with pip as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent / "dippm-toy"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the plugin installed, and the environment that sees it."""
    folder = tmp_path_factory.mktemp("site")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", folder, PLUGIN]
    subprocess.run(command, check=True)
    return {**os.environ, "PYTHONPATH": str(folder)}


def graph_of(path, environment):
    command = [sys.executable, "-m", "dippm", "graph", path, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return answer.returncode, json.loads(answer.stdout)


def test_it_is_found_by_content(site, tmp_path):
    path = tmp_path / "net.anything"
    path.write_text("toy 64 32 8\n")
    code, document = graph_of(path, site)
    assert code == 0
    assert document["histogram"] == {"dense": 2}
    assert document["macs"] == 64 * 32 + 32 * 8


def test_its_errors_come_through(site, tmp_path):
    path = tmp_path / "net.toy"
    path.write_text("toy 64 many\n")
    code, document = graph_of(path, site)
    assert code == 1
    assert document["error"]["type"] == "ConversionError"
    assert document["error"]["hint"] == "Write: toy 64 32 8"


def test_without_it_the_file_is_unknown(tmp_path):
    path = tmp_path / "net.toy"
    path.write_text("toy 64 32 8\n")
    code, document = graph_of(path, dict(os.environ))
    assert code == 1
    assert document["error"]["type"] == "UnknownFormatError"
