"""`UndoOutcome`: what became of one thing that had to be undone."""

from __future__ import annotations

from typing import Literal, NamedTuple


class UndoOutcome(NamedTuple):
    """What became of a slice or server of ours.

    Attributes:
        kind: "undone"; "nothing" if it had never been made; "changed" if someone else had removed
            or taken it, so that nothing of ours is left; "left" if it could not be undone yet.
        message: a sentence, "" if there is nothing to say.
    """

    kind: Literal["undone", "nothing", "changed", "left"]
    message: str = ""
