"""Names of objects, as Kubernetes takes them."""

from __future__ import annotations

import re

from dippm.errors import ConditionsError, shortened
from dippm.model.convert import source_name

MOST = 50
"""Characters; Kubernetes takes 63, and a job's pods have more behind it."""
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MOST - 2}}}[a-z0-9])?")


def object_name(given: str | None, model: str) -> str:
    """Return a name: the one that was given, else the model's in such characters.

    Raises:
        ConditionsError: if the given one is none.
    """
    if given is not None:
        if not _NAME.fullmatch(given):
            raise ConditionsError(
                f"{shortened(given)!r} is no name of an object",
                f"Give small letters, digits and hyphens, {MOST} at most: name=resnet50.",
            )
        return given
    plain = re.sub(r"[^a-z0-9]+", "-", source_name(model).casefold().replace(":", "-"))
    return f"dippm-{plain}"[:MOST].strip("-")
