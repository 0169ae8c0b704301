"""The token that starts the runs of a workload: each takes a byte of it out of one pipe."""

from __future__ import annotations

import os

GO = b"g"


class Gate:
    """A pipe that every run of a workload waits at.

    Attributes:
        theirs: the end that they read.
    """

    def __init__(self) -> None:
        self.theirs, self._ours = os.pipe()

    def open(self, count: int) -> None:
        """Let that many start."""
        os.write(self._ours, GO * count)

    def close(self) -> None:
        """Send those away that still wait."""
        os.close(self.theirs)
        os.close(self._ours)
