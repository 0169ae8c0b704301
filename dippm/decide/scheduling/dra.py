"""A ResourceClaimTemplate for NVIDIA's DRA driver, with CEL selectors, and a pod that uses it.

The driver (`gpu.nvidia.com`) publishes slices with `profile` and `productName` of their GPU, and
usable memory as capacity. For a GPU without known product names, the memory decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from dippm.decide.scheduling import kubernetes
from dippm.decide.scheduling.format import PodParts
from dippm.decide.scheduling.manifest import yaml_text
from dippm.decide.scheduling.request import ResourceRequest

NAME = "dra"
SUMMARY = "a ResourceClaimTemplate (resource.k8s.io/v1) with CEL selectors, and a pod"
DRIVER = "gpu.nvidia.com"


def render(request: ResourceRequest, *, name: str, image: str) -> str:
    """Return the claim template and the pod."""
    usual = "mig.nvidia.com" if request.mig else DRIVER
    exactly = {
        "deviceClassName": request.resource or usual,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": text}} for text in selectors(request)],
    }
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{name}-gpu", "annotations": request.annotations},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    parts = PodParts({}, request.annotations)
    return yaml_text([template, kubernetes.pod(parts, name=name, image=image, claim=f"{name}-gpu")])


def selectors(request: ResourceRequest) -> Iterator[str]:
    """Yield CEL expressions, all of which a device has to meet."""
    attributes, capacity = f"device.attributes['{DRIVER}']", f"device.capacity['{DRIVER}']"
    if request.mig:
        yield f"{attributes}.profile == '{request.mig}'"
    if request.products:
        names = ", ".join(f"'{product}'" for product in request.products)
        yield f"{attributes}.productName in [{names}]"
    needs_mb = ceil(request.memory_bound_mb)
    yield f"{capacity}.memory.compareTo(quantity('{needs_mb}Mi')) >= 0"
