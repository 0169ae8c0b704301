"""Names of Kubernetes objects."""

from __future__ import annotations

import re

from dippm.errors import ConditionsError, shortened
from dippm.model.convert import source_name

MOST = 50
"""Largest length; Kubernetes allows 63, and the pods of a job append a suffix."""
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MOST - 2}}}[a-z0-9])?")


def object_name(given: str | None, model: str) -> str:
    """Return the given name, or else the model's name in valid characters.

    Raises:
        ConditionsError: if the given name is not valid.
    """
    if given is not None:
        if not _NAME.fullmatch(given):
            raise ConditionsError(
                f"{shortened(given)!r} is not the name of an object",
                f"Give small letters, digits and hyphens, {MOST} at most: name=resnet50.",
            )
        return given
    plain = re.sub(r"[^a-z0-9]+", "-", source_name(model).casefold().replace(":", "-"))
    return f"dippm-{plain}"[:MOST].strip("-")
