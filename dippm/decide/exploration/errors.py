"""Errors of a search in a design space.

ExploreError                     the question is none: a space, an objective, a constraint
├── ContradictionError           constraints that no design can meet, whatever the space holds
├── StudyMismatchError           the study in the storage was made for another question
└── StudyInUseError              another process searches the study
ExploreNotInstalledError         Optuna, or Ray, is missing
NoFeasibleDesignError            nothing that was tried meets the constraints; it has what was
WorkersLostError                 worker after worker ended; what was tried is kept
"""

from __future__ import annotations

from typing import Any

from dippm.errors import DippmError


class ExploreError(DippmError, ValueError):
    """A space, an objective or a constraint is wrong."""


class ContradictionError(ExploreError):
    """No design can meet these constraints, whatever the space holds."""


class StudyMismatchError(ExploreError):
    """The study in the storage was made for another space, or other objectives."""


class StudyInUseError(DippmError, RuntimeError):
    """Another process searches this study."""


class ExploreNotInstalledError(DippmError, ImportError):
    """A library that the search needs is missing."""


class WorkersLostError(DippmError, RuntimeError):
    """The processes that convert designs end one after the other."""


class NoFeasibleDesignError(DippmError, RuntimeError):
    """Nothing that was tried meets the constraints.

    Attributes:
        exploration: the `Exploration` of everything that was tried, with the reasons.
    """

    def __init__(self, message: str, hint: str, exploration: Any) -> None:
        super().__init__(message, hint)
        self.exploration = exploration
