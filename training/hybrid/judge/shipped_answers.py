"""What the shipped door answers for measured rows.

A row is asked as its user would ask: GPU or slice, precision, mode, batch, layout and the clock of
its regime, at the default host. Nothing of the row's own table is known to the answer: no offset,
no launch time, no version of its software.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import pandas as pd

from dippm.estimate.conditions import MAX_BATCH, Conditions
from dippm.estimate.models.hybrid import Z90
from dippm.estimate.predictor import LoadedPredictor
from dippm.model.graph.float_type import in_float32
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.rows.by_graph import over_graphs
from training.hybrid.rows.examples import GraphLookup, Row

NONE = float("nan")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the shipped checkpoint, with the measurement.

    Attributes:
        row_id: identifier of the measured row.
        measured_ms: latency of the row.
        predicted_ms: latency that was answered; NaN if the row cannot be asked for.
        low_ms, high_ms: ends of its 90 % interval.
        host_share: share of the predicted latency that the host's launch time decides, 0 to 1.
        features: features of the law of interval widths, see
            `dippm.estimate.models.intervals`; empty without one.
        group: group of that law.
        beside_law: log half width of the interval that the law does not answer for.
    """

    row_id: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    host_share: float
    features: tuple[float, ...] = ()
    group: str = ""
    beside_law: float = 0.0


@dataclass(frozen=True, slots=True)
class Question:
    """A measured row that a checkpoint is asked for.

    Attributes:
        row: the row.
        checkpoint: position of the checkpoint among those that are asked.
    """

    row: Row
    checkpoint: int = 0

    @property
    def graph(self) -> str:
        """Return the key for the graph lookup."""
        return self.row.graph


def askable_rows(rows: Sequence[Row], graph: GraphLookup) -> list[Row]:
    """Return the rows of which a question can state all that decides the latency, in their order.

    No question can name one operator of a model, or ask for norms in half precision; these matter
    only where the model has such norms, which its graph tells.

    Args:
        rows: measured.
        graph: key → graph.
    """
    doubted = [row for row in rows if row.half_norms]
    plain = over_graphs(_without_half_norms, doubted, graph, what="norms of models")
    left_out = {row.row_id for row, found in zip(doubted, plain, strict=True) if not found}
    return [row for row in rows if row.node is None and row.row_id not in left_out]


def _without_half_norms(graph: ModelGraph, rows: Sequence[Row]) -> list[bool]:
    """Return for each row of a graph whether the graph has none of the row's `half_norms`."""
    called = graph.calls.calls if graph.calls else graph.nodes
    ops = {one.op for one in called}
    return [ops.isdisjoint(row.half_norms) for row in rows]


def shipped_answers(
    loaded: Sequence[LoadedPredictor], questions: Sequence[Question], graph: GraphLookup
) -> pd.DataFrame:
    """Return the answers to questions, in their order, with the columns of `Answer`.

    Rows that no question can state may not be asked for, see `askable_rows`. A row whose batch is
    out of range cannot be: its predicted numbers are NaN. All questions about one graph are asked
    together, so that its kernels are worked out once for all checkpoints.

    Args:
        loaded: loaded checkpoints.
        questions: rows and the checkpoint that each is asked of.
        graph: key → graph.
    """
    assert all(question.row.node is None for question in questions)
    asked = partial(_answers, loaded)
    found = over_graphs(asked, questions, graph, what="answers of the shipped door")
    return pd.DataFrame([asdict(answer) for answer in found], columns=list(Answer.__slots__))


def _answers(
    loaded: Sequence[LoadedPredictor], graph: ModelGraph, questions: Sequence[Question]
) -> list[Answer]:
    graph = in_float32(graph)
    found = []
    for question in questions:
        row, conditions = question.row, _asked(question.row, graph)
        if conditions is None:
            found.append(Answer(row.row_id, row.latency_ms, NONE, NONE, NONE, NONE))
            continue
        predictor = loaded[question.checkpoint].checkpoint_for(conditions.device).predictor
        [estimates] = predictor.predict_many(graph, [conditions])
        latency, host = estimates.values["latency_ms"], estimates.host
        terms = estimates.interval_terms
        widths = (terms.features, terms.group, terms.beside_law(Z90)) if terms else ()
        found.append(
            Answer(
                row.row_id,
                row.latency_ms,
                latency.value,
                latency.interval.low,
                latency.interval.high,
                host.share if host else 0.0,
                *widths,
            )
        )
    return found


def _asked(row: Row, graph: ModelGraph) -> Conditions | None:
    """Return the conditions of a row; None if no user can state them.

    An operator of one shape has no batch but that of its shape, which may be too large for one.
    """
    if graph.batch_is_symbolic:
        return row.conditions
    if graph.batch > MAX_BATCH:
        return None
    return replace(row.conditions, batch=graph.batch)
