"""Budgets: what models may cost, and whether they do; `dippm check` asks."""

from dippm.decide.budgets.budget import Budget, Tolerance, read_budgets
from dippm.decide.budgets.checking import Check, Checked, Finding, check
from dippm.decide.budgets.first import first_budgets

__all__ = [
    "Budget",
    "Check",
    "Checked",
    "Finding",
    "Tolerance",
    "check",
    "first_budgets",
    "read_budgets",
]
