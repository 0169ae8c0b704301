"""An admission webhook of Kubernetes: pods that name a model get the resources that it needs.

A pod with the annotation `dippm.io/model` gets limits for its first container (or the one that
`dippm.io/container` names), an affinity to nodes with the GPU, and annotations with the reasons.
Its own requests are kept. Other annotations are options of `dippm request`: `dippm.io/slo-ms`,
`dippm.io/batch`, `dippm.io/devices`, `dippm.io/precision`, `dippm.io/probability`,
`dippm.io/input`, `dippm.io/format` (k8s or hami).

Without an answer in time, a webhook that fails open admits the pod unchanged, with a warning; one
that fails closed refuses it, with the reason.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from dippm.base.printable import legible, printable
from dippm.decide.scheduling.request import DOMAIN, node_affinity
from dippm.errors import DippmError
from dippm.show.service.questions import ForScheduler, ModelAtPath

API_VERSION = "admission.k8s.io/v1"
MODEL = f"{DOMAIN}/model"
OPTIONS = {
    "slo-ms": "slo_ms",
    "batch": "batch",
    "devices": "devices",
    "precision": "precision",
    "probability": "probability",
    "input": "input",
    "phase": "phase",
    "format": "format",
}
"""Annotation of a pod, without the domain → field of the question."""
GPU_DOMAINS = ("nvidia.com/", "amd.com/", "gpu.intel.com/")
"""Domains of GPU resources; a container that requests one is left alone."""
LONGEST_WARNING = 200
"""Length above which Kubernetes truncates warnings."""


class AdmissionRequest(BaseModel):
    """The `request` of an AdmissionReview; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    uid: Annotated[StrictStr, Field(min_length=1, max_length=200)]
    kind: dict[str, Any] = Field(default_factory=dict)
    operation: str = ""
    object: dict[str, Any] | None = None


class AdmissionReview(BaseModel):
    """An AdmissionReview from the API server."""

    model_config = ConfigDict(extra="ignore")
    apiVersion: Annotated[StrictStr, Field(pattern=f"^{API_VERSION}$")]  # noqa: N815
    kind: Annotated[StrictStr, Field(pattern="^AdmissionReview$")]
    request: AdmissionRequest


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The model question of a pod.

    Attributes:
        question: question about the model.
        container: index of the container that gets the resources.
        pod: manifest of the pod.
    """

    question: ForScheduler
    container: int
    pod: Mapping[str, Any]


def wanted_by(request: AdmissionRequest) -> PodRequest | str:
    """Return the question of a pod, or why the pod is left alone.

    Raises:
        ValueError: if its annotations are not valid.
    """
    pod = request.object or {}
    if request.kind.get("kind") != "Pod" or request.operation not in ("CREATE", ""):
        return "not a pod that is created"
    annotations = _mapping(_mapping(pod, "metadata"), "annotations")
    model = annotations.get(MODEL)
    if model is None:
        return f"no annotation {MODEL}"
    containers = _mapping(pod, "spec").get("containers")
    if not isinstance(containers, list) or not all(isinstance(c, dict) for c in containers):
        raise ValueError("spec.containers is not a list of containers")
    place = _container(containers, annotations.get(f"{DOMAIN}/container"))
    if own := next(_own_resources(containers[place]), None):
        return f"the container asks for {own} itself"
    given: dict[str, Any] = {
        field: annotations[f"{DOMAIN}/{name}"]
        for name, field in OPTIONS.items()
        if f"{DOMAIN}/{name}" in annotations
    }
    if not all(isinstance(value, str) for value in (model, *given.values())):
        raise ValueError("annotations are no texts")
    if "devices" in given:
        given["devices"] = [name.strip() for name in given["devices"].split(",")]
    given["format"] = f"pod:{given.get('format', 'k8s')}"
    is_name = ":" in model and not model.startswith("/")
    return PodRequest(
        ForScheduler(model=model if is_name else ModelAtPath(path=model), **given), place, pod
    )


def patch_of(wanted: PodRequest, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON Patch that applies an answer to a pod.

    Args:
        wanted: question of the pod.
        answer: `dippm.request/1` document with `pod`.
    """
    parts, spec = answer["pod"], wanted.pod["spec"]
    container = spec["containers"][wanted.container]
    at = f"/spec/containers/{wanted.container}/resources"
    patch: list[dict[str, Any]] = []
    resources = container.get("resources")
    if not isinstance(resources, dict):
        patch.append({"op": "add", "path": at, "value": {}})
        resources = {}
    for kind in ("limits", "requests"):
        if not isinstance(resources.get(kind), dict):
            patch.append({"op": "add", "path": f"{at}/{kind}", "value": {}})
        patch += [
            {"op": "add", "path": f"{at}/{kind}/{_escape(name)}", "value": amount}
            for name, amount in parts["limits"].items()
        ]
    own = _mapping(_mapping(wanted.pod, "metadata"), "annotations")
    patch += [
        {"op": "add", "path": f"/metadata/annotations/{_escape(name)}", "value": text}
        for name, text in parts["annotations"].items()
        if name not in own
    ]
    if parts["products"]:
        patch += _affinity(spec, tuple(parts["products"]))
    return patch


