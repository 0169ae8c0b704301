"""A pod whose container requests a GPU or a slice by the names of NVIDIA's device plugin.

Slices have separate names with `MIG_STRATEGY=mixed` of the plugin. A node without the label
`nvidia.com/gpu.product`, which GPU feature discovery sets, does not accept such a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dippm.decide.scheduling.format import PodParts
from dippm.decide.scheduling.manifest import yaml_text
from dippm.decide.scheduling.request import ResourceRequest, label_values, node_affinity

NAME = "k8s"
SUMMARY = "a pod of Kubernetes for NVIDIA's device plugin"


def parts(request: ResourceRequest) -> PodParts:
    """Return the fields that the request adds to a pod."""
    usual = f"nvidia.com/mig-{request.mig}" if request.mig else "nvidia.com/gpu"
    limits = {request.resource or usual: "1"}
    return PodParts(limits, request.annotations, label_values(request.products))


def render(request: ResourceRequest, *, name: str, image: str) -> str:
    """Return the pod."""
    return yaml_text([pod(parts(request), name=name, image=image)])


def pod(
    of: PodParts, *, name: str, image: str, claim: str | None = None, kind: str = "Pod"
) -> Mapping[str, Any]:
    """Return a pod, or with kind "template" the pod template of a Job.

    Args:
        of: fields that the request adds.
        name: name of the pod.
        image: image of its container.
        claim: name of the claim template of the container's device; None without one.
        kind: "Pod" or "template".
    """
    resources: dict[str, Any] = {"limits": dict(of.limits)} if of.limits else {}
    spec: dict[str, Any] = {"restartPolicy": "Never"}
    if of.products:
        spec["affinity"] = node_affinity(of.products)
    if claim is not None:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
        resources["claims"] = [{"name": "gpu"}]
    spec["containers"] = [{"name": "model", "image": image, "resources": resources}]
    metadata = {"annotations": dict(of.annotations)}
    if kind == "template":
        return {"metadata": metadata, "spec": spec}
    head = {"apiVersion": "v1", "kind": "Pod"}
    return {**head, "metadata": {"name": name, **metadata}, "spec": spec}
