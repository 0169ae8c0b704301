"""Explains a prediction: by operator and module, against another one, and under changes."""

from dippm.decide.explanation.changes import WhatIf, what_if
from dippm.decide.explanation.difference import Difference, diff
from dippm.decide.explanation.explanation import Explanation, explain

__all__ = ["Difference", "Explanation", "WhatIf", "diff", "explain", "what_if"]
