"""Residuals of the networks on the rows that train, for `dippm.estimate.models.residuals`.

A fold's residuals are those of the rows that trained in it, by the network that they trained, so
nothing of a row under test is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dippm.estimate.conditions import Precision
from dippm.estimate.models import residuals
from dippm.estimate.models.residuals import POINTS, WEIGHTS, dual_weights, point_of
from training.hybrid.fit.batches import Indices
from training.hybrid.fit.network import KernelNetwork
from training.hybrid.fit.network_fit import predict_log_ms
from training.hybrid.rows.examples import Examples, Row

Floats = NDArray[np.float64]
TableGroup: TypeAlias = tuple[str, Precision, bool]
"""Table, precision and layout."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """The residuals of a network.

    Attributes:
        rows: rows that trained: whole models, by the wall, in tables with a table head.
        log_error: log of measured over predicted, shape (len(rows),).
    """

    rows: Indices
    log_error: Floats


def residuals_of(
    examples: Examples, train: Indices, network: KernelNetwork, *, tables: Mapping[str, int]
) -> Residuals:
    """Return the residuals of a fit."""
    speaks = network.with_head.numpy()
    chosen = [
        i
        for i in train.tolist()
        if (row := examples.rows[i]).is_end_to_end and speaks[tables[row.table]]
    ]
    rows = np.array(chosen, dtype=np.int64)
    if not len(rows):
        return Residuals(rows, np.zeros(0))
    predicted = predict_log_ms(network, examples, rows, tables=tables)
    return Residuals(rows, examples.log_latency[rows] - predicted)


def mean_features(examples: Examples) -> Floats:
    """Return the mean features of the kernels of each row, by roofline time, (R, N_FEATURES)."""
    times = np.exp(examples.log_roofline.astype(np.float64)) * examples.count
    found = np.zeros((len(examples.rows), examples.features.shape[1]))
    for row in range(len(found)):
        part = examples.of_row(row)
        found[row] = times[part] @ examples.features[part] / times[part].sum()
    return found


def points_of(means: Floats, network: KernelNetwork) -> NDArray[np.float16]:
    """Return rows as points as a checkpoint keeps them, of their mean features."""
    found = point_of(means, network.mean.numpy(), network.scale.numpy())
    return found.astype(np.float16)


def added(
    examples: Examples, points: NDArray[np.float16], known: Residuals, asked: Indices
) -> Floats:
    """Return the correction of the log slow-down of rows, shape (len(asked),).

    Args:
        examples: all rows.
        points: points of all rows, see `points_of`.
        known: residuals of those that trained.
        asked: rows to correct.
    """
    found = np.zeros(len(asked))
    trained = _by_group(examples.rows, known.rows)
    for group, places in _by_group(examples.rows, asked).items():
        if group in trained:
            mine = trained[group]
            at = points[known.rows[mine]].astype(np.float64)
            weights = dual_weights(at, known.log_error[mine])
            found[places] = residuals.posterior_mean(
                points[asked[places]].astype(np.float64), at, weights
            )
    return found


def published(
    examples: Examples,
    points: NDArray[np.float16],
    members: Sequence[Residuals],
    tables: Sequence[str],
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the lines and the arrays of a checkpoint about the residuals of its members.

    Args:
        examples: all rows.
        points: points of all rows.
        members: residuals of each, of the same rows; their mean counts, as that of their answers.
        tables: tables whose offsets the checkpoint has.
    """
    rows = members[0].rows
    log_error = np.mean([member.log_error for member in members], axis=0)
    lines, chosen, weights = [], [], []
    for (table, precision, channels_last), places in _by_group(examples.rows, rows).items():
        if table in tables:
            row = examples.rows[rows[places[0]]]
            lines.append(
                {
                    "device": row.device.name,
                    "mode": row.mode,
                    "precision": precision,
                    "channels_last": channels_last,
                    "rows": len(places),
                }
            )
            chosen.append(points[rows[places]])
            weights.append(dual_weights(chosen[-1].astype(np.float64), log_error[places]))
    if not lines:
        return [], {}
    joined = np.concatenate(weights).astype(np.float32)
    return lines, {
        POINTS: torch.from_numpy(np.concatenate(chosen)),
        WEIGHTS: torch.from_numpy(joined),
    }


def _by_group(rows: Sequence[Row], chosen: Indices) -> dict[TableGroup, Indices]:
    """Return places in `chosen` of whole models by the wall, by group."""
    found: dict[TableGroup, list[int]] = {}
    for place, i in enumerate(chosen.tolist()):
        row = rows[i]
        if row.is_end_to_end:
            found.setdefault((row.table, row.precision, row.channels_last), []).append(place)
    return {group: np.array(found[group]) for group in sorted(found)}
