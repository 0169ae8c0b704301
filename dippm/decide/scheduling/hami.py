"""A pod that requests a part of a GPU from HAMi: memory in MiB and a share of multiprocessors.

HAMi limits how much a process may allocate and how often its kernels run; unlike MIG, it does not
partition caches and memory bandwidth. The latency was predicted for a MIG slice with this share, or
for the whole GPU, without other processes.
"""

from __future__ import annotations

from math import ceil

from dippm.decide.scheduling import kubernetes
from dippm.decide.scheduling.format import PodParts
from dippm.decide.scheduling.manifest import yaml_text
from dippm.decide.scheduling.request import ResourceRequest

NAME = "hami"
SUMMARY = "a pod of Kubernetes with HAMi's memory and cores"


def parts(request: ResourceRequest) -> PodParts:
    """Return the fields that the request adds to a pod."""
    limits = {
        request.resource or "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(ceil(request.memory_bound_mb)),
        "nvidia.com/gpucores": str(request.sm_percent),
    }
    family = request.device.name.partition("-")[0]
    kinds = {"nvidia.com/use-gputype": ",".join(request.products) or family}
    return PodParts(limits, {**request.annotations, **kinds})


def render(request: ResourceRequest, *, name: str, image: str) -> str:
    """Return the pod."""
    comments = [
        "HAMi shares a GPU without giving caches and bandwidth apart: the latency holds without a",
        "neighbour on the same GPU.",
    ]
    return yaml_text([kubernetes.pod(parts(request), name=name, image=image)], comments)
