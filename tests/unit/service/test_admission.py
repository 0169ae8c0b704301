"""The admission webhook over TLS, with AdmissionReviews as an API server sends them."""

from __future__ import annotations

import base64
import copy
import datetime
import http.client
import ipaddress
import json
import ssl

import pytest

from dippm.client import Client, ClientError
from tests.samples import sampled
from tests.unit.service.served import Process, wait_for

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "resnet",
        "namespace": "default",
        "annotations": {
            "dippm.io/model": "net.onnx",
            "dippm.io/slo-ms": "50",
            "dippm.io/batch": "8",
            "dippm.io/precision": "fp16",
        },
    },
    "spec": {
        "restartPolicy": "Always",
        "containers": [
            {"name": "app", "image": "registry.example/app:1", "resources": {}},
            {"name": "sidecar", "image": "registry.example/side:1"},
        ],
    },
}
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "resnet",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "admin", "uid": "014fbff9a07c", "groups": ["system:masters"]},
        "object": POD,
        "oldObject": None,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        "dryRun": False,
    },
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for this machine, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dippm")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


def start(folder, root, certificate, webhook, *more):
    tls = ("--certificate", str(certificate / "cert.pem"), "--key", str(certificate / "key.pem"))
    process = Process(
        folder, "--root", str(root), "--host", "0.0.0.0", "--webhook", webhook, *tls, *more
    )
    process.context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    return process


@pytest.fixture(scope="module", params=["open", "closed"])
def webhook(request, tmp_path_factory, root, certificate):
    process = start(tmp_path_factory.mktemp("webhook"), root, certificate, request.param)
    process.mode = request.param
    yield process
    process.end()


def post(service, document, query="timeout=30s", path="/v1/admission"):
    connection = http.client.HTTPSConnection(
        "127.0.0.1", service.port, timeout=60, context=service.context
    )
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    connection.request("POST", f"{path}?{query}", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def review_of(pod, **request):
    return {**REVIEW, "request": {**REVIEW["request"], "object": pod, **request}}


def changed(**annotations):
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"] |= {f"dippm.io/{n}": v for n, v in annotations.items()}
    return pod


def patched(pod, response):
    """Apply a JSON Patch as RFC 6902 has it: the operations that stand in ours."""
    assert response["patchType"] == "JSONPatch"
    found = copy.deepcopy(pod)
    for one in json.loads(base64.b64decode(response["patch"])):
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]
        ]
        node = found
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node[part]
        assert one["op"] == "add" or last in node
        node[last] = one["value"]
    return found


def test_a_pod_gets_what_its_model_needs(webhook):
    status, found = post(webhook, REVIEW)
    assert status == 200
    assert found["apiVersion"] == "admission.k8s.io/v1"
    assert found["kind"] == "AdmissionReview"
    response = found["response"]
    assert response["uid"] == REVIEW["request"]["uid"]
    assert response["allowed"] is True
    pod = patched(POD, response)
    app, sidecar = pod["spec"]["containers"]
    assert app["resources"]["limits"] == {"nvidia.com/mig-1g.5gb": "1"}
    assert app["resources"]["requests"] == app["resources"]["limits"]
    assert sidecar == POD["spec"]["containers"][1]
    told = pod["metadata"]["annotations"]
    assert told["dippm.io/model"] == "net.onnx"
    assert told["dippm.io/slo"].startswith("within 50 ms with a probability of")
    assert "dippm.io/verify" not in told, "PyTorch was predicted, and the file runs elsewhere"
    terms = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert "NVIDIA-A100-SXM4-40GB" in terms[0]["matchExpressions"][0]["values"]


