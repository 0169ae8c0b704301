"""Formats of resource requests, one per scheduler: their interface, and their registry by name.

To add a format, write a module with `NAME`, `SUMMARY` and `render`, and list it in `BUILT_IN`; from
another distribution, register the module under the entry point group `dippm.schedulers`. A format
whose request fits into a Kubernetes pod also has `parts`, for the admission webhook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol, cast, runtime_checkable

from dippm.decide.scheduling.request import ResourceRequest
from dippm.errors import ConditionsError, UnknownNameError


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
            request: place for a model.
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


# Formats by name: those of this package, and entry points of the group `dippm.schedulers`.

BUILT_IN = ("kubernetes", "kueue", "dra", "hami", "slurm")
GROUP = "dippm.schedulers"


def all_formats() -> dict[str, Format]:
    """Return every format by its name; an entry point never replaces a built-in one."""
    ours = [import_module(f"dippm.decide.scheduling.{module}") for module in BUILT_IN]
    found = {module.NAME: cast(Format, module) for module in ours}
    for entry in entry_points(group=GROUP):
        if entry.name not in found:
            found[entry.name] = _loaded(entry)
    return found


def find_format(name: str) -> Format:
    """Return the format with a name.

    Raises:
        UnknownNameError: if there is no such format.
    """
    known = all_formats()
    if name not in known:
        raise UnknownNameError.of("format", name, [*known, "json"])
    return known[name]


def parts_of(name: str) -> Parts:
    """Return the function of a format that builds the parts of a pod.

    Raises:
        UnknownNameError: if there is no such format.
        ConditionsError: if the format needs more than a pod.
    """
    found = getattr(find_format(name), "parts", None)
    if found is None:
        able = ", ".join(n for n, one in all_formats().items() if hasattr(one, "parts"))
        raise ConditionsError(
            f"a request in the format {name} does not stand in a pod alone",
            f"Take one of {able}; `dippm request` writes the others to a file.",
        )
    return cast(Parts, found)


def _loaded(entry: Any) -> Format:
    module = entry.load()
    if not isinstance(module, Format):
        raise ConditionsError(
            f"the format {entry.name} of {entry.value} has no NAME, SUMMARY and render",
            "Follow dippm/decide/scheduling/format.py, or remove the distribution.",
        )
    return module
