"""`predict_slowdowns`: the slow-down that `dippm.share` predicts for runs that shared a device.

The models are those of the predictions stored with the runs (`dippm run --model`,
`track(prediction=...)`); they are read again, and must not have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dippm.errors import CollocationError, DippmError
from dippm.runs.colocation.sharing import Sharing

if TYPE_CHECKING:
    from dippm.runs.store.stored_run import StoredRun

FILE = "file:"
OWN = ("batch", "mig", "device")
"""Conditions that may differ between the runs, or are given in another way."""


class PredictedSlowdown(NamedTuple):
    """A predicted slow-down.

    Attributes:
        slowdown: time when sharing over time alone.
        low: lower end of its 90 % interval, or lower bound.
        high: upper end of the interval, or upper bound.
        bounds: reason why these are bounds; "" for an interval.
    """

    slowdown: float
    low: float
    high: float
    bounds: str


def predict_slowdowns(runs: Sequence[StoredRun]) -> Mapping[str, PredictedSlowdown] | str:
    """Return the predicted slow-down of each run by uuid, or the reason why there is none.

    Args:
        runs: all runs that shared the device at the same time.
    """
    documents = [run.prediction for run in runs]
    without = [run.uuid[:8] for run, found in zip(runs, documents, strict=True) if not found]
    if without:
        return f"no prediction is stored beside {' and '.join(without)}"
    known = [document for document in documents if document]
    conditions = [dict(document["conditions"]) for document in known]
    shared = [{n: v for n, v in c.items() if n not in OWN and v is not None} for c in conditions]
    devices = {c["device"] for c in conditions}
    if len(devices) > 1 or any(other != shared[0] for other in shared):
        return "the predictions beside the runs are of different conditions"
    try:
        how = share_options([_word(run) for run in runs])
        found = _predict(known, conditions, {**shared[0], "device": devices.pop()}, how)
    except DippmError as error:
        return error.message
    return {run.uuid: one for run, one in zip(runs, found, strict=True)}


def share_options(words: Sequence[str]) -> dict[str, Any]:
    """Return how runs share a GPU as arguments of `dippm.share`.

    Args:
        words: way of sharing of each run, see `Sharing.parse`.

    Raises:
        CollocationError: if the ways of sharing differ or are unknown.
    """
    ways = [Sharing.parse(word) for word in words]
    kinds = {way.kind for way in ways}
    if len(kinds) > 1:
        raise CollocationError(
            f"the runs shared as {' and '.join(map(repr, words))}", "Share a GPU in one way."
        )
    if kinds == {"mig"}:
        return {"sharing": "mig", "slices": [way.profile for way in ways]}
    if kinds == {"none"}:
        return {"sharing": "time-slicing"}
    percentages = [way.thread_percent for way in ways]
    limited = all(one is not None and one < 100 for one in percentages)
    limits = [way.memory_limit_mb for way in ways]
    return {
        "sharing": "mps",
        "percentages": percentages if limited else None,
        "memory_limits_mb": limits if any(limits) else None,
    }


def _word(run: StoredRun) -> str:
    tags = run.start.tags
    return tags.get("collocation", "") or tags.get("sharing", "").partition(" + ")[0]


def _predict(
    documents: Sequence[Mapping[str, Any]],
    conditions: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    how: Mapping[str, Any],
) -> list[PredictedSlowdown]:
    """Return the predicted slow-down of each run.

    Raises:
        DippmError: as `dippm.share`, or if a model has changed.
    """
    from dippm.decide.sharing import share
    from dippm.estimate.model_list import Candidate

    cases = [
        Candidate(_model_of(document), _sizes(document), (int(c["batch"]),))
        for document, c in zip(documents, conditions, strict=True)
    ]
    found = share(cases, **{**options, **how})
    return [
        PredictedSlowdown(p.slowdown, p.slowdown_range.low, p.slowdown_range.high, found.why_bounds)
        for p in found.processes
    ]


def _sizes(document: Mapping[str, Any]) -> Any:
    sizes = document.get("input")
    return tuple(sizes) if isinstance(sizes, list) else sizes


def _model_of(document: Mapping[str, Any]) -> str:
    """Return the path or name of a prediction's model.

    Raises:
        CollocationError: if its file is missing or has changed.
    """
    name = str(document.get("model") or document["source"])
    if not name.startswith(FILE):
        return name
    rest, _, digest = name.removeprefix(FILE).rpartition("#")
    path = Path(rest)
    if not path.is_file():
        path = Path(rest.rpartition("@")[0])
    hint = "Give the runs another prediction: `dippm run --model FILE`."
    if not path.is_file():
        raise CollocationError(f"the model of a run is gone: {rest}", hint)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest()[: len(digest)] != digest:
            raise CollocationError(f"{path} is no longer the model that ran", hint)
    return str(path)
