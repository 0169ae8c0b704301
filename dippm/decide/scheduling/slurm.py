"""The head of a batch script for SLURM: `#SBATCH` lines, with their provenance as comments.

Types of `--gres` are site-specific (see `scontrol show node` and gres.conf). The usual ones are
written: the GPU in lower case, followed by the profile for a slice.
"""

from __future__ import annotations

from dippm.decide.scheduling.request import DOMAIN, ResourceRequest

NAME = "slurm"
SUMMARY = "the head of a batch script for sbatch"


def options(request: ResourceRequest, *, name: str) -> list[str]:
    """Return the options of sbatch."""
    return [f"--job-name={name}", "--nodes=1", f"--gres=gpu:{gres_type(request)}:1"]


def gres_type(request: ResourceRequest) -> str:
    """Return the type of the generic resource."""
    if request.resource:
        return request.resource
    family = request.device.name.partition("-")[0].casefold()
    return f"{family}_{request.mig}" if request.mig else family


def render(request: ResourceRequest, *, name: str, image: str) -> str:
    """Return the head of a batch script; `image` is not used."""
    lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in options(request, name=name))]
    comments = (f"# {key}: {text}" for key, text in request.annotations.items())
    lines += [
        f"# {DOMAIN}/note: the type of --gres is a name of the site, see gres.conf",
        *comments,
    ]
    return "\n".join(lines) + "\n"
