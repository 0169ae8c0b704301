"""`check`: compares models with their budgets and with a baseline."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.api import predict
from dippm.base.answer import Answer
from dippm.base.files import beginning, shown
from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.base.progress import stage
from dippm.base.written import is_finite
from dippm.decide.budgets.budget import QUANTITIES, Budget, Tolerance, read_budgets
from dippm.devices import Device
from dippm.errors import BudgetError, DippmError, ModelFileError, UnexpectedError, shortened
from dippm.estimate.models.targets import Interval
from dippm.estimate.prediction import Prediction
from dippm.model.frontends.limits import DEFAULT_MEMORY_LIMIT_MB, DEFAULT_TIMEOUT_S

UNITS = {"latency_ms": "ms", "memory_mb": "MB", "energy_j": "J"}
MOST_BYTES = 64 << 20
BYTES_PER_PARAMETER = 4
"""Graphs hold parameters as float32, see `dippm.model.graph.float_type`."""


@dataclass(frozen=True, slots=True)
class QuantityCheck:
    """One quantity of a model, compared with its limits.

    Attributes:
        quantity: name in `QUANTITIES`.
        value: predicted value; for "slice" the smallest one that suffices; None if not known.
        held: value compared with the limit: the upper end of the interval, or `value`.
        limit: largest allowed `held`; None without a limit.
        baseline: former `value`; None without a baseline.
        most: largest `value` that the baseline and its tolerance allow; None without a baseline.
        reason: why the quantity fails; "" if it passes.
    """

    quantity: str
    value: float | str | None
    held: float | str | None = None
    limit: float | str | None = None
    baseline: float | str | None = None
    most: float | str | None = None
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether the quantity is within its limit and its baseline."""
        return not self.reason

    @property
    def change_percent(self) -> float | None:
        """Difference from the baseline in percent; None without one, and for a slice."""
        now, then = self.value, self.baseline
        if isinstance(now, str) or isinstance(then, str) or not now or not then:
            return None
        return 100 * (now / then - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        return {
            "quantity": self.quantity,
            "unit": UNITS.get(self.quantity),
            "value": self.value,
            "held": self.held,
            "limit": self.limit,
            "baseline": self.baseline,
            "most": self.most,
            "change_percent": self.change_percent,
            "passed": self.passed,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """One model, compared with its budget.

    Attributes:
        budget: the budget.
        findings: result for each quantity; empty if the model could not be predicted.
        prediction: prediction of the model; None if it failed.
        error: why it failed; None otherwise.
    """

    budget: Budget
    findings: tuple[QuantityCheck, ...] = ()
    prediction: Prediction | None = None
    error: DippmError | None = None

    @property
    def passed(self) -> bool:
        """Whether the model was predicted and every quantity passes."""
        return self.error is None and all(finding.passed for finding in self.findings)

    @property
    def why_not(self) -> str:
        """Why the model could not be predicted, and the next step; "" if it was."""
        return f"{self.error.message}. {self.error.hint}".strip() if self.error else ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data, without operators."""
        p = self.prediction
        document = None if p is None else p.to_dict()
        return {
            "name": self.budget.name,
            "model": self.budget.python or Path(self.budget.model).name,
            "line": self.budget.line,
            "at": self.budget.at,
            "tolerance": str(self.budget.tolerance),
            "conditions": document and document["conditions"],
            "checkpoint": document and document["provenance"]["checkpoint"],
            "verify": document and document["verify"],
            "absent": document and document["absent"],
            "passed": self.passed,
            "error": self.error and self.error.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Check(Answer):
    """All models of a file, compared with their budgets.

    Attributes:
        models: result for each model, in the order of the file.
        file: path of the budgets, as given.
        baseline: path of the baseline; "" without one.
        remarks: further remarks, such as models that the baseline lacks.
    """

    models: tuple[ModelCheck, ...]
    file: str
    baseline: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every model passes."""
        return all(model.passed for model in self.models)

    @property
    def failures(self) -> Iterator[tuple[ModelCheck, str, str]]:
        """Yield (model, quantity, reason) of every failure; quantity is "" without a prediction."""
        for model in self.models:
            if model.error is not None:
                yield model, "", model.why_not
            for finding in model.findings:
                if finding.reason:
                    yield model, finding.quantity, finding.reason

    def raise_if_not(self) -> Check:
        """Return the check if every model passes.

        Raises:
            BudgetError: if one does not; names every failure.
        """
        failed = [f"{m.budget.name}: {why}" for m, _, why in self.failures]
        if failed:
            raise BudgetError(
                f"{len(failed)} of the budgets are exceeded; the first, {failed[0]}",
                "Make the model cheaper, or raise the limit.",
            )
        return self

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per model and quantity, one for a model without prediction."""
        return [
            {"model": model.budget.name, **finding.to_dict()}
            for model in self.models
            for finding in model.findings
            or [QuantityCheck("prediction", None, reason=model.why_not)]
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data, which can serve as a baseline."""
        return {
            "passed": self.passed,
            "file": self.file,
            "baseline": self.baseline or None,
            "models": [model.to_dict() for model in self.models],
            "remarks": list(self.remarks),
        }


def check(
    budgets: str | os.PathLike[str] | Sequence[Budget],
    *,
    baseline: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    tolerance: str | Tolerance | None = None,
    trust: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB,
) -> Check:
    """Predict models and compare them with budgets and a baseline.

    A model that cannot be read or predicted fails, and the others are still checked. A quantity
    that has a limit and cannot be predicted fails as well.

    Args:
        budgets: path of a TOML file, see `dippm.decide.budgets.budget`, or `Budget` objects.
        baseline: JSON document of an earlier check, as a path or as data.
        tolerance: "5%" or "2sd", which replaces the tolerances of the file.
        trust: allow model files that can run code when they are read, and `python` entries, which
            are code.
        timeout_s: time limit of each conversion in s.
        memory_limit_mb: memory limit of each conversion in MiB.

    Raises:
        BudgetError: if the file, the baseline or the tolerance is not valid.
    """
    is_file = isinstance(budgets, str | os.PathLike)
    asked = read_budgets(budgets) if isinstance(budgets, str | os.PathLike) else tuple(budgets)
    before, name = _baseline(baseline)
    ours = Tolerance.parse(tolerance) if isinstance(tolerance, str) else tolerance
    limits = {"trust": trust, "timeout_s": timeout_s, "memory_limit_mb": memory_limit_mb}
    found = []
    for number, budget in enumerate(asked, 1):
        with stage(f"{number} of {len(asked)}: {printable(budget.name)}"):
            found.append(_check_model(budget, before.get(budget.name), ours, limits))
    return Check(
        tuple(found),
        os.fspath(budgets) if is_file else "",  # type: ignore[arg-type]
        name,
        tuple(_remarks(found, before, has_baseline=baseline is not None)),
    )


def quantities(p: Prediction) -> dict[str, float | str | None]:
    """Return the predicted value of each quantity; for memory the 99 % bound."""
    return {
        "latency_ms": p.latency_ms,
        "memory_mb": p.memory_bound_mb,
        "energy_j": p.energy_j,
        "parameters": p.graph.param_bytes // BYTES_PER_PARAMETER,
        "macs": p.graph.macs,
        "slice": p.mig.name if p.mig else None,
    }


def compared_value(p: Prediction, quantity: str, at: str) -> float | str | None:
    """Return the value that is compared with the limit of a quantity, see `Budget.at`."""
    interval = _interval(p, quantity)
    if at == "upper" and interval is not None and quantity != "memory_mb":
        return interval.high
    return quantities(p)[quantity]


def _check_model(
    budget: Budget,
    before: Mapping[str, Any] | None,
    tolerance: Tolerance | None,
    limits: Mapping[str, Any],
) -> ModelCheck:
    try:
        source = _build_model(budget, trust=limits["trust"]) if budget.python else budget.model
        prediction = predict(source, **budget.conditions, **limits)
        findings = tuple(
            _finding(budget, prediction, quantity, before, tolerance or budget.tolerance)
            for quantity in QUANTITIES
        )
    except DippmError as error:
        return ModelCheck(budget, error=error)
    except Exception as error:
        words = f"unexpected {type(error).__name__}: {shortened(str(error))}"
        return ModelCheck(budget, error=UnexpectedError(words, "Please report it with the model."))
    return ModelCheck(budget, findings, prediction)


def _finding(
    budget: Budget,
    p: Prediction,
    quantity: str,
    before: Mapping[str, Any] | None,
    tolerance: Tolerance,
) -> QuantityCheck:
    value, limit = quantities(p)[quantity], budget.limits.get(quantity)
    if quantity == "memory_mb" and limit is None and value is not None:
        limit = float(p.capacity_mb)
    held = compared_value(p, quantity, budget.at)
    was = None if before is None else before.get(quantity)
    if quantity == "slice":
        return _slice_finding(p, limit, was)
    if value is None:
        reason = f"not known: {p.absent.get(quantity, p.absent.get('fits', ''))}" if limit else ""
        return QuantityCheck(quantity, None, None, limit, was, None, reason)
    assert not isinstance(value, str)
    most, reasons = None, []
    if limit is not None and held > limit:  # type: ignore[operator]
        what = "up to " if held != value or quantity == "memory_mb" else ""
        reasons.append(f"{what}{_figure(held, quantity)}, the limit is {_figure(limit, quantity)}")
    if isinstance(was, int | float):
        most = tolerance.most(was, _interval(p, quantity))
        if value > most:
            change = f"{100 * (value / was - 1):+.1f} %"
            was_words = f"{change} from {_figure(was, quantity)}, {tolerance} is tolerated"
            reasons.append(was_words)
    return QuantityCheck(quantity, value, held, limit, was, most, "; ".join(reasons))


def _slice_finding(p: Prediction, limit: Any, was: Any) -> QuantityCheck:
    device = p.conditions.device
    value = p.mig.name if p.mig else None
    ranks = _ranks(device)
    reasons = []
    if limit is not None:
        if limit not in ranks:
            known = ", ".join(ranks) or "none"
            reasons.append(f"{device.name} has no slice {shortened(str(limit))}: it has {known}")
        elif value is None:
            reasons.append(f"none: {p.absent['mig']}")
        elif ranks[value] > ranks[limit]:
            reasons.append(f"needs {value}, the limit is {limit}")
    if was in ranks and limit is None and (value is None or ranks[value] > ranks[was]):
        reasons.append(f"needs {value or 'more than any slice'}, before it was {was}")
    return QuantityCheck("slice", value, value, limit, was, was, "; ".join(reasons))


def _ranks(device: Device) -> dict[str, int]:
    """Return the rank of each slice by increasing memory."""
    by_size = sorted(device.mig_profiles, key=lambda p: (p.memory_mb, p.sm_count))
    return {profile.name: rank for rank, profile in enumerate(by_size)}


def _interval(p: Prediction, quantity: str) -> Interval | None:
    return p.intervals.get(quantity)


def _figure(value: Any, quantity: str) -> str:
    unit = UNITS.get(quantity)
    return f"{show(value)} {unit}" if unit else f"{value:,.0f}"


def _build_model(budget: Budget, *, trust: bool) -> Any:
    """Return the model that the function of a `python` entry builds.

    Raises:
        BudgetError: without trust, or if the function cannot be called.
    """
    if not trust:
        raise BudgetError(
            f"{budget.python} is code that the budget file names", "Allow it with trust=True."
        )
    module, _, name = budget.python.partition(":")
    path = str(budget.folder.absolute())
    sys.path.insert(0, path)
    try:
        return getattr(importlib.import_module(module), name)()
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {shortened(str(error))}"
        raise BudgetError(
            f"{budget.python} gave no model: {words}",
            f"It has to be a function without arguments; modules are searched in {path}, too.",
        ) from error
    finally:
        if path in sys.path:
            sys.path.remove(path)


def _baseline(given: Any) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the values of a baseline by model and quantity, and its name.

    Raises:
        BudgetError: if it is not a document of `dippm check`.
    """
    if given is None:
        return {}, ""
    if isinstance(given, Mapping):
        return _values(given, "the baseline"), "the baseline"
    file = Path(given).expanduser()
    what = shown(file.name, 80)
    hint = "Give the document of an earlier `dippm check` with json=True."
    try:
        content = beginning(file, MOST_BYTES + 1)
    except ModelFileError as error:
        raise BudgetError(error.message, hint) from error
    if len(content) > MOST_BYTES:
        raise BudgetError(f"{what} is larger than {MOST_BYTES >> 20} MiB", hint)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BudgetError(f"{what} is not JSON: {shortened(str(error))}", hint) from error
    return _values(document, what), what


def _values(document: Any, what: str) -> dict[str, dict[str, Any]]:
    try:
        found = {}
        for model in document["models"]:
            values = {one["quantity"]: one["value"] for one in model["findings"]}
            for value in values.values():
                if not (value is None or isinstance(value, str) or (is_finite(value))):
                    raise TypeError
            about = {"conditions": model["conditions"], "checkpoint": model["checkpoint"]}
            found[str(model["name"])] = {**values, **about}
    except (KeyError, TypeError, AttributeError) as error:
        raise BudgetError(
            f"{what} is not a document of `dippm check`",
            "Give the document of an earlier `dippm check` with json=True.",
        ) from error
    return found


def _remarks(
    found: Sequence[ModelCheck], before: Mapping[str, Mapping[str, Any]], *, has_baseline: bool
) -> Iterator[str]:
    if not has_baseline:
        return
    names = {model.budget.name for model in found}
    for name in before:
        if name not in names:
            yield f"{printable(shortened(name))} is in the baseline only"
    for model in found:
        was, name = before.get(model.budget.name), printable(model.budget.name)
        if was is None:
            yield f"{name} is new: the baseline lacks it"
            continue
        document = model.to_dict()
        if document["error"] is not None or was["conditions"] is None:
            continue
        if was["checkpoint"] != document["checkpoint"]:
            now = f"{shortened(str(was['checkpoint']))}, now {document['checkpoint']}"
            yield f"{name}: the baseline is of {now}: a difference may be the predictor's"
        if was["conditions"] != document["conditions"]:
            yield f"{name}: the baseline has other conditions"