def test_a_pod_says_what_would_check_it(webhook, certificate):
    trusting = {"token": webhook.token, "certificates": certificate / "cert.pem"}
    with Client(
        f"https://127.0.0.1:{webhook.port}", **trusting
    ) as client:  # the first conversion may take its time
        client.predict({"path": "net.pt"}, input="64")
    review = copy.deepcopy(REVIEW)
    asked = {"dippm.io/model": "net.pt", "dippm.io/input": "64"}
    review["request"]["object"]["metadata"]["annotations"] = asked
    pod = patched(review["request"]["object"], post(webhook, review)[1]["response"])
    line = "dippm measure net.pt --batch 1 --input 64 --device cuda:0 --compare"
    assert pod["metadata"]["annotations"]["dippm.io/verify"] == line


def test_the_cluster_takes_the_pod_that_comes_of_it(webhook):
    """By the official schemas; they are 100 MB, and looked at where they are installed."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs the official schemas")
    _, found = post(webhook, REVIEW)
    validate.validate(patched(POD, found["response"]), "1.37", strict=True)


def test_nodes_that_a_pod_asked_for_stay_asked_for(webhook):
    pod = changed(container="sidecar")
    own = {"key": "zone", "operator": "In", "values": ["a"]}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    pod["spec"]["affinity"] = {
        "nodeAffinity": {key: {"nodeSelectorTerms": [{"matchExpressions": [own]}, {}]}},
        "podAntiAffinity": {},
    }
    _, found = post(webhook, review_of(pod))
    result = patched(pod, found["response"])
    terms = result["spec"]["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0] == own
    assert [term["matchExpressions"][-1]["key"] for term in terms] == ["nvidia.com/gpu.product"] * 2
    assert result["spec"]["affinity"]["podAntiAffinity"] == {}
    assert "limits" in result["spec"]["containers"][1]["resources"]
    assert result["spec"]["containers"][0] == POD["spec"]["containers"][0]


def test_hami_gets_memory_and_cores(webhook):
    _, found = post(webhook, review_of(changed(format="hami", devices="T4, A10")))
    pod = patched(changed(format="hami", devices="T4, A10"), found["response"])
    assert set(pod["spec"]["containers"][0]["resources"]["limits"]) == {
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
    }
    assert "nvidia.com/use-gputype" in pod["metadata"]["annotations"]


def other_pods():
    plain = copy.deepcopy(POD)
    del plain["metadata"]["annotations"]
    yield "no annotation", review_of(plain)
    own = copy.deepcopy(POD)
    own["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    yield "its own GPU", review_of(own)
    claims = copy.deepcopy(POD)
    claims["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    yield "its own claim", review_of(claims)
    yield "an update", review_of(POD, operation="UPDATE")
    yield "no pod", review_of({"kind": "Job"}, kind={"kind": "Job"})
    yield "nothing", review_of(None)


@pytest.mark.parametrize(("review"), [c[1] for c in other_pods()], ids=[c[0] for c in other_pods()])
def test_other_pods_pass_as_they_are(webhook, review):
    status, found = post(webhook, review)
    assert status == 200
    assert found["response"] == {"uid": REVIEW["request"]["uid"], "allowed": True}


@pytest.mark.parametrize(
    ("annotations", "words", "code"),
    sampled(
        [
            ({"model": "none.onnx"}, "no model is at", 404),
            ({"model": "../secret.onnx"}, "outside", 403),
            ({"model": "/etc/passwd"}, "outside", 403),
            ({"model": "bad.onnx"}, "bad.onnx", 415),
            ({"devices": "A1000"}, "unknown device", 422),
            ({"slo-ms": "0.00001"}, "nothing meets", 422),
            ({"slo-ms": "soon"}, "slo_ms", 422),
            ({"batch": "-1"}, "batch", 422),
            ({"container": "none"}, "no container", 422),
            ({"format": "slurm"}, "does not stand in a pod", 422),
            ({"format": "x\ny"}, "names a file", 422),
        ],
        pytest.mark.nightly(part="hostile"),
        every=3,
    ),
)
def test_a_pod_without_an_answer_passes_or_not_as_configured(webhook, annotations, words, code):
    status, found = post(webhook, review_of(changed(**annotations)))
    assert status == 200
    response = found["response"]
    assert "patch" not in response
    if webhook.mode == "open":
        assert response["allowed"] is True
        (warning,) = response["warnings"]
        assert words in warning
        assert len(warning) <= 200
    else:
        assert response["allowed"] is False
        assert response["status"]["code"] == code
        assert words in response["status"]["message"]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"{" * 10_000,
        {**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"},
        {**REVIEW, "kind": "Pod"},
        {**REVIEW, "request": None},
        {**REVIEW, "request": {"uid": ""}},
        {**REVIEW, "request": {"uid": 5}},
    ],
)
def test_what_is_no_review_is_refused(webhook, document):
    status, found = post(webhook, document)
    assert status == 422
    assert found["error"]["type"] == "BadQuestionError"


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": None, "spec": None},
        {"metadata": {"annotations": []}, "spec": {}},
        {"metadata": {"annotations": {"dippm.io/model": "net.onnx"}}},
        {"metadata": {"annotations": {"dippm.io/model": "net.onnx"}}, "spec": {"containers": [1]}},
        {"metadata": {"annotations": {"dippm.io/model": "net.onnx"}}, "spec": {"containers": []}},
        {"metadata": {"annotations": {"dippm.io/model": 5}},
         "spec": {"containers": [{"name": "a"}]}},
        {"metadata": {"annotations": {"dippm.io/model": "net.onnx", "dippm.io/batch": 5}},
         "spec": {"containers": [{"name": "a", "resources": "x"}]}},
    ],
)  # fmt: skip
def test_a_pod_that_is_none_never_ends_in_a_fault(webhook, pod):
    status, found = post(webhook, review_of(pod))
    assert status == 200
    assert "patch" not in found["response"]
    assert found["response"]["uid"] == REVIEW["request"]["uid"]
    assert not webhook.events("failed")


def test_the_webhook_needs_no_token_and_the_rest_does(webhook):
    status, found = post(webhook, {"model": "timm:resnet18"}, "", "/v1/predict")
    assert (status, found["error"]["type"]) == (401, "NoAccessError")
    assert webhook.token


@pytest.mark.parametrize("mode", sampled(["closed", "open"], pytest.mark.nightly(part="services")))
def test_the_api_server_gets_an_answer_before_it_gives_up(tmp_path, root, certificate, mode):
    """The work goes on, and the pod that a controller makes again finds it done."""
    service = start(tmp_path, root, certificate, mode, "--workers", "1")
    try:
        wait_for(service.answerers)
        # The only process is at work for long: the pod's question waits.
        connection = http.client.HTTPSConnection(
            "127.0.0.1", service.port, timeout=60, context=service.context
        )
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {service.token}"}
        long = {"model": {"path": "net.onnx"}, "batch": "1:100000"}
        connection.request("POST", "/v1/choose?wait_s=0", json.dumps(long), headers)
        job = json.loads(connection.getresponse().read())
        status, found = post(service, REVIEW, "timeout=1s")
        assert status == 200
        assert found["response"]["allowed"] is (mode == "open")
        assert "still being converted" in json.dumps(found["response"])
        connection.request("DELETE", f"/v1/jobs/{job['id']}", headers=headers)
        connection.getresponse().read()
        wait_for(lambda: "patch" in post(service, REVIEW, "timeout=1s")[1]["response"])
    finally:
        service.end()


def test_the_client_speaks_tls_and_knows_whom_to_trust(webhook, certificate):
    address = f"https://127.0.0.1:{webhook.port}"
    trusting = Client(address, token=webhook.token, certificates=certificate / "cert.pem")
    assert trusting.predict({"path": "net.onnx"})["latency_ms"] > 0
    with pytest.raises(ClientError, match="certificate"):
        Client(address, token=webhook.token).health()


def test_plain_http_is_no_way_in(webhook):
    plain = http.client.HTTPConnection("127.0.0.1", webhook.port, timeout=10)
    plain.request("GET", "/healthz")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
