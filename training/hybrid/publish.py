"""Writes the hybrid checkpoint: weights, configuration, metrics, card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dataset.join.latency_splits import SPLITS
from dippm.models.memory import MemoryModel
from dippm.models.power import PowerModel
from dippm.pretrained.checkpoint import save_checkpoint
from training.evaluation.held_out import HeldOut
from training.evaluation.since import errors_since
from training.hybrid.fit.checkpoint_law import CheckpointLaw, configuration
from training.hybrid.fit.folds import Runner
from training.hybrid.fit.memory import MEMORY_LIMITS, memory_lines
from training.hybrid.judge.latency_intervals import covered, fit_intervals, interval_law_rows
from training.hybrid.judge.report import by_family, learners, summary
from training.hybrid.rows.examples import Examples

STRICTEST = "S2-10"
COMMAND = (
    "python -m training.hybrid.train --data <tables> --graphs <raw graphs> "
    "--out checkpoints/hybrid-gpu/<version>"
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was found on rows that did not train.

    Attributes:
        helds: of the shipped mean, by split.
        learners: the same for every learner alone, by name.
        baselines: on the same rows and folds.
        calibrated: what a few measurements on a GPU held out are worth.
        hashes: of the split files.
    """

    helds: Mapping[str, HeldOut]
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
    since: Path | None = None,
    changes: str = "First version.",
) -> None:
    """Write the checkpoint folder and load it back.

    The card shows the errors of an earlier version, whose folder is `since`, beside the new ones.
    """
    examples, settings = runner.examples, runner.settings
    helds = evaluation.helds
    every = interval_law_rows(examples, helds)
    config = {
        **configuration(law, memory[0], power[0], fit_intervals(every)),
        "training": asdict(settings),
        "splits": dict(evaluation.hashes),
        "card": {**_card(examples), "changes": changes},
    }
    headlines = summary(examples, list(helds.values()))
    headlines += [*map(dict, power[1]), *memory_lines(memory[1])]
    metrics = {
        "summary": headlines,
        **(errors_since(since, headlines) if since else {}),
        "learners on the same rows and folds, RTX-3090 amp nchw, percent": learners(
            examples, evaluation.learners
        ),
        "baselines on the same rows and folds, RTX-3090 amp nchw, percent": list(
            evaluation.baselines
        ),
        "a GPU held out, after a calibration on it, percent": list(evaluation.calibrated),
        "latency by family held out, RTX-3090 amp nchw, percent": by_family(
            examples, helds[STRICTEST]
        ),
        "intervals of 90 %, each fold by a law that was fitted without it": covered(every),
        "splits": {name: SPLITS[name] for name in helds},
        "rows by source": _counts(examples),
    }
    save_checkpoint(out, dict(law.tensors), config, metrics)


def _counts(examples: Examples) -> list[dict[str, Any]]:
    counts = Counter((r.source, r.device.name, r.precision, r.mode) for r in examples.rows)
    return [
        {"source": s, "gpu": g, "precision": p, "mode": m, "rows": n}
        for (s, g, p, m), n in sorted(counts.items())
    ]


def _card(examples: Examples) -> dict[str, Any]:
    sources = sorted({row.source for row in examples.rows})
    return {
        "summary": "Gray box: kernels that a model launches, roofline time × learned efficiency, "
        "host floor, liveness memory, power × time. Trained on public measurements.",
        "use": "Inference latency, memory, power, energy and MIG profile from a model graph.",
        "limits": [
            "The host floor (time per launch) is that of one A100 server of 2022; a faster CPU "
            "runs small batches faster than predicted.",
            "Energy is predicted power × predicted latency. Power was learned from operators, "
            "GPTs, CNNs, training steps of CNNs and served LLMs on eleven GPUs. Energy errors are "
            "stated where one table has both and the latency was held out; no public table has the "
            "energy of vision models on an A100.",
            "Where a laboratory's host keeps its GPU waiting, as TensorFlow's did in ecnas, power "
            "is less than predicted, by a sixth there.",
            "Power is that of one board: boards of one GPU differ by some 10 %, more when hot.",
            "The idle power of most GPUs is an estimate by class and year (dippm devices).",
            *MEMORY_LIMITS,
            "Latency on a MIG slice scales the roofline by multiprocessors and memory slices.",
            "scaled_dot_product_attention is taken to be fused; attention=unfused asks for "
            "its steps, without the mask of causal attention where it is no tensor of the file.",
            "The interval of latency is conformal: its width follows what makes predictions err "
            "(disagreement of the members, the host's share, launches, mode, and how far the model "
            "is from those measured on any GPU and on the same), scaled to hold 90 % of the rows "
            "that were held out: for GPUs on which models were measured at random, by architecture "
            "and by family in equal parts; for others by GPU, and by family where a GPU has no "
            "other. Errors of an unnamed host come on top. Single families can be far off: the "
            "table below names those that are covered least.",
            "Errors on rows of a measured GPU (S0, S1, S2) know the launch time of the machine and "
            "what the table that the rows belong to has of its own: terms by class, and weights of "
            "the last layer. A prediction takes those of the newest table of the GPU and mode, and "
            "the default host unless one is named.",
            "What the networks left over of measured models is added to the prediction of models "
            "near them: same GPU, mode, precision and layout, one of the shipped tables. How far a "
            "residual reaches was chosen on one of the five folds of S1 and three of the ten of "
            "S2, so their held-out errors are somewhat optimistic.",
            "Tables of 30 and more models by the wall have weights of their own in the last layer. "
            "That they do was chosen on validation rows "
            "of S1. What it does to a GPU held out was looked at on the RTX 4090 and the RTX 5090.",
            "A GPU that was not measured in a mode takes the terms that tables of GPUs with the "
            "same kind of memory (stacked: HBM, on the board: GDDR) usually add. Errors on a GPU "
            "held out (S3a) take them from tables of the other GPUs alone.",
            "The networks do not see the descriptors of a GPU of which no row trained. That was "
            "found in errors of the A100 and the H100 while each was held out, and tried on V100, "
            "P100 and RTX 2080 Ti, which had not been looked at: GPTs 17 to 8, 17 to 6 and 11 to "
            "18 %.",
            "That PyTorch's own depthwise kernel takes eight issue slots for a multiply-add was "
            "found in rows of ConvMixer, so its held-out errors are somewhat optimistic.",
            "Near what was measured the networks speak alone, far from it the mean of networks and "
            "trees. From where to where was chosen on S0 and S1; on S2 it changes no error by more "
            "than 0.1 points. How far a network may leave the trees was chosen on S1; other "
            "settings were looked at on two of the ten folds of S2.",
            "That short kernels go by the clock was found in errors of the A100 and the H100 while "
            "each was held out (S3a), and of two ways to count it the better was taken there: "
            "their S3a errors are somewhat optimistic, those of other GPUs were not looked at.",
            "Of the depthwise convolutions PyTorch's choice for a batch above one is taken.",
            "Two members. One seed for each held-out fold, two where a GPU is held out; what a "
            "calibration is worth there was tried with the first.",
        ],
        "never_measured": [
            "Whole vision models on GPUs other than those listed under rows by source.",
            "Recurrent layers beyond one model family: their efficiency is extrapolated.",
            "Training steps, int8 and fp8.",
        ],
        "data": [f"{name} (see dataset/README.md for its origin)" for name in sources],
        "command": COMMAND,
    }
