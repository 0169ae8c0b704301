"""The table of kernel classes is all that is known of them: a class more is a row more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import FEATURE_NAMES

ROOT = Path(__file__).parents[3]
ADDED = """
from dataclasses import replace
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES, KernelClass
from dippm.model.graph.operators import OPERATORS

for op, fusible in (("sort", True), ("argsort", False)):
    KERNEL_CLASSES[op] = KernelClass(op, streams=True, fusible=fusible)
    OPERATORS[op] = replace(OPERATORS[op], kernel=op)

from dataset.measured.nodes import GraphBuilder
from dippm.devices import find
from dippm.estimate.features.kernel_features import DeviceView, FEATURE_NAMES, kernel_features
from dippm.estimate.features.kernel_table import KernelTable

for op in ("sort", "argsort"):
    b = GraphBuilder(batch=8)
    b.add(op, [b.add("relu", [b.input((8, 64))], (8, 64))], (8, 64))
    for mode in ("eager", "compiled"):
        table = KernelTable.of(b.graph(), "fp16", mode)
        features = kernel_features(table, 8, DeviceView.of(find("A100")))
        print(op, mode, len(features), features[-1, FEATURE_NAMES.index(op)])
"""


def test_a_class_is_added_by_one_row() -> None:
    command = [sys.executable, "-c", ADDED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "sort eager 2 1.0",
        "sort compiled 1 1.0",
        "argsort eager 2 1.0",
        "argsort compiled 2 1.0",
    ]


def test_the_order_is_that_of_the_shipped_weights() -> None:
    """A class may be added at the end; what is there stays where it is."""
    assert tuple(KERNEL_CLASSES)[:26] == FEATURE_NAMES[:26] == (
        "conv_pointwise", "conv_spatial", "conv_patch", "conv_grouped", "conv_depthwise",
        "conv_other", "gemm", "batched_gemm", "attention", "recurrent", "batch_norm", "layer_norm",
        "group_norm", "softmax", "reduction", "pool", "activation", "costly_activation",
        "elementwise", "broadcast", "copy", "concat", "cast", "gather", "resize", "other",
    )  # fmt: skip


def test_an_anchor_is_fusible_and_a_product_neither_fuses_nor_streams() -> None:
    for row in KERNEL_CLASSES.values():
        assert row.fusible or not row.anchor
        assert not (row.matrix and (row.fusible or row.streams))
        assert row.matrix or not (row.tensor_cores or row.tf32_by_default)
