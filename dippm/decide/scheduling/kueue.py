"""A Kueue flavour for suitable GPUs, and a job that waits in a queue for one.

The administrator owns the flavour: a ClusterQueue names it with its quota. The label
`kueue.x-k8s.io/queue-name` names the job's queue; Kueue starts it (`suspend: true` until then).
"""

from __future__ import annotations

from dippm.decide.scheduling import kubernetes
from dippm.decide.scheduling.format import PodParts
from dippm.decide.scheduling.manifest import yaml_text
from dippm.decide.scheduling.request import ResourceRequest, label_values

NAME = "kueue"
SUMMARY = "a ResourceFlavor and a Job of Kueue"
QUEUE = "user-queue"


def render(request: ResourceRequest, *, name: str, image: str) -> str:
    """Return the flavours, one per product name of the GPU, and the job."""
    of = kubernetes.parts(request)
    products = label_values(request.products)
    flavours = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": product.casefold()},
            "spec": {"nodeLabels": {"nvidia.com/gpu.product": product}},
        }
        for product in products
    ]
    # The flavour that Kueue assigns selects the nodes: an affinity of the job could contradict it.
    template = kubernetes.pod(
        PodParts(of.limits, of.annotations), name=name, image=image, kind="template"
    )
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {"kueue.x-k8s.io/queue-name": QUEUE},
            "annotations": request.annotations,
        },
        "spec": {"suspend": True, "template": template},
    }
    covered = ", ".join(of.limits)
    comments = [
        f"A ClusterQueue covers {covered} with these flavours and says how many there are;",
        f"the LocalQueue {QUEUE} of the job's namespace points to it.",
    ]
    return yaml_text([*flavours, job], comments)
