"""Table 1 of D3.5: ten families, their numbers of graphs, and our choice of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, zip_longest

from dataset.families.family import Family, Sizes, Workload
from dataset.families.grids import image_sizes
from dataset.families.registry import family as find_family
from dataset.join import shipped_graphs
from dataset.join.grouping import bare_name

GRAPHS = {
    "efficientnet": 1729,
    "mnasnet": 1001,
    "mobilenet": 1591,
    "resnet": 1152,
    "vgg": 1536,
    "swin": 547,
    "vit": 520,
    "densenet": 768,
    "visformer": 768,
    "poolformer": 896,
}
"""Graphs by family, 10,508 in all."""
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128)
"""Batches of each model; D3.5 has 2 to 128 in its Table 4, but no list."""
IMAGE_SIZES = 8
"""Number of image sizes per member of our own families, more than a measured plan needs."""


def models_of(name: str) -> list[str]:
    """Return the models of a family in order of use.

    Members of our own families and models of timm take turns. Published members come first, then
    others, one image size after the other, so that a short list has every architecture before any
    second size. Models of timm are those with shipped graphs.

    Args:
        name: name of a family in `GRAPHS`.
    """
    pairs = zip_longest(_own(find_family(name)), _of_timm(name))
    return [model for model in chain.from_iterable(pairs) if model is not None]


def _own(family: Family) -> Iterator[str]:
    members = list(family.grid())
    offered = [_sizes(family)(member) for member in members]
    for turn in range(max(map(len, offered))):
        for member, sizes in zip(members, offered, strict=True):
            if turn < len(sizes):
                yield Workload(family.name, member, sizes[turn]).model


def _sizes(family: Family) -> Callable[..., list[Sizes]]:
    if family.sizes is image_sizes:
        return lambda member: image_sizes(member, count=IMAGE_SIZES)
    return lambda member: list(family.sizes(member))


def _of_timm(name: str) -> Iterator[str]:
    """Yield models of timm with the family's name, each architecture at one size first."""
    later = []
    seen = set()
    for model in _shipped_models():
        if not bare_name(model).startswith(name):
            continue
        if bare_name(model) in seen:
            later.append(model)
        else:
            seen.add(bare_name(model))
            yield model
    yield from later


@cache
def _shipped_models() -> tuple[str, ...]:
    return tuple(model for model, _ in shipped_graphs.graphs() if model.startswith("timm:"))
