"""Budgets: upper limits of what models cost, and the check behind `dippm check`."""

from dippm.decide.budgets.budget import Budget, Tolerance, read_budgets
from dippm.decide.budgets.checking import Check, ModelCheck, QuantityCheck, check
from dippm.decide.budgets.first import first_budgets

__all__ = [
    "Budget",
    "Check",
    "ModelCheck",
    "QuantityCheck",
    "Tolerance",
    "check",
    "first_budgets",
    "read_budgets",
]
