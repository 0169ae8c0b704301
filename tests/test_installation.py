"""What DIPPM installs with: versions of Python, extras, and what each of them brings."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dippm.model.frontends import registry

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = ("3.11", "3.12", "3.13")


def constraints(python: str) -> dict[str, str]:
    """Return the pinned version of each package for this version of Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    held = [p for p in pins if p.marker is None or p.marker.evaluate({"python_version": python})]
    assert len(held) == len({pin.name.lower() for pin in held}), "one version of each package"
    return {pin.name.lower(): str(pin.specifier) for pin in held}


def requirements(extra: str, python: str) -> set[str]:
    """Return the names of the packages that an extra asks for on this version of Python."""
    names = set()
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            names.add(requirement.name)
    return names


def fake_python(path: Path, version: tuple[int, int]) -> Path:
    """Write a Python that says that it is of this version."""
    code = f"import sys; sys.version_info = {(*version, 0, 'final', 0)}; exec(sys.argv.pop(1))"
    path.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -c "{code}" "$@"\n')
    path.chmod(0o755)
    return path


def test_the_versions_of_python_are_stated_once():
    allowed = SpecifierSet(PROJECT["requires-python"])
    accepted = tuple(f"3.{minor}" for minor in range(30) if f"3.{minor}.0" in allowed)
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert accepted == tuple(named) == SUPPORTED


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_make_refuses_another_python_before_it_installs(tmp_path, version):
    python = fake_python(tmp_path / "python", version)
    place = tmp_path / "venv"
    command = ["make", "demo", f"PYTHON={python}", f"VENV={place}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode != 0
    assert made.stderr.startswith("DIPPM needs Python 3.11, 3.12 or 3.13, and PYTHON=")
    assert "make demo PYTHON=python3.12" in made.stderr
    assert not place.exists()


def test_make_takes_the_versions_that_are_supported(tmp_path):
    recipe = re.search(r"\$\(PYTHON\) -c '(.*?)' ", (ROOT / "Makefile").read_text())
    assert recipe
    for text in SUPPORTED:
        python = fake_python(tmp_path / "python", tuple(map(int, text.split("."))))
        subprocess.run([python, "-c", recipe[1]], check=True)


def test_every_version_has_a_package_of_onnx():
    assert constraints("3.11")["onnx"] == constraints("3.12")["onnx"] == "==1.17.0"
    assert SpecifierSet(constraints("3.13")["onnx"]) != SpecifierSet("==1.17.0"), "none for 3.13"


def test_paddle_is_left_out_where_it_has_no_packages(monkeypatch):
    assert requirements("paddle", "3.12") == {"paddlepaddle", "paddle2onnx"}
    assert requirements("paddle", "3.13") == set()
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert registry.install_hint("paddle") == 'pip install "dippm[paddle]"'
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    assert "use 3.12 or older" in registry.install_hint("paddle")
    assert registry.install_hint("hf") == 'pip install "dippm[hf]"'


def test_torch_comes_with_what_needs_it_alone():
    """`pip install dippm` leaves the torch of an environment as it is."""
    core = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert {"numpy", "onnx", "apache-tvm"} <= core
    assert not core & {"torch", "torch-geometric", "torchvision", "tensorflow-cpu", "onnxruntime"}
    assert {"dippm", "onnxruntime"} <= requirements("measure", "3.11")
    (line,) = PROJECT["optional-dependencies"]["torch"]
    accepted = Requirement(line).specifier
    (major, first), (_, last) = registry.TESTED_TORCH
    stated = [m for m in range(100) if f"{major}.{m}.0" in accepted]
    assert stated == list(range(first, last + 1))


def test_hints_say_what_extras_say():
    for extra, since in registry.NEEDS_OLDER_PYTHON.items():
        before, after = f"{since[0]}.{since[1] - 1}", f"{since[0]}.{since[1]}"
        assert requirements(extra, before)
        assert not requirements(extra, after)


def test_the_tests_run_under_nohup_as_in_the_foreground():
    """What they start has the default of each signal, also where they were told to ignore it."""
    mask = "print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0])"
    code = (
        f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {mask!r}])"
    )
    ignoring = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh"]
    plain, ours = (
        subprocess.run([*ignoring, sys.executable, "-c", words], cwd=ROOT, stdout=subprocess.PIPE)
        for words in (mask, code)
    )
    ignored = 1 << signal.SIGHUP - 1 | 1 << signal.SIGINT - 1
    assert int(plain.stdout, 16) & ignored == ignored
    assert int(ours.stdout, 16) & ignored == 0
