"""Searches design spaces: the best architecture, batch, precision and place under constraints.

`space.py` and `objectives.py` (with constraints) state the question; `search.py` is the search.
`study.py` wraps Optuna, `evaluation.py` evaluates designs in a worker, `worker_pool.py` assigns
tasks to workers, `engines.py` runs the workers here or on a cluster.
"""

from __future__ import annotations

from dippm.decide.exploration.design import Architecture, Choices, Design, Floats, Ints
from dippm.decide.exploration.errors import (
    ContradictionError,
    ExploreError,
    ExploreNotInstalledError,
    NoFeasibleDesignError,
    StudyInUseError,
    StudyMismatchError,
    WorkersLostError,
)
from dippm.decide.exploration.objectives import (
    QUANTITIES,
    Constraint,
    Objective,
    macs_proxy,
    weights_proxy,
)
from dippm.decide.exploration.results import EvaluatedDesign, Exploration
from dippm.decide.exploration.search import explore
from dippm.decide.exploration.space import Space

__all__ = [
    "QUANTITIES",
    "Architecture",
    "Choices",
    "Constraint",
    "ContradictionError",
    "Design",
    "EvaluatedDesign",
    "Exploration",
    "ExploreError",
    "ExploreNotInstalledError",
    "Floats",
    "Ints",
    "NoFeasibleDesignError",
    "Objective",
    "Space",
    "StudyInUseError",
    "StudyMismatchError",
    "WorkersLostError",
    "explore",
    "macs_proxy",
    "weights_proxy",
]
