"""A made-up GPU with known laws, and the set that a collector would write on it.

For tests only: nothing was measured. The catalogue's H100 lends its peaks. A kernel takes its
roofline time, slowed by a known factor of its class; a step the longer of its kernels and of their
launches; power and memory follow their laws. All figures have a noise of one per cent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dataset.collect.rows import PointOutcome, make_row
from dataset.families import registry
from dataset.families.family import Workload
from dataset.join.graph_store import GraphStore
from dataset.plan.configuration import Point
from dippm.devices import find
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, roofline_ms, serial_ms
from dippm.estimate.features.kernel_table import KernelTable
from dippm.estimate.models.memory import MemoryFootprint, MemoryGpu
from dippm.estimate.models.power import PowerModel, achieved_shares
from dippm.measure.collected.store import Store
from dippm.measure.kernels import TracedKernel
from dippm.model.graph.model_graph import ModelGraph

GPU = find("H100-SXM-80GB")
SLOWDOWN = {name: 1.25 + 0.25 * (position % 7) for position, name in enumerate(KERNEL_CLASSES)}
LAUNCH_MS = 0.006
EVENT_LAUNCH_MS = 0.004
CONTEXT_MB = 540.0
IDLE_W, LIMIT_W = 110.0, 650.0
POWER = PowerModel(0.25, (1.2, 0.7, 1.5, 0.6), 5.0, 0.0)
NOISE = 0.01
GRADIENT_NS = 50_000
"""By how much the gradients of a kernel take longer than it."""
BATCHES = (1, 16, 256)
PRECISIONS = ("fp32", "fp16")
OPERATORS = (
    Workload("dense", {"n": 768, "k": 768, "bias": True}, (768,)),
    Workload("elementwise", {"name": "relu"}, (64, 56, 56)),
)


def models() -> list[Workload]:
    """Return small members of families that launch different kernels."""
    text = {"act": "gelu", "norm": "layer", "order": "post", "output": "class"}
    text |= {"vocabulary": 30522, "mlp_ratio": 4.0, "positions": "learned"}
    plain = {"norm": "batch", "act": "relu", "hidden": 512, "pool": "max"}
    residual = {"groups": 1, "group_width": 64, "block": "basic", "act": "relu", "se": False}
    table = {"features": 100, "outputs": 10, "norm": "batch", "act": "tanh", "residual": True}
    return [
        *(
            Workload("text_encoder", {**text, "width": w, "depth": d, "heads": 2}, (64,))
            for w, d in ((128, 2), (256, 1), (192, 3))
        ),
        *(
            Workload("vgg", {**plain, "depths": d, "width": w}, (64, 64))
            for d, w in (("1-1-1-1-1", 32), ("1-1-2-2-2", 16), ("1-1-2-1-1", 48))
        ),
        *(
            Workload("resnet", {**residual, "depths": d, "width": w, "stem": "7x7"}, (96, 96))
            for d, w in (("1-1-1-1", 32), ("2-1-1-1", 16), ("1-1-2-1", 64))
        ),
        *(
            Workload("tabular_mlp", {**table, "width": w, "depth": d}, (100,))
            for w, d in ((512, 6), (1024, 3), (256, 8))
        ),
    ]


@dataclass
class SimulatedGpu:
    """Measures on the made-up GPU.

    Attributes:
        graphs: of the models.
        random: of the noise.
        random_of_spans: of the noise of spans between events, so that it moves no other.
    """

    graphs: GraphStore
    random: random.Random = field(default_factory=lambda: random.Random(0))
    random_of_spans: random.Random = field(default_factory=lambda: random.Random(1))

    def write(self, folder: Path) -> Path:
        """Write a set as the collector does: rows of models and operators, training, a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        store = Store(folder, say=lambda _: None)
        for row in self._rows():
            store.append(row)
        store.close()
        return folder

    def _rows(self) -> Iterator[dict]:
        for workload in (*models(), *OPERATORS):
            for batch in BATCHES:
                for precision in PRECISIONS:
                    yield self._row(workload, Point(batch, precision))
        first = models()[0]
        yield self._row(first, Point(8, phase="train"))
        yield make_row("c1", "model", first, PointOutcome(Point(2**15), "oom", "out of memory"))

    def _row(self, workload: Workload, point: Point) -> dict:
        graph = self.graphs[workload.model]
        table = KernelTable.of(graph, point.precision, point.mode)
        kernel_ms = times_ms(table, point.batch) * np.exp(
            [self.random.gauss(0, NOISE) for _ in table.kind]
        )
        kind = "model" if workload.family in registry.FAMILIES else "operator"
        columns = self._columns(graph, table, point, float(kernel_ms.sum()))
        traced = [
            TracedKernel(
                f"{node} made up", ("aten::made_up",), (i,), "", "forward", None, i, round(1e6 * ms)
            ).to_dict()
            for i, (node, ms) in enumerate(zip(table.node, kernel_ms, strict=True))
        ]
        if point.phase == "train":
            traced += [
                {**kernel, "part": "backward", "ns": GRADIENT_NS + kernel["ns"]}
                for kernel in traced
            ]
        columns |= {"kernels": traced}
        return make_row("c1", kind, workload, PointOutcome(point, "ok", columns=columns))

    def _columns(
        self, graph: ModelGraph, table: KernelTable, point: Point, device_ms: float
    ) -> dict:
        step_ms = max(device_ms, table.launches * LAUNCH_MS)
        shares = achieved_shares(table, point.batch, DeviceView.of(GPU), device_ms)
        board = replace(GPU, idle_power_w=IDLE_W, power_limit_w=LIMIT_W)
        power_w = self._noisy(POWER.power_w(board, device_ms / step_ms, shares))
        gpu = MemoryGpu(GPU.sm_count, GPU.compute_capability)
        footprint = MemoryFootprint.of(graph, point.precision, point.mode, inference_mode=True)
        reserved = footprint.usage(point.batch, gpu).reserved_mb
        wall_ms = self._noisy(step_ms)
        steps = max(1, round(1000 / step_ms))
        event_ms = max(device_ms, table.launches * EVENT_LAUNCH_MS)
        event_ms *= float(np.exp(self.random_of_spans.gauss(0, NOISE)))
        return {
            "device": GPU.name, "device_kind": "cuda", "framework": "torch 2.13.0", "cuda": "12.9",
            "timer": "wall", "latency_ms": wall_ms, "latency_sd_ms": 0.01 * wall_ms,
            "event_ms": event_ms, "kernel_ms": device_ms, "kernel_launches": int(table.launches),
            "power_w": power_w, "energy_j": power_w * step_ms / 1e3, "energy_steps": steps,
            "energy_window_s": steps * step_ms / 1e3, "power_cap_w": LIMIT_W,
            "idle_power_w": IDLE_W, "idle_power_after_w": IDLE_W, "sm_clock_mhz": 1980.0,
            "energy_sm_clock_mhz": 1980.0, "throttle_reasons": [], "energy_throttle_reasons": [],
            "other_processes": 0, "memory_reserved_mb": reserved, "memory_context_mb": CONTEXT_MB,
            "memory_mb": reserved + CONTEXT_MB,
        }  # fmt: skip

    def _noisy(self, value: float) -> float:
        return value * float(np.exp(self.random.gauss(0, NOISE)))


def times_ms(table: KernelTable, batch: int) -> np.ndarray:
    """Return the time of each kernel by the law, in ms."""
    slow = np.array(list(SLOWDOWN.values()))[table.kind]
    return roofline_ms(table, batch, DeviceView.of(GPU)) * slow + serial_ms(table, batch)


def place(kernels: Sequence[TracedKernel], _: ModelGraph) -> list[int | None]:
    """Return the operators that the made-up kernels name."""
    return [int(kernel.kernel.split()[0]) for kernel in kernels]
