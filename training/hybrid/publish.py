"""Writes the hybrid checkpoint: weights, configuration, metrics, card."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dataset.join.latency_splits import SPLITS
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.models.power import PowerModel
from dippm.estimate.pretrained.checkpoint import save_checkpoint
from training.evaluation.held_out import HeldOut
from training.evaluation.version_regression import regression_table
from training.hybrid.fit.checkpoint_law import CheckpointLaw, configuration
from training.hybrid.fit.folds import Runner
from training.hybrid.fit.memory import memory_lines
from training.hybrid.judge.latency_intervals import (
    covered,
    fit_intervals,
    half_widths,
    interval_law_rows,
)
from training.hybrid.judge.report import by_family, laboratory_lines, learners, summary
from training.hybrid.judge.report_strata import report_lines_of
from training.hybrid.rows.absent_sources import MEMORY, POWER, AbsentSource
from training.hybrid.rows.examples import Row

CARD = Path(__file__).with_name("card.toml")
STRICTEST = "S2-10"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was found on rows that did not train.

    Attributes:
        held_out_sets: predictions of the published folds, by split.
        with_own_terms: predictions of the same folds with what the table of each row has of its
            own: what a question lacks.
        learners: predictions of every learner alone, by name.
        baselines: errors of baselines on the same rows and folds.
        calibrated: errors on a held-out GPU after a calibration with a few measurements.
        hashes: hashes of the split files.
    """

    held_out_sets: Mapping[str, HeldOut]
    with_own_terms: Sequence[HeldOut]
    learners: Mapping[str, Sequence[HeldOut]]
    baselines: Sequence[Mapping[str, Any]]
    calibrated: Sequence[Mapping[str, Any]]
    hashes: Mapping[str, str]


def publish(
    out: Path,
    *,
    runner: Runner,
    law: CheckpointLaw,
    evaluation: Evaluation,
    power: tuple[PowerModel, Sequence[Mapping[str, Any]]],
    memory: tuple[MemoryModel, Mapping[str, Any]],
    made: Mapping[str, Any],
    absent: Sequence[AbsentSource] = (),
    since: Path | None = None,
    changes: str = "First version.",
) -> None:
    """Write the checkpoint folder and load it back.

    Args:
        out: the folder.
        runner: runner of the fits.
        law: law of the shipped tasks.
        evaluation: results on rows that did not train.
        power: model of power, and its lines of the card.
        memory: model of memory, and its report.
        made: provenance, see `training.provenance.describe_making`.
        absent: sources that were not available.
        since: folder of an earlier version, whose errors the card shows next to the new ones.
        changes: changes of this version, for the card.
    """
    examples, settings = runner.examples, runner.settings
    taught = examples.rows
    held_out_sets = evaluation.held_out_sets
    every = interval_law_rows(examples.rows, held_out_sets)
    config = {
        **configuration(law, memory[0], power[0], fit_intervals(every)),
        "training": {
            **asdict(settings),
            "rows": len(taught),
            **made,
            **({"absent": [source.name for source in absent]} if absent else {}),
        },
        "splits": dict(evaluation.hashes),
        "card": {
            **card_of({row.source for row in taught}, absent),
            "command": made["command"],
            "changes": changes,
        },
    }
    headlines, widths = [], partial(half_widths, law_rows=every)
    if "L" in held_out_sets:
        headlines += laboratory_lines(examples, held_out_sets["L"], widths)
    headlines += summary(
        examples, [held for name, held in held_out_sets.items() if name != "L"], widths
    )
    headlines += [*map(dict, power[1]), *memory_lines(memory[1])]
    metrics = {
        "summary": headlines,
        **(regression_table(since, headlines) if since else {}),
        "learners on the same rows and folds, RTX-3090 amp nchw, percent": learners(
            examples, evaluation.learners
        ),
        "baselines on the same rows and folds, RTX-3090 amp nchw, percent": list(
            evaluation.baselines
        ),
        "a GPU held out, after a calibration on it, percent": list(evaluation.calibrated),
        **(
            {
                "latency by family held out, RTX-3090 amp nchw, percent": by_family(
                    examples, held_out_sets[STRICTEST]
                )
            }
            if STRICTEST in held_out_sets
            else {}
        ),
        "latency of the same folds, with the terms of each row's own table, which no question "
        "has, percent": summary(examples, evaluation.with_own_terms),
        "intervals of 90 %, each fold by a law that was fitted without it": covered(every),
        "splits": {name: SPLITS[name] for name in held_out_sets},
        "rows by source": _counts(taught),
    }
    save_checkpoint(out, dict(law.tensors), config, metrics)


def _counts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    counts = Counter((r.source, r.device.name, r.precision, r.mode) for r in rows if r.node is None)
    return [
        {"source": s, "gpu": g, "precision": p, "mode": m, "rows": n}
        for (s, g, p, m), n in sorted(counts.items())
    ]


def card_of(sources: Iterable[str], absent: Sequence[AbsentSource] = ()) -> dict[str, Any]:
    """Return the texts of the card.

    Args:
        sources: names of the sources that trained.
        absent: sources that did not, because their tables were not available.
    """
    text = tomllib.loads(CARD.read_text(encoding="utf-8"))
    return {
        **text,
        "limits": [*limits_of(absent), *text["limits"]],
        "data": [f"{name} (see dataset/README.md for its origin)" for name in sorted(sources)],
    }


def limits_of(absent: Sequence[AbsentSource]) -> list[str]:
    """Return what the card says of each source that a training goes without: why, what is empty."""
    limits = []
    for source in absent:
        targets = [target for target in source.teaches if target in (POWER, MEMORY)]
        empty = [
            *report_lines_of(source.name),
            *(f"{target} of {source.name}" for target in targets),
        ]
        limits.append(source.said + (f" No row of: {'; '.join(empty)}." if empty else ""))
    return limits
