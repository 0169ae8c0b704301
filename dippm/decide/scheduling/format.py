"""`Format`: a way to write a request down for one scheduler.

To add one: a module with `NAME`, `SUMMARY` and `render`, and a row of `BUILT_IN` in `registry.py`;
from another distribution the same, under the entry point group `dippm.schedulers`. A format whose
request stands in a pod of Kubernetes has `parts`, too: the admission webhook takes those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dippm.decide.scheduling.request import ResourceRequest


@runtime_checkable
class Format(Protocol):
    """What a module of a format has.

    Attributes:
        NAME: as `--format` takes it.
        SUMMARY: what it writes, in a few words.
    """

    NAME: str
    SUMMARY: str

    def render(self, request: ResourceRequest, *, name: str, image: str) -> str:
        """Return the text of a file that the scheduler takes.

        Args:
            request: what is asked for.
            name: of what is made, as Kubernetes takes names.
            image: of the container that runs the model.
        """


@dataclass(frozen=True, slots=True)
class PodParts:
    """What a request adds to a pod of Kubernetes.

    Attributes:
        limits: extended resources of the container and how many; requests of them are the same.
        annotations: of the pod.
        products: values of the node label `nvidia.com/gpu.product` that will do; empty where they
            are not known, or another scheduler goes by an annotation.
    """

    limits: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    products: tuple[str, ...] = ()


Parts = Callable[[ResourceRequest], PodParts]
