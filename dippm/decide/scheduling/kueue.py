"""A flavour of Kueue for the GPUs that will do, and a job that waits in a queue for one.

The flavour is the administrator's: a ClusterQueue names it, with how many there are. The job's
queue is the label `kueue.x-k8s.io/queue-name`; Kueue starts it (`suspend: true` until then).
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
    """Return the flavours, one for each name of the GPU, and the job."""
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
    # The flavour that Kueue assigns says which nodes: an affinity beside it could contradict it.
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
