"""What a scheduler is asked for: the smallest place that will do, written down for each of them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
import yaml
from typer.testing import CliRunner

from dippm.cli.app import app
from dippm.decide.choice.probability import log_sd
from dippm.decide.scheduling import all_formats, find_format, probability_within, request_resources
from dippm.decide.scheduling.format import BUILT_IN, parts_of
from dippm.decide.scheduling.manifest import object_name, yaml_text
from dippm.decide.scheduling.slurm import options
from dippm.errors import ConditionsError, ConstraintError, NothingFeasibleError, UnknownNameError

SBATCH = re.compile(r"#SBATCH --(job-name=[a-z][-a-z0-9]*|nodes=\d+|gres=gpu:[\w.-]+:\d+)")
"""Options as the manual of sbatch has them: no SLURM is here that would read them."""


@pytest.fixture(scope="module")
def asked(wide):
    return request_resources(wide, batch=8, slo_ms=60, input="3,128,128", model="models/wide.pt")


def documents(request, name):
    return list(yaml.safe_load_all(find_format(name).render(request, name="wide", image="a/b:1")))


def test_the_place_holds_the_model_and_meets_the_limit_and_no_smaller_one_does(asked):
    assert asked.memory_bound_mb <= asked.prediction.capacity_mb
    assert asked.probability >= asked.wanted_probability == 0.95
    smaller = asked.choice.contenders[: asked.choice.contenders.index(asked.choice.best)]
    assert all(asked.choice.reason(c) for c in smaller)


def test_a_tighter_limit_and_a_higher_probability_never_take_a_smaller_place(wide):
    sizes = []
    for slo_ms, probability in ((1e4, 0.5), (1e4, 0.99), (60, 0.5), (60, 0.99), (30, 0.99)):
        found = request_resources(wide, batch=8, slo_ms=slo_ms, probability=probability)
        sizes.append(found.choice.best.size)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_the_probability_is_that_of_the_interval(asked):
    best = asked.choice.best
    latency = best.estimate("latency_ms")
    assert probability_within(best, latency.value) == pytest.approx(0.5)
    assert probability_within(best, latency.interval.high) == pytest.approx(0.95)
    at_99 = latency.value * 2.718281828 ** (NormalDist().inv_cdf(0.99) * log_sd(latency.interval))
    assert probability_within(best, at_99) == pytest.approx(0.99)


def test_without_a_limit_the_memory_decides(wide):
    found = request_resources(wide, batch=8)
    assert found.probability is None
    assert "dippm.io/slo" not in found.annotations


def test_what_nothing_meets_keeps_every_row_and_says_what_would_do(wide):
    with pytest.raises(NothingFeasibleError, match=r"nearest is A100-40GB .* with 0\.0%") as error:
        request_resources(wide, batch=8, slo_ms=0.01)
    assert all("within 0.01 ms" in error.value.choice.reason(c) or c.error
               for c in error.value.choice.contenders)  # fmt: skip
    enough = float(re.match(r"slo_ms=([\d.]+) would do", error.value.hint)[1])
    assert request_resources(wide, batch=8, slo_ms=enough).probability >= 0.95


@pytest.mark.parametrize("slo_ms", [0, -1, float("nan"), float("inf"), "20", True])
def test_a_limit_that_is_none_is_refused(wide, slo_ms):
    with pytest.raises(ConstraintError, match="slo_ms"):
        request_resources(wide, slo_ms=slo_ms)


@pytest.mark.parametrize("probability", [0, 1, -0.5, 95, float("nan"), "0.9"])
def test_a_probability_that_is_none_is_refused(wide, probability):
    with pytest.raises(ConstraintError, match="probability"):
        request_resources(wide, slo_ms=20, probability=probability)


def test_gpus_of_others_and_unknown_ones_are_refused(wide):
    with pytest.raises(ConditionsError, match="not an NVIDIA GPU"):
        request_resources(wide, devices=["A100", "MI250X"])
    with pytest.raises(UnknownNameError, match="A1000"):
        request_resources(wide, devices="A1000")
    found = request_resources(wide, devices="all")
    assert "MI250X" not in {c.device.name for c in found.choice.contenders}


def test_annotations_say_model_checkpoint_interval_and_the_command(wide_file):
    found = request_resources(wide_file, batch=8, slo_ms=60, input="3,128,128", precision="fp16")
    told = found.annotations
    digest = subprocess.run(["sha256sum", wide_file], capture_output=True, text=True).stdout.split()
    assert told["dippm.io/model-digest"] == f"sha256:{digest[0]}"
    assert told["dippm.io/checkpoint"] == found.prediction.provenance.checkpoint
    assert re.search(r"\(90%: .* to .*\), at 99 % up to", told["dippm.io/memory-mb"])
    assert re.search(r"\(90%: .* to .*\)", told["dippm.io/latency-ms"])
    words = shlex.split(told["dippm.io/verify"])
    assert words[:3] == ["dippm", "measure", str(wide_file)]
    assert words[-1] == "--compare"
    assert {"--batch", "8", "--input", "3,128,128", "--precision", "fp16"} <= {*words}


def test_the_command_that_verifies_is_one(tmp_path):
    """It is run as it is printed, on the processor of this machine in the place of the GPU."""
    file = tmp_path / "net.pt"
    torch.save(torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU()), file)
    words = shlex.split(request_resources(file, batch=2, input="64").verify)
    quick = ["--device", "cpu", "--repeat", "1", "--warm-up", "1", "--energy-window-s", "0"]
    assert words[0] == "dippm"
    ran = CliRunner().invoke(app, [*words[1:], *quick, "--json"])
    assert json.loads(ran.stdout)["schema"] == "dippm.measure-compare/1", ran.stderr


@pytest.mark.parametrize(
    ("asked", "why"),
    [({"attention": "unfused"}, "unfused attention"), ({"timer": "kernel"}, "timer kernel")],
)
def test_a_request_that_no_command_checks_says_why(wide_file, asked, why):
    found = request_resources(wide_file, batch=8, input="3,128,128", **asked)
    assert found.verify is None
    assert why in found.absent["verify"]
    assert "dippm.io/verify" not in found.annotations
    assert found.to_dict()["prediction"]["verify"] is None


def test_a_file_that_runs_in_another_runtime_has_no_command(onnx_file):
    found = request_resources(onnx_file)
    assert found.verify is None
    assert "onnxruntime" in found.absent["verify"]
    assert "no command" in str(found)


def test_a_pod_asks_for_the_slice_on_nodes_that_have_the_gpu(asked):
    (pod,) = documents(asked, "k8s")
    assert pod["kind"] == "Pod"
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {f"nvidia.com/mig-{asked.mig}": "1"}
    term = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = term["nodeSelectorTerms"][0]["matchExpressions"]
    assert "NVIDIA-A100-SXM4-40GB" in expression["values"]
    assert pod["metadata"]["annotations"] == asked.annotations


def test_a_whole_gpu_is_asked_for_as_one(wide):
    whole = request_resources(wide, slices=False, devices="T4")
    (pod,) = documents(whole, "k8s")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert options(whole, name="n")[-1] == "--gres=gpu:t4:1"
    (template, _) = documents(whole, "dra")
    request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert request["deviceClassName"] == "gpu.nvidia.com"


def test_kueue_gets_a_flavour_for_each_name_of_the_gpu_and_a_job_that_waits(asked):
    *flavours, job = documents(asked, "kueue")
    labels = [flavour["spec"]["nodeLabels"]["nvidia.com/gpu.product"] for flavour in flavours]
    assert labels == [product.replace(" ", "-") for product in asked.products]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "user-queue"}
    assert "affinity" not in job["spec"]["template"]["spec"]


def test_dra_claims_a_device_by_profile_product_and_memory(asked):
    template, pod = documents(asked, "dra")
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    texts = [selector["cel"]["expression"] for selector in request["exactly"]["selectors"]]
    assert f".profile == '{asked.mig}'" in texts[0]
    assert "'NVIDIA A100-SXM4-40GB'" in texts[1]
    assert "compareTo" in texts[2]
    claims = pod["spec"]["resourceClaims"]
    assert claims[0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_the_selectors_take_the_devices_that_will_do_and_no_others(asked):
    """By an implementation of CEL, on devices as NVIDIA's driver publishes them."""
    cel = pytest.importorskip("cel", reason="CEL expressions are read where it is installed")
    template, _ = documents(asked, "dra")
    exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    texts = [selector["cel"]["expression"] for selector in exactly["selectors"]]

    def takes(profile, product, memory_mb):
        # Quantities are Kubernetes's own: as numbers they compare the same.
        device = {
            "attributes": {"gpu.nvidia.com": {"profile": profile, "productName": product}},
            "capacity": {"gpu.nvidia.com": {"memory": memory_mb}},
        }
        plain = [re.sub(r"\.compareTo\(quantity\('(\d+)Mi'\)\) >= 0", r" >= \1", t) for t in texts]
        return all(cel.evaluate(text, {"device": device}) for text in plain)

    product, profile = asked.products[0], str(asked.mig)
    assert takes(profile, product, asked.mig.memory_mb)
    assert not takes("1g.99gb", product, asked.mig.memory_mb)
    assert not takes(profile, "NVIDIA T4", asked.mig.memory_mb)
    assert not takes(profile, product, int(asked.memory_bound_mb) - 1)


