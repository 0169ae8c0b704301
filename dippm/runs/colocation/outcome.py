"""`UndoOutcome`: the result of undoing one change."""

from __future__ import annotations

from typing import Literal, NamedTuple


class UndoOutcome(NamedTuple):
    """The result of undoing one of our slices or servers.

    Attributes:
        kind: "undone"; "nothing" if it had never been created; "changed" if others removed or took
            it, so that nothing of ours remains; "left" if it could not be undone yet.
        message: one sentence, "" for none.
    """

    kind: Literal["undone", "nothing", "changed", "left"]
    message: str = ""
