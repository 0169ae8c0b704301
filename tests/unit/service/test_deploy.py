"""The manifests and SLURM's plug-in under deploy/, read by their readers where those are here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dippm.cli.app import app
from tests.unit.service.served import wait_for
from tests.unit.service.test_service import question

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
BASE = DEPLOY / "kubernetes"


def documents() -> list[dict]:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    texts = [(BASE / name).read_text() for name in kustomization["resources"]]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def only(kind: str) -> dict:
    (found,) = (document for document in documents() if document["kind"] == kind)
    return found


def test_the_service_starts_with_the_options_of_the_manifest():
    (container,) = only("Deployment")["spec"]["template"]["spec"]["containers"]
    command, *options = container["args"]
    # --help reads the options before it: an unknown one would be an error.
    answer = CliRunner().invoke(app, [command, *options, "--help"])
    assert answer.exit_code == 0, answer.output
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for option in options:
        value = option.partition("=")[2]
        if value.startswith("/"):
            assert any(value.startswith(mount) for mount in mounts), option


def test_parts_of_the_manifests_fit_each_other():
    template = only("Deployment")["spec"]["template"]["spec"]
    (container,) = template["containers"]
    (port,) = container["ports"]
    assert f"--port={port['containerPort']}" in container["args"]
    assert only("Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    (webhook,) = only("MutatingWebhookConfiguration")["webhooks"]
    client = webhook["clientConfig"]["service"]
    assert client["name"] == only("Service")["metadata"]["name"]
    assert client["path"] == "/v1/admission"
    fails = {"Ignore": "--webhook=open", "Fail": "--webhook=closed"}
    assert fails[webhook["failurePolicy"]] in container["args"]
    assert template["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert only("NetworkPolicy")["spec"]["egress"] == []


def test_kustomize_builds_the_base_with_and_without_cert_manager(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")

    def built():
        ran = subprocess.run(
            ["kubectl", "kustomize", str(tmp_path / "base")], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return list(yaml.safe_load_all(ran.stdout))

    shutil.copytree(BASE, tmp_path / "base")
    plain = built()
    assert len(plain) == len(documents())
    file = tmp_path / "base" / "kustomization.yaml"
    text = file.read_text().replace("# components:\n#   - cert", "components:\n  - cert")
    file.write_text(text)
    more = built()
    assert {document["kind"] for document in more} - {document["kind"] for document in plain} == {
        "Issuer",
        "Certificate",
    }
    (hook,) = (d for d in more if d["kind"] == "MutatingWebhookConfiguration")
    (certificate,) = (d for d in more if d["kind"] == "Certificate")
    place = f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == place


def test_kubernetes_takes_the_manifests():
    """By the official schemas; they are 100 MB, and looked at where they are installed."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs the official schemas")
    deployment = only("Deployment")
    labels = {"app.kubernetes.io/name": "dippm"}  # as the kustomization adds them
    deployment["spec"]["selector"] = {"matchLabels": labels}
    deployment["spec"]["template"]["metadata"] = {"labels": labels}
    for document in documents():
        document = deployment if document["kind"] == "Deployment" else document
        validate.validate(document, "1.37", strict=True)


@pytest.fixture
def plugin(service):
    """The plug-in in an interpreter of Lua, which asks the real service with curl."""
    lupa = pytest.importorskip("lupa", reason="needs an interpreter of Lua")
    lua = lupa.LuaRuntime()
    told = []
    lua.globals().slurm = lua.table_from({"SUCCESS": 0, "ERROR": -1})
    lua.execute("slurm.log_user = function(...) python_log(string.format(...)) end")
    lua.globals().python_log = told.append
    lua.execute((DEPLOY / "slurm" / "job_submit.lua").read_text())
    lua.globals().dippm.address = service.address
    # This build of Lua has no io.popen: the command runs in the same shell.
    lua.globals().dippm.run = lambda command: (
        subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout
    )
    return lua, told


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_job_that_names_its_model_gets_its_slice(plugin, service):
    lua, _ = plugin
    asked = {"model": {"path": "net.onnx"}, "format": "slurm", "devices": "A100", "batch": 8}
    assert question(service, "request", asked | {"slo_ms": 20})[0] == 200
    job = lua.table_from({"comment": "dippm: model=net.onnx batch=8 slo_ms=20"})

    def submitted():
        assert lua.globals().slurm_job_submit(job, None, 1000) == 0
        return job.tres_per_node

    assert wait_for(submitted) == "gres/gpu:a100_1g.5gb:1"
    lua.globals().dippm.types["a100_1g.5gb"] = "site_name"
    job = lua.table_from({"comment": "dippm: model=net.onnx batch=8 slo_ms=20"})
    assert wait_for(submitted) == "gres/gpu:site_name:1"


def test_other_jobs_are_left_alone(plugin):
    lua, told = plugin
    calls = []
    lua.globals().dippm.run = lambda command: calls.append(command) or ""
    for given in (
        {},
        {"comment": "my job"},
        {"comment": "dippm: model=net.onnx", "tres_per_node": "gres/gpu:1"},
    ):
        before = dict(given)
        job = lua.table_from(given)
        assert lua.globals().slurm_job_submit(job, None, 1000) == 0
        assert dict(job) == before
    assert not calls
    assert not told


@pytest.mark.parametrize(
    "comment",
    [
        "dippm: model=$(touch x)",
        "dippm: model=a';touch x;'",
        'dippm: model=a"b',
        "dippm: model=-o/etc/passwd",
        "dippm: model=net.onnx batch=8;reboot",
        "dippm: model=net.onnx slo_ms=1e9",
        "dippm: batch=8",
        "dippm: what=1 model=net.onnx",
        "dippm: model=" + "x" * 501,
    ],
)
def test_a_comment_that_a_shell_would_obey_never_reaches_one(plugin, comment):
    lua, told = plugin
    calls = []
    lua.globals().dippm.run = lambda command: calls.append(command) or ""
    job = lua.table_from({"comment": comment})
    assert lua.globals().slurm_job_submit(job, None, 1000) == 0
    assert not calls
    assert told[-1].startswith("dippm gave no resources")
    lua.globals().dippm.fails_closed = True
    assert lua.globals().slurm_job_submit(job, None, 1000) == -1


@pytest.mark.parametrize("answer", ["", "nonsense", json.dumps({"error": {"message": "no such"}})])
def test_a_job_passes_without_an_answer_unless_it_shall_not(plugin, answer):
    lua, _ = plugin
    lua.globals().dippm.run = lambda command: answer
    job = lua.table_from({"comment": "dippm: model=net.onnx"})
    assert lua.globals().slurm_job_submit(job, None, 1000) == 0
    assert job.tres_per_node is None
    lua.globals().dippm.fails_closed = True
    assert lua.globals().slurm_job_submit(job, None, 1000) == -1