def review(
    uid: str,
    *,
    allowed: bool = True,
    patch: list[dict[str, Any]] | None = None,
    warnings: tuple[str, ...] = (),
    message: str = "",
    code: int = 403,
) -> dict[str, Any]:
    """Return the AdmissionReview response to a request."""
    response: dict[str, Any] = {"uid": uid, "allowed": allowed}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    if warnings:
        response["warnings"] = [_short(warning) for warning in warnings]
    if not allowed:
        response["status"] = {"code": code, "message": _short(message, 1000)}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def without_answer(uid: str, error: DippmError | str, *, fails_open: bool, code: int) -> Any:
    """Return the AdmissionReview response for a pod without an answer."""
    why = error if isinstance(error, str) else f"{error.message}. {error.hint}".strip()
    if fails_open:
        return review(uid, warnings=(f"dippm gave no resources: {why}",))
    return review(uid, allowed=False, message=f"dippm: {why}", code=code)


def _affinity(spec: Mapping[str, Any], products: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return patches that restrict a pod to nodes with given GPUs, on top of its own affinity.

    Terms of a selector are alternatives, so each of them gets the expression.
    """
    wanted = node_affinity(products)
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = spec.get("affinity")
    if not isinstance(affinity, dict):
        return [{"op": "add", "path": "/spec/affinity", "value": wanted}]
    of_node = affinity.get("nodeAffinity")
    if not isinstance(of_node, dict):
        path, value = "/spec/affinity/nodeAffinity", wanted["nodeAffinity"]
        return [{"op": "add", "path": path, "value": value}]
    required = of_node.get(key)
    terms = required.get("nodeSelectorTerms") if isinstance(required, dict) else None
    at = f"/spec/affinity/nodeAffinity/{key}"
    if not isinstance(terms, list) or not terms:
        return [{"op": "add", "path": at, "value": wanted["nodeAffinity"][key]}]
    (mine,) = wanted["nodeAffinity"][key]["nodeSelectorTerms"]
    merged = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *mine[
            "matchExpressions"]]}
        for term in terms
        if isinstance(term, dict)
    ]  # fmt: skip
    return [{"op": "replace", "path": f"{at}/nodeSelectorTerms", "value": merged}]


def _container(containers: list[dict[str, Any]], name: Any) -> int:
    if not containers:
        raise ValueError("the pod has no container")
    if name is None:
        return 0
    names = [container.get("name") for container in containers]
    if name not in names:
        raise ValueError(f"no container has the name {name!r}")
    return names.index(name)


def _own_resources(container: Mapping[str, Any]) -> Iterator[str]:
    resources = _mapping(container, "resources")
    for kind in ("limits", "requests"):
        yield from (n for n in _mapping(resources, kind) if n.startswith(GPU_DOMAINS))
    if resources.get("claims"):
        yield "a resource claim"


def _mapping(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def _escape(name: str) -> str:
    """Escape a key for a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _short(text: str, most: int = LONGEST_WARNING) -> str:
    plain = printable(legible(text))
    return plain if len(plain) <= most else plain[: most - 3] + "..."
