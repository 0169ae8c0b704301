"""Opens pages in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")


AXE_VARIABLE = "DIPPM_AXE"
AXE = Path(os.environ.get(AXE_VARIABLE, "node_modules/axe-core/axe.min.js"))
"""The script of axe-core, which `npm install --no-save axe-core` puts there."""
NEEDS_AXE = pytest.mark.skipif(
    not AXE.is_file(), reason=f"no axe-core: install it, or ${AXE_VARIABLE}"
)


def browse(page: Path, tmp_path: Path, *, at: str = "") -> tuple[str, str]:
    """Open a page at a place of it; return the document as drawn, and what the console said."""
    assert CHROMIUM
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000",
        "--enable-logging=stderr", "--v=0", "--dump-dom",
    )  # fmt: skip
    address = f"{page.as_uri()}#{at}" if at else page.as_uri()
    done = subprocess.run(
        [CHROMIUM, *options, address], capture_output=True, text=True, timeout=500, check=True
    )
    return done.stdout, done.stderr
