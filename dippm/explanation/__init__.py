"""Why a prediction is what it is: by operator and module, against another one, and what if."""

from dippm.explanation.changes import WhatIf, what_if
from dippm.explanation.difference import Difference, diff
from dippm.explanation.explanation import Explanation, explain

__all__ = ["Difference", "Explanation", "WhatIf", "diff", "explain", "what_if"]
