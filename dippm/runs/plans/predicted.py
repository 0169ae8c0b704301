"""What `dippm.share` predicts for rows of a plan that share a GPU, and the prediction of each row.

The model of a row is that of its cell Model; the GPU is the one that the cell names, else that of
the machine that the plan is meant for, else the row's own on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dippm.errors import DippmError, PlanError
from dippm.model.frontends import named
from dippm.runs.colocation import Sharing
from dippm.runs.colocation.boards import boards
from dippm.runs.colocation.predicted_slowdowns import share_options
from dippm.runs.plans.assumed import AssumedBoards
from dippm.runs.plans.row import PlanRow, model_of
from dippm.runs.plans.run_configs import find_file
from dippm.runs.plans.workload import Workload, shares_a_device

if TYPE_CHECKING:
    from dippm.decide.sharing import SharedGpu

ONE_DEVICE = "Name one device for a row whose model is predicted."


class PredictedRows(NamedTuple):
    """Rows that run together on a GPU, and what they do to each other.

    Attributes:
        workload: their workload.
        rows: the rows in the order of the plan.
        shared: the prediction, with a process for each row; None if there is none.
        reason: why there is none, "" otherwise.
    """

    workload: Workload
    rows: tuple[PlanRow, ...]
    shared: SharedGpu | None
    reason: str


def predict_shared_rows(
    chosen: Iterable[tuple[Workload, Sequence[PlanRow]]],
    plan_folder: Path,
    assumed: AssumedBoards | None = None,
) -> Iterator[PredictedRows]:
    """Yield each set of rows that share a GPU, with its prediction or the reason for none.

    Args:
        chosen: workloads, each with the rows to run.
        plan_folder: folder of the plan, in which models are looked for too.
        assumed: GPUs of the machine that the plan is meant for; None for those of this machine.
    """
    for workload, rows in chosen:
        for together in _rows_together(rows):
            try:
                shared = _predict_together(together, plan_folder, assumed)
            except DippmError as error:
                yield PredictedRows(workload, together, None, error.message)
            else:
                yield PredictedRows(workload, together, shared, "")


def predict_row(row: PlanRow, plan_folder: Path | None) -> Mapping[str, Any]:
    """Return the prediction of a row's model by itself, for its run to store.

    It is made in a process of its own, which is gone before the row begins.

    Raises:
        PlanError: if it runs on several GPUs, or its model is not there.
        DippmError: as `dippm.runs.tracking.expectation.expectation_beside`, or if there is no such
            GPU.
    """
    if len(row.devices) > 1:
        raise PlanError("a run on several GPUs is not predicted", ONE_DEVICE)
    model, options = model_of(row.model)
    way = Sharing.parse(row.sharing)
    if way.kind == "mig":
        options["mig"] = way.profile
    if row.devices and "device" not in options:
        options["device"], own_slice = _gpu(row.devices[0])
        if own_slice:
            options["mig"] = own_slice
    return _expectation(_located(model, plan_folder), tuple(options.items()))


@cache
def _expectation(model: str, options: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    """Return a prediction; rows of a sweep often run the same model."""
    from dippm.runs.tracking.expectation import expectation_beside

    return expectation_beside(model, **dict(options))


def _rows_together(rows: Sequence[PlanRow]) -> list[tuple[PlanRow, ...]]:
    """Return the sets of two and more rows that have devices in common."""
    groups: list[list[PlanRow]] = []
    for row in rows:
        joined = [g for g in groups if any(shares_a_device(row, other) for other in g)]
        groups = [g for g in groups if g not in joined]
        groups.append([*(other for group in joined for other in group), row])
    several = (sorted(group, key=lambda row: row.number) for group in groups if len(group) > 1)
    return sorted(map(tuple, several), key=lambda group: group[0].number)


def _predict_together(
    rows: Sequence[PlanRow], plan_folder: Path, assumed: AssumedBoards | None
) -> SharedGpu:
    """Return what `dippm.share` predicts for rows on one GPU.

    Raises:
        PlanError: if a row names no model, or they cannot be predicted together.
        DippmError: as `dippm.share`.
    """
    without = [str(row.number) for row in rows if not row.model]
    if without:
        what = f"the column Model says nothing of row {' and '.join(without)}"
        raise PlanError(what, "Write the model there, with options as of `dippm predict`.")
    if any(len(row.devices) > 1 for row in rows):
        raise PlanError("a run on several GPUs is not predicted", ONE_DEVICE)
    models = [model_of(row.model) for row in rows]
    common = [{n: v for n, v in o.items() if n not in ("batch", "input")} for _, o in models]
    if any(other != common[0] for other in common):
        raise PlanError(
            "the models of the rows have different conditions",
            "Give them one precision, mode and device: one question is asked about all of them.",
        )
    asked: dict[str, Any] = {**common[0], **share_options([row.sharing for row in rows])}
    if "device" not in asked and assumed is not None:
        asked["device"] = assumed.device
    elif "device" not in asked:
        asked["device"], own_slice = _gpu(rows[0].devices[0])
        if own_slice:
            asked["mig"] = own_slice
    from dippm.decide.sharing import share
    from dippm.estimate.model_list import Candidate

    cases = [
        Candidate(_located(model, plan_folder), o.get("input"), (o.get("batch", 1),))
        for model, o in models
    ]
    return share(cases, **asked)


def _gpu(device: str) -> tuple[str, str]:
    """Return the name of a GPU of this machine, and the profile of the slice that was named.

    Raises:
        CollocationError: if there is no such GPU.
    """
    with boards((device,)) as (board,):
        return str(board.nvml.nvmlDeviceGetName(board.handle)), board.slice


def _located(model: str, plan_folder: Path | None) -> str:
    """Return a model's path, from the current folder or else that of the plan, or its name.

    Raises:
        PlanError: if there is no such file.
    """
    if named.is_name(model) or Path(model).is_dir():
        return model
    found = find_file(model, plan_folder)
    if found is None:
        hint = "Paths start in the current folder, or beside the plan."
        raise PlanError(f"there is no model {model}", hint)
    return str(found)
