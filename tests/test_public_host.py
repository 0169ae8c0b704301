"""What a public host reads: workflows, forms, updates; the lowest versions that it tests with."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
HOST = ROOT / ".github"
WORKFLOWS = sorted((HOST / "workflows").glob("*.yml"))
SCHEMAS = {
    "github-workflows": "workflows/*.yml",
    "github-actions": "actions/*/action.yml",
    "github-issue-forms": "ISSUE_TEMPLATE/[0-9]*.yml",
    "github-issue-config": "ISSUE_TEMPLATE/config.yml",
    "dependabot": "dependabot.yml",
    "citation-file-format": "../CITATION.cff",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOWEST = ROOT / "tests" / "constraints-lowest.txt"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_fit_their_schema(schema):
    pytest.importorskip("check_jsonschema")
    files = sorted(HOST.glob(SCHEMAS[schema])) or [(HOST / SCHEMAS[schema]).resolve()]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    checked = subprocess.run([*command, *files], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_few_rights_and_an_end(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}


def test_only_what_publishes_has_an_identity():
    rights = {}
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            if "permissions" in job:
                rights[path.stem, name] = job["permissions"]
    assert rights == {
        ("docs", "publish"): {"pages": "write", "id-token": "write"},
        ("release", "publish"): {"id-token": "write"},
        ("release", "announce"): {"contents": "write"},
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_there_is(path):
    text = path.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = " ".join(re.findall(r"run: make ([^\n]+)", text)).split()
    assert {word for word in called if "=" not in word} <= targets
    assert set(re.findall(r"target: (\S+)", text)) <= targets
    for pins in re.findall(r"pins: (\S+)\n", text):
        assert pins.startswith(("[", "$")) or Path(ROOT, pins).exists(), pins


def test_each_supported_python_is_tested():
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    for name, job in (("check", "test"), ("weekdays", "newest")):
        text = (HOST / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
        assert yaml.safe_load(text)["jobs"][job]["strategy"]["matrix"]["python"] == supported


def test_the_lowest_versions_are_allowed_and_complete():
    lines = LOWEST.read_text(encoding="utf-8").splitlines()
    pins = {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement in (Requirement(line) for line in lines if line and line[0] != "#")
    }
    extras = PROJECT["optional-dependencies"]
    tested = [*PROJECT["dependencies"], *extras["dev"], *extras["test"]]
    reached = {name for line in tested for name in Requirement(line).extras}
    for line in [*tested, *(line for name in sorted(reached) for line in extras.get(name, ()))]:
        requirement = Requirement(line)
        if requirement.name == "dippm":
            continue
        version = pins[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} is not {version}"


def test_owned_paths_exist():
    lines = (HOST / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    paths = [line.split()[0] for line in lines if line and line[0] != "#"]
    assert paths
    assert all((ROOT / path.lstrip("/")).exists() for path in paths)
