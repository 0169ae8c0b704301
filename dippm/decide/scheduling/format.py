"""`Format`: writes a request for one scheduler.

To add one: a module with `NAME`, `SUMMARY` and `render`, and a row of `BUILT_IN` in `registry.py`;
from another distribution the same, under the entry point group `dippm.schedulers`. A format that
writes its request into a Kubernetes pod also has `parts`, for the admission webhook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dippm.decide.scheduling.request import ResourceRequest


@runtime_checkable
class Format(Protocol):
    """Interface of a format's module.

    Attributes:
        NAME: name of the format, as `--format` takes it.
        SUMMARY: short description of its output.
    """

    NAME: str
    SUMMARY: str

    def render(self, request: ResourceRequest, *, name: str, image: str) -> str:
        """Return the text of a file for the scheduler.

        Args:
            request: the resource request.
            name: name of the objects, valid in Kubernetes.
            image: image of the container that runs the model.
        """


@dataclass(frozen=True, slots=True)
class PodParts:
    """Fields that a request adds to a Kubernetes pod.

    Attributes:
        limits: number of each extended resource of the container; requests equal limits.
        annotations: annotations of the pod.
        products: accepted values of the node label `nvidia.com/gpu.product`; empty if they are not
            known, or if the scheduler uses an annotation instead.
    """

    limits: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    products: tuple[str, ...] = ()


Parts = Callable[[ResourceRequest], PodParts]
