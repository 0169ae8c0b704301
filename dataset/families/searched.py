"""Families as architectures of a design space, see `dippm.explore`.

space = dippm.Space(architecture("mobilenet", version=2), device="A100", mig="1g.5gb")
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dataset.families.family import Parameters, Scalar, Sizes
from dataset.families.registry import family
from dippm.decide.exploration import Architecture, ExploreError

if TYPE_CHECKING:
    import torch


def architecture(name: str, sizes: Sizes | None = None, **fixed: Scalar) -> Architecture:
    """Return a family as an architecture with an axis per parameter, of its members' values.

    Not every combination is a member of the family or even valid: one that cannot be built
    becomes a row with its reason.

    Args:
        name: name of the family.
        sizes: sizes of one sample; None for the first sizes of the family's first member.
        fixed: parameters with a fixed value, such as version=2 of "mobilenet".

    Raises:
        UnknownNameError: if there is no such family.
        ExploreError: if no member has these values, or members have different parameters.
    """
    kind = family(name)
    members = [m for m in kind.grid() if all(m.get(key) == value for key, value in fixed.items())]
    if not members:
        raise ExploreError(f"no member of {name} has {fixed}", "See the grid of the family.")
    if any(set(member) != set(members[0]) for member in members):
        differing = sorted(set().union(*members) - set(members[0]).intersection(*members))
        raise ExploreError(
            f"members of {name} differ in whether they have {', '.join(differing)}",
            f"Fix what decides it, for instance {_first_of(members)}.",
        )
    chosen = tuple(sizes or kind.sizes(members[0])[0])
    axes = {key: list(dict.fromkeys(m[key] for m in members)) for key in members[0]}
    return Architecture.of(
        partial(_build, name, chosen), axes, input=partial(_input, name, chosen), name=name
    )


def _build(name: str, sizes: Sizes, **parameters: Any) -> torch.nn.Module:
    return family(name).build(parameters, sizes).eval()


def _input(name: str, sizes: Sizes, parameters: Parameters) -> Sizes | dict[str, Sizes]:
    """Return the sizes of the only input, or of each input by name."""
    import torch

    inputs = family(name).inputs(parameters, sizes)
    if len(inputs) == 1:
        return inputs[0].shape
    with torch.device("meta"):
        module = family(name).build(parameters, sizes)
    names = inspect.signature(module.forward).parameters
    return {key: one.shape for key, one in zip(names, inputs, strict=False)}


def _first_of(members: Sequence[Mapping[str, Any]]) -> str:
    key, value = next(iter(members[0].items()))
    return f"{key}={value!r}"
