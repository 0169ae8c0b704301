"""Design spaces: which architecture, batch, precision and place is best, under which constraints.

`space.py` says what is searched, `objectives.py` what for, `constraints.py` under which limits;
`search.py` is the search. `study.py` is Optuna's part, `evaluation.py` what a worker does with a
design, `crew.py` which worker does it, `local.py` and `cluster.py` where workers run.
"""

from __future__ import annotations

from dippm.decide.exploration.axes import Choices, Floats, Ints
from dippm.decide.exploration.constraints import Constraint
from dippm.decide.exploration.design import Architecture, Design
from dippm.decide.exploration.errors import (
    ContradictionError,
    ExploreError,
    ExploreNotInstalledError,
    NoFeasibleDesignError,
    StudyInUseError,
    StudyMismatchError,
    WorkersLostError,
)
from dippm.decide.exploration.objectives import Objective, macs_proxy, weights_proxy
from dippm.decide.exploration.quantities import QUANTITIES
from dippm.decide.exploration.results import Exploration, Tried
from dippm.decide.exploration.search import explore
from dippm.decide.exploration.space import Space

__all__ = [
    "QUANTITIES",
    "Architecture",
    "Choices",
    "Constraint",
    "ContradictionError",
    "Design",
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
    "Tried",
    "WorkersLostError",
    "explore",
    "macs_proxy",
    "weights_proxy",
]
