"""A page that cannot be made is refused before any work is done for it."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from dippm.cli.app import app


@pytest.mark.parametrize("library", ["plotly", "jinja2"])
@pytest.mark.parametrize("command", ["choose", "diff", "explain", "explore", "report", "sweep"])
def test_missing_libraries_are_named_before_any_work(command, library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [command, str(tmp_path / "not there"), "--html", str(page)])
    assert done.exit_code == 1
    assert f"a page needs {library}" in done.stderr
    assert "dippm[report]" in done.stderr
    assert not page.exists()
