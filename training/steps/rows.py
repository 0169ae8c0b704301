"""Which measured training steps teach.

    timm_train              RTX 3090: autocast, SGD, both layouts, one batch for each model
    pytorch_gpu_benchmark   six GPUs: torchvision at batch 12, no update, copy of the input included
    migperf                 A100-80GB and its slices: ResNet-50 and BERT-base

Sets of our own teach, too: a step by the wall and the sum of its kernels, with SGD and momentum,
and the gradients of single operators by the sum of theirs.

What MIGPerf updated its parameters with is not recorded: SGD with momentum is taken for ResNet-50,
AdamW for BERT, as its memory says. MISO includes its data loader, and nobody wrote down its models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dataset.join.graph_store import GraphStore
from dataset.join.grouping import family_of
from dataset.measured.sources import read
from dippm.estimate.conditions import PRECISIONS, Attention, Conditions, Optimizer
from dippm.measure.collected.kernels import read_kernels
from dippm.measure.kernels import TracedKernel
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.rows.collected_kernels import Place, certain, rows_of_kernels
from training.hybrid.rows.collected_rows import (
    CollectedSet,
    has_long_kernels,
    has_own_kernels,
    kin_of,
)
from training.hybrid.rows.collected_rows import row_of as row_of_collected
from training.hybrid.rows.examples import Row
from training.hybrid.rows.sources import PARAMETER_TOLERANCE, named_migperf, row_of, steady

SOURCES = ("timm_train", "pytorch_gpu_benchmark", "migperf")
NO_UPDATE = "pytorch_gpu_benchmark"
"""Its steps end with the gradients."""
COLLECTED_UPDATE: Optimizer = "sgd"
"""What `dippm.measure` updates parameters with."""
FUSED_TORCH = 2
"""Version of PyTorch from which models call fused attention."""


@dataclass(frozen=True, slots=True)
class StepRow(Row):
    """One measured training step; the architecture is empty until its graph is read, see `known`.

    Attributes:
        optimizer: that updated the parameters; None if nothing did.
        attention: as the software had it.
        parameters_m: of the model that was measured, in millions; None if its table does not say.
    """

    optimizer: Optimizer | None = None
    attention: Attention = "fused"
    parameters_m: float | None = None

    @classmethod
    def of(
        cls,
        row: Row,
        optimizer: Optimizer | None,
        attention: Attention,
        parameters_m: float | None = None,
    ) -> StepRow:
        """Return a step that was measured as a row of inference is."""
        plain = {field.name: getattr(row, field.name) for field in fields(Row)}
        return cls(**plain, optimizer=optimizer, attention=attention, parameters_m=parameters_m)

    @property
    def conditions(self) -> Conditions:
        """Return what a user who measured the step would state of it.

        Raises:
            ValueError: if nothing updated the parameters: no question asks for such a step.
        """
        if self.optimizer is None:
            raise ValueError(f"{self.row_id} was measured without an update of the parameters")
        return self.conditions_of_pass.replace(
            phase="train", optimizer=self.optimizer, attention=self.attention
        )

    @property
    def conditions_of_pass(self) -> Conditions:
        """Return those of a forward pass measured likewise."""
        return super(StepRow, self).conditions


def step_rows(data: Path, has_graph: Callable[[str], bool]) -> list[StepRow]:
    """Return the measured steps whose graph is at hand.

    Args:
        data: folder of measured tables.
        has_graph: tells whether a model's graph is at hand.
    """
    tables = [read(name, data) for name in SOURCES]
    tables[-1] = steady(named_migperf(tables[-1]))
    table = pd.concat(tables, ignore_index=True)
    table = table[(table["phase"] == "train") & (table["mode"] == "eager")]
    table = table[table["n_gpus"].fillna(1) == 1]
    table = table[table["precision"].isin(PRECISIONS) & (table["latency_ms"] > 0)]
    table = table[[has_graph(model) for model in table["model"]]]
    return [
        StepRow.of(
            row_of(r, r["model"], "", family_of_step(r["model"])),
            optimizer_of(r),
            _attention(r["software"]),
            None if pd.isna(r["params_M"]) else float(r["params_M"]),
        )
        for r in table.to_dict("records")
    ]


def collected_step_rows(found: CollectedSet, graphs: GraphStore) -> list[StepRow]:
    """Return the training steps of a set of our own, by the wall and by the sum of long kernels.

    Args:
        found: rows of training steps, see `read_collected`.
        graphs: graphs of its models.
    """
    kin = kin_of(found, graphs)
    steps = []
    for record in found.records:
        row = row_of_collected(record, found.source, *kin[record["model"]])
        row = replace(row, family=family_of_step(row.graph)) if row.is_model else row
        by_wall = StepRow.of(row, COLLECTED_UPDATE, "fused")
        steps.append(by_wall)
        if record["kernel_ms"] and has_long_kernels(record) and has_own_kernels(record):
            steps.append(
                replace(
                    by_wall,
                    row_id=f"{by_wall.row_id} K",
                    timer="kernel",
                    latency_ms=float(record["kernel_ms"]),
                )
            )
    return steps


def collected_operator_rows(
    found: CollectedSet, graphs: GraphStore, *, place: Place = certain
) -> list[StepRow]:
    """Return the gradients of single operators amid the training steps of a set of our own.

    The label of such a row is the sum of the kernels that computed the gradients of its operator:
    the sum of a step does not tell which class of kernels took the time. They are a table of their
    own, which has no offset in common with whole steps.

    Args:
        found: rows of training steps, see `read_collected`.
        graphs: graphs of its models.
        place: joins kernel tables with graphs.
    """

    def of_gradients(kernels: Sequence[TracedKernel], graph: ModelGraph) -> list[int | None]:
        nodes = zip(kernels, place(kernels, graph), strict=True)
        return [node if kernel.part == "backward" else None for kernel, node in nodes]

    kin = kin_of(found, graphs)
    points = [
        StepRow.of(
            row_of_collected(record, found.source, *kin[record["model"]]), COLLECTED_UPDATE, "fused"
        )
        for record in filter(has_own_kernels, found.records)
    ]
    tables = read_kernels(found.folder)
    return [
        replace(row, row_id=f"{row.row_id} gradients", table=f"{row.table} operators")
        for row in rows_of_kernels(points, tables, graphs.__getitem__, place=of_gradients)
    ]


def known(step: StepRow, graph: ModelGraph, architecture: str) -> StepRow | None:
    """Return a row with its architecture; None if its name means another model by now.

    Args:
        step: a row.
        graph: of its model.
        architecture: `architecture_id` of the graph.
    """
    parameters_m = graph.param_bytes / 4e6
    if step.parameters_m and abs(parameters_m / step.parameters_m - 1) > PARAMETER_TOLERANCE:
        return None
    return replace(step, architecture=architecture)


def family_of_step(model: str) -> str:
    """Return the family of a model by name: what is left out together."""
    return "bert" if model.startswith("hf:bert") else family_of(model)


def optimizer_of(record: Mapping[str, Any]) -> Optimizer | None:
    """Return what updated the parameters of a measured step; None if nothing did."""
    if record["source"] == NO_UPDATE:
        return None
    return "adamw" if record["model"].startswith("hf:bert") else "sgd"


def _attention(software: Any) -> Attention:
    name, _, version = str(software).partition(",")[0].partition(" ")
    major = version.partition(".")[0]
    fused = name == "torch" and major.isdigit() and int(major) >= FUSED_TORCH
    return "fused" if fused else "unfused"