def test_hami_gets_the_bound_in_mib_and_the_share_of_multiprocessors(asked):
    (pod,) = documents(asked, "hami")
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["nvidia.com/gpumem"]) - 1 < asked.memory_bound_mb
    assert int(limits["nvidia.com/gpumem"]) >= asked.memory_bound_mb
    assert int(limits["nvidia.com/gpucores"]) == asked.sm_percent <= 100
    assert "affinity" not in pod["spec"]


def test_slurm_gets_options_that_its_manual_has(asked):
    text = find_format("slurm").render(asked, name="wide", image="")
    first, *lines = text.splitlines()
    assert first == "#!/bin/sh"
    said = [line for line in lines if line.startswith("#SBATCH")]
    assert all(SBATCH.fullmatch(line) for line in said)
    assert f"#SBATCH --gres=gpu:a100_{asked.mig}:1" in said
    assert all(line.startswith("#") for line in lines)


@pytest.mark.parametrize("name", ["k8s", "kueue", "dra", "hami", "slurm"])
def test_the_resource_has_the_name_that_the_cluster_gives_it(asked, name):
    assert "my.site/a-slice" in find_format(name).render(
        replace(asked, resource="my.site/a-slice"), name="wide", image="i"
    )


def test_kubernetes_takes_what_is_written(asked, wide):
    """By the official schemas; they are 100 MB, and looked at where they are installed."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs the official schemas")
    for request in (asked, request_resources(wide, slices=False, devices="T4")):
        for name in ("k8s", "kueue", "dra", "hami"):
            for document in documents(request, name):
                if "kueue" not in document["apiVersion"]:
                    validate.validate(document, "1.37", strict=True)


def test_a_name_from_outside_stays_a_comment_and_a_text(wide):
    """A model's name may hold what YAML, a shell or a batch script would obey."""
    evil = 'a\nb: "c"\n#SBATCH --gres=gpu:99\n$(touch x)'
    found = request_resources(wide, model=evil)
    (pod,) = documents(found, "k8s")
    assert "\n" not in pod["metadata"]["annotations"]["dippm.io/model"]
    text = find_format("slurm").render(found, name="wide", image="")
    assert all(SBATCH.fullmatch(s) for s in text.splitlines() if s.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in text.splitlines())


