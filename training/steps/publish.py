"""Writes the checkpoint for training steps: weights, configuration, metrics, card."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xgboost

from dippm.estimate.models.training_memory import StepMemoryModel
from dippm.estimate.pretrained.checkpoint import save_checkpoint
from dippm.estimate.pretrained.store import CheckpointInfo
from training.evaluation.held_out import HeldOut
from training.evaluation.version_regression import regression_table
from training.hybrid.judge.latency_intervals import covered, fit_intervals, interval_law_rows
from training.steps.examples import StepExamples
from training.steps.fit import Multipliers, StepSettings
from training.steps.law import step_configuration, step_tensors
from training.steps.report import baselines, by_family, summary
from training.steps.rows import StepRow
from training.steps.splits import FAMILIES, StepFold


def publish(
    out: Path,
    *,
    examples: StepExamples,
    inference: CheckpointInfo,
    fitted: tuple[Multipliers, xgboost.Booster],
    settings: StepSettings,
    folds: Mapping[str, Sequence[StepFold]],
    helds: Mapping[str, HeldOut],
    with_own_terms: Mapping[str, HeldOut],
    memory: tuple[StepMemoryModel, Sequence[Mapping[str, Any]]],
    made: Mapping[str, Any],
    since: Path | None = None,
    changes: str = "First version.",
) -> None:
    """Write the checkpoint folder and load it back.

    Args:
        out: the folder.
        examples: examples that were fitted.
        inference: the checkpoint whose trees, effects, host and power it starts from.
        fitted: law fitted on all rows.
        settings: settings of the fit.
        folds: folds by split.
        helds: predictions of the published folds, by split.
        with_own_terms: predictions of the same folds with what their tables have of their own.
        memory: model, and lines of the card.
        made: how, see `training.provenance.describe_making`.
        since: folder of an earlier version, whose errors the card shows, too.
        changes: changes of this version, for the card.
    """
    found, booster = fitted
    every = interval_law_rows(examples.rows, helds)
    config = {
        **step_configuration(
            inference.config, found, settings, examples, memory[0], fit_intervals(every)
        ),
        "training": {**asdict(settings), "rows": len(examples.rows), **made},
        "splits": {name: _hash(examples, of_split) for name, of_split in folds.items()},
        "inference": {
            "checkpoint": f"{inference.name} {inference.version}",
            "sha256": inference.config["sha256"],
        },
        "card": {**_card(examples, inference), "command": made["command"], "changes": changes},
    }
    headlines = [*summary(examples, list(helds.values())), *map(dict, memory[1])]
    metrics = {
        "summary": headlines,
        **(regression_table(since, headlines) if since else {}),
        "predictors on the same rows and folds, RTX-3090 amp nchw, percent": baselines(
            examples, folds, helds, with_own_terms
        ),
        "step time by family held out, RTX-3090 amp nchw, percent": by_family(
            examples, helds[FAMILIES]
        ),
        "step time of the same folds, with what the table of each row has of its own, which no "
        "question has, percent": summary(examples, list(with_own_terms.values())),
        "intervals of 90 %, each fold by a law that was fitted without it": covered(every),
        "rows by source": _counts(examples),
    }
    tensors = step_tensors(inference.path, booster, examples)
    save_checkpoint(out, tensors, config, metrics)


def _hash(examples: StepExamples, folds: Sequence[StepFold]) -> str:
    tested = {fold.name: sorted(examples.rows[i].row_id for i in fold.test) for fold in folds}
    return hashlib.sha256(json.dumps(tested, sort_keys=True).encode()).hexdigest()


def _counts(examples: StepExamples) -> list[dict[str, Any]]:
    counts = Counter(
        (s.source, s.device.name, s.precision, _measured_update(s)) for s in examples.rows
    )
    return [
        {"source": source, "gpu": gpu, "precision": precision, "optimizer": update, "rows": n}
        for (source, gpu, precision, update), n in sorted(counts.items())
    ]


def _measured_update(row: StepRow) -> str:
    if row.node is not None:
        return "gradients of an operator"
    return row.optimizer or "no update"


def _card(examples: StepExamples, inference: CheckpointInfo) -> dict[str, Any]:
    sources = sorted({step.source for step in examples.rows if not step.is_own})
    ours = sorted({step.source for step in examples.rows if step.is_own})
    measured = (
        "Measured were vision models on an RTX 3090 under autocast, with SGD and one batch "
        "each, near the largest that fits; torchvision at batch 12 on six older GPUs, without "
        "an update; ResNet-50 and BERT-base on slices of an A100-80GB"
    )
    if ours:
        gpus = sorted({step.device.name for step in examples.rows if step.is_own})
        measured += f"; some steps of models of many kinds, with SGD, on {' and '.join(gpus)}"
    return {
        "summary": "Gray box for training steps: the kernels of forward, backward and update, "
        f"roofline time × the efficiency of inference ({inference.name} {inference.version}) × "
        "what public measurements of training steps add.",
        "use": "Time, memory, power and energy of a training step from a model graph, "
        'phase="train".',
        "limits": [
            f"{measured}. On every other GPU a training step is extrapolated from its inference.",
            f"The software was PyTorch 1.x{' and 2.x' if ours else ''}, eager. Compiled training "
            "steps are refused.",
            "No table says how long Adam or AdamW take: their passes over memory are counted, and "
            "run as those of SGD do; the host takes as long for each layer. MIGPerf did not record "
            "its optimiser: AdamW is taken for BERT, SGD for ResNet-50.",
            "Checkpointing was never measured. Every numbered block runs forward once more, as "
            "fast as the first time, and is launched as an inference is.",
            "The loss is the cross-entropy of class scores: a result with two axes, or with three "
            "if a product with weights made it (the head of a language model). Of other results it "
            "is the sum where time is counted, and the mean square where memory is. No gradient is "
            "scaled, clipped, accumulated or exchanged between GPUs; no data is loaded.",
            "A graph is that of a model in evaluation mode: dropout and drop path, and what they "
            "save for the gradients, are not in it.",
            "Power and energy follow the law of inference: the power of no training step taught.",
            "Memory is what nvidia-smi shows, in the steady state: parameters, gradients, states "
            "of the optimiser, what autograd saves times one number, result and loss, context. The "
            "number and its errors come from two models on one GPU"
            + (", and from our own sets." if ours else "."),
            "Errors are those of published folds, asked as a user asks, with the default host. "
            "Those of S2 start from a fold of inference that did not see the kind of model "
            "either. S3a leaves the training steps of a GPU out, not its inference. Steps without "
            "an update of the parameters teach, but no question asks for one: their errors know "
            "their table.",
            "The size of the trees was chosen while looking at held-out errors of two folds of S1 "
            "and two of S2, on half of the rows.",
        ],
        "never_measured": [
            "Training steps on GPUs other than those listed under rows by source.",
            *(
                []
                if ours
                else ["Language models other than BERT-base; recurrent and 3-D networks."]
            ),
            "Compiled steps; several GPUs." if ours else "bf16; compiled steps; several GPUs.",
        ],
        "data": [
            *(f"{name} (see dataset/README.md for its origin)" for name in sources),
            *(f"{name}: a set of our own" for name in ours),
        ],
    }