def test_what_yaml_reads_is_what_was_written():
    document = {
        "text": [
            "yes",
            "1.5",
            "null",
            "a: b",
            "- x",
            "é",
            "",
            "ok",
            "#",
            "it's",
            '"',
            "\U0001f600",
            "\x7f",
        ],
        "empty": {"list": [], "map": {}},
        "deep": [{"a": [{"b": 1}, {"c": None, "d": [True, 0.5]}]}, {}],
        "on": "off",
    }
    assert list(yaml.safe_load_all(yaml_text([document, {"b": 2}], ["head"]))) == [
        document,
        {"b": 2},
    ]


def test_formats_are_found_by_name():
    assert [*all_formats()] == ["k8s", "kueue", "dra", "hami", "slurm"]
    assert len(BUILT_IN) == len(all_formats())
    with pytest.raises(UnknownNameError, match="k9s"):
        find_format("k9s")
    with pytest.raises(ConditionsError, match="does not stand in a pod"):
        parts_of("slurm")


def test_a_format_of_another_distribution_is_found(tmp_path):
    (tmp_path / "nomad.py").write_text(
        "NAME, SUMMARY = 'nomad', 'a job of Nomad'\n"
        "def render(request, *, name, image): return f'job {name} {request.place}\\n'\n"
    )
    info = tmp_path / "dippm_nomad-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: dippm-nomad\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dippm.schedulers]\nnomad = nomad\n")
    code = "from dippm.decide.scheduling import find_format; print(find_format('nomad').SUMMARY)"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "a job of Nomad\n", ran.stderr


@pytest.mark.parametrize(
    ("given", "model", "name"),
    [
        (None, "models/ResNet_50.onnx", "dippm-resnet-50-onnx"),
        (None, "timm:resnet50", "dippm-timm-resnet50"),
        (None, "é" * 200, "dippm"),
        (None, "x" * 200, "dippm-" + "x" * 44),
        ("mine", "x", "mine"),
    ],
)
def test_names_are_such_as_kubernetes_takes(given, model, name):
    assert object_name(given, model) == name


@pytest.mark.parametrize("given", ["", "A", "-a", "a-", "a" * 51, "a b", "a\n", "../a"])
def test_a_name_that_kubernetes_would_refuse_is_refused(given):
    with pytest.raises(ConditionsError, match="not the name of an object"):
        object_name(given, "x")


def test_the_command_writes_the_file_and_talks_to_stderr(onnx_file):
    words = ["request", str(onnx_file), "--slo-ms", "60", "--batch", "8"]

    def ran(*more):
        return CliRunner().invoke(app, [*words, *more])

    as_pod = "--format", "hami", "--name", "wide", "--image", "me/wide:1"
    command = [sys.executable, "-m", "dippm", *words, *as_pod]
    pod = subprocess.run(command, capture_output=True, text=True)
    assert pod.returncode == 0, pod.stderr
    (found,) = yaml.safe_load_all(pod.stdout)
    assert found["metadata"]["name"] == "wide"
    assert found["spec"]["containers"][0]["image"] == "me/wide:1"
    assert " verify        no command: the file runs in" in pod.stderr
    as_json = json.loads(ran("--format", "json").stdout)
    assert as_json["schema"] == "dippm.request/1"
    assert as_json["manifest"] is None
    refused = ran("--slo-ms", "0.001")
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert "--slo-ms" in refused.stderr
    assert json.loads(ran("--format", "cobalt", "--json").stdout)["error"]["type"] == (
        "UnknownNameError"
    )
