"""What is a GPU's own and what its laboratory's: mixed effects over what the shared law leaves.

For a kernel k of class c, whose work is arithmetic in unit u and bytes (see
`dippm.estimate.models.gpu_effects`), measured on GPU g with memory of family f in mode m, in table
l of a source,

    log slow-down = law(k) + d[f, m, c, u] + b[chip, u] + h[chip, c, u] + g[g, u] + i[g, m, u]
                    + a[reference or other] + r[timer] + s[source] + q[source, c, u] + j[l]
    log time      = log of the row's sum, with the launches and copies of the table's machine

Each term is normal around 0 with a standard deviation of its own level, which the rows decide
(expectation maximisation, Laplace's approximation around the most likely terms; McCulloch and
Searle 2001, ch. 6). So a GPU that one laboratory measured keeps part of what was found, and one
that several measured the part in which they agree. An answer adds d + b + h + g + i and
the mean a of those who measured the GPU. The sources whose tables have weights of their own in the
networks' last layer are the reference, without s, q and j: on their GPUs an answer means what they
measured. On other GPUs that were measured it means what all other laboratories measured in the
mean, and on those that nobody measured what those measured that have boards of their kind. Those
who sum the times of kernels find less than those who read a clock around a pass (r), and a question
says which it means. Which laboratory it is from is unknown, so its own terms are 0 and their spread
is in the interval.

Sets of our own come after that, and teach b, h, g and i alone, as what is added to the answer for
their GPUs. One set has hundreds of rows of one GPU in seven precisions, and would else decide what
all laboratories and all GPUs with its kind of memory have. What others have stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any, get_args

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from dataset.join.latency_splits import TRAINING_ONLY
from dippm.devices import Device, MemoryFamily, all_devices
from dippm.devices.hosts import KindOfBoard, default_host, kind_of_board, unknown_host_log_sd
from dippm.estimate.conditions import Conditions, Mode, same_arithmetic
from dippm.estimate.features.kernel_classes import KERNEL_CLASSES
from dippm.estimate.features.kernel_features import DeviceView, serial_ms
from dippm.estimate.features.kernel_table import KernelGraph
from dippm.estimate.models.gpu_effects import (
    ANY_MEMORY,
    BYTES,
    EFFECT_UNITS,
    GpuEffects,
    arithmetic_share,
    effect_column,
    effect_of_kernels,
)
from dippm.estimate.models.host import OVERLAP_POWER
from dippm.estimate.models.kernel_law import KernelLaw, Place
from dippm.estimate.models.kernel_network import ROUNDS
from dippm.estimate.models.law_kernels import LawKernels
from dippm.model.graph.model_graph import ModelGraph
from training.hybrid.rows.by_graph import over_graphs
from training.hybrid.rows.examples import (
    GraphLookup,
    Row,
    kernels_of_node,
    mark_others,
    sampled_by,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
N_CLASSES, N_EFFECT_UNITS = len(KERNEL_CLASSES), len(EFFECT_UNITS)
LEVELS: Mapping[str, tuple[str, ...]] = {
    "default": ("family", "mode", "kind", "unit"),
    "chip": ("chip", "unit"),
    "chip_class": ("chip", "kind", "unit"),
    "gpu": ("gpu", "unit"),
    "gpu_mode": ("gpu", "mode", "unit"),
    "laboratories": ("reference",),
    "timer": ("timer",),
    "source": ("source",),
    "source_class": ("source", "kind", "unit"),
    "laboratory": ("table",),
    "launch": ("table",),
}
"""Levels of terms, and what tells the terms of each apart."""
START_SD = {
    "default": 0.3,
    "chip": 0.15,
    "chip_class": 0.1,
    "gpu": 0.1,
    "gpu_mode": 0.05,
    "laboratories": 0.3,
    "timer": 0.3,
    "source": 0.1,
    "source_class": 0.1,
    "laboratory": 0.08,
    "launch": unknown_host_log_sd(),
}
"""Where the standard deviations start, log."""
OF_ONE_LABORATORY = ("source", "source_class", "laboratory")
"""Levels that tables of reference do not have: what they measured is what an answer means."""
OF_ONE_GPU = ("chip", "chip_class", "gpu", "gpu_mode")
"""Levels that rows of our own teach."""
FIXED = ("default", "laboratories", "timer", "launch")
"""Levels whose standard deviation is given: few GPUs, timers and machines would decide it."""
LEAST_SD = 0.01
LEAST_ROW_SD = 0.05
"""The law was fitted to these rows, so it leaves less of them than of those of a question."""
MOST_ROWS = 50
"""Of one table, precision and kind of work: what more of them say, these said."""
ROW_SD = {"model": 0.08, "module": 0.3, "operator": 0.2}
"""Where the standard deviation of what is left of a row starts, log, by what was measured."""
HEAVY = 2.0
"""Rows further off than so many standard deviations pull no harder (Huber 1964)."""
ALIKE_LIMITS = 1.25
"""Ratio of two power limits up to which boards of one chip are alike."""
REFERENCE, OTHERS = "reference", "others"
KERNELS, CLOCK = "kernels", "clock"
MOST_STEP = 0.5


@dataclass(frozen=True, slots=True)
class RowKernels:
    """The kernels of one row as the shared law has them, one for each that differs.

    Attributes:
        base_ms: time of all equal kernels by the shared law without any effect, shape (K,).
        kind: class of each, shape (K,).
        column: column of EFFECT_UNITS of its arithmetic, shape (K,).
        share: w of `dippm.estimate.models.gpu_effects`, shape (K,).
        serial_ms: time in serial steps of all kernels.
        launches: kernels launched.
        input_bytes: bytes that a copy to the device moves.
    """

    base_ms: Floats
    kind: Integers
    column: Integers
    share: Floats
    serial_ms: float
    launches: float
    input_bytes: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """Measured rows, the kernels of each, and the copy rate of inputs to the device."""

    rows: Sequence[Row]
    kernels: Sequence[RowKernels]
    copy_bytes_per_ms: float


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of GPUs and laboratories, as fitted.

    Attributes:
        of_gpus: log slow-down by (GPU, mode), shape (classes, units).
        defaults: log slow-down (d) of a GPU that was not measured, by (memory family or ANY_MEMORY,
            mode).
        laboratories: log slow-down of the laboratories for such a GPU (a and r of a clock), by kind
            of board.
        kernel_timer: log slow-down for the sum of kernels: its r less that of a clock.
        sd: standard deviation of each level, log.
        row_sd: standard deviation of the residuals of rows, by what was measured.
        terms: every term by its name, level first.
    """

    of_gpus: Mapping[tuple[str, Mode], Floats]
    defaults: Mapping[tuple[str, Mode], Floats]
    laboratories: Mapping[KindOfBoard, float]
    kernel_timer: float
    sd: Mapping[str, float]
    row_sd: Mapping[str, float]
    terms: Mapping[tuple[Any, ...], float]


@dataclass(frozen=True, slots=True)
class _Design:
    """Which terms the kernels of rows have.

    Attributes:
        matrix: how much of each term each kernel has, (K, terms).
        level: level of each term, position in LEVELS, (terms,).
        names: names of the terms, each with its level first.
        of_row: row of each kernel, (K,).
        launch: term of each row's machine, (R,).
    """

    matrix: sp.csr_matrix
    level: Integers
    names: list[tuple[Any, ...]]
    of_row: Integers
    launch: Integers

    @classmethod
    def of(
        cls, rows: Sequence[Row], kernels: Sequence[RowKernels], references: Collection[str]
    ) -> _Design:
        """Name the terms of rows, and place them."""
        of_row = np.repeat(np.arange(len(rows)), [len(k.kind) for k in kernels])
        kind = np.concatenate([k.kind for k in kernels])
        share = np.concatenate([k.share for k in kernels])
        column = np.concatenate([k.column for k in kernels])
        words: dict[str, list[str]] = {
            "family": [row.device.memory_family or ANY_MEMORY for row in rows],
            "gpu": [row.device.name for row in rows],
            "chip": [chip_of(row.device) for row in rows],
            "mode": [row.mode for row in rows],
            "table": [row.table for row in rows],
            "source": [row.source for row in rows],
            "timer": [KERNELS if row.timer == "kernel" else CLOCK for row in rows],
            "reference": [REFERENCE if row.source in references else OTHERS for row in rows],
        }
        coded = {name: np.unique(found, return_inverse=True) for name, found in words.items()}
        keys = {name: np.tile(code[of_row], 2) for name, (_, code) in coded.items()}
        keys |= {
            "kind": np.tile(kind, 2),
            "unit": np.concatenate([column, np.full(len(kind), BYTES)]),
        }
        names: list[tuple[Any, ...]] = []
        level: list[int] = []
        places: list[Integers] = []
        for position, (name, parts) in enumerate(LEVELS.items()):
            if name == "launch":
                continue
            stacked = np.stack([keys[part] for part in parts], axis=1)
            found, place = np.unique(stacked, axis=0, return_inverse=True)
            places.append(place.ravel() + len(names))
            for key in found.tolist():
                words_of = (
                    str(coded[part][0][code]) if part in coded else code
                    for part, code in zip(parts, key, strict=True)
                )
                names.append((name, *words_of))
            level += [position] * len(found)
        tables, code = coded["table"]
        launch = code + len(names)
        names += [("launch", str(table)) for table in tables]
        level += [list(LEVELS).index("launch")] * len(tables)
        size, width = len(kind), len(places)
        columns = np.concatenate([p.reshape(2, size) for p in places]).T.ravel()
        halves = np.stack([share, 1.0 - share], axis=1)
        matrix = sp.csr_matrix(
            (np.tile(halves, (1, width)).ravel(), columns, np.arange(size + 1) * 2 * width),
            shape=(size, len(names)),
        )
        matrix.sum_duplicates()
        free = np.array(
            [name[0] not in OF_ONE_LABORATORY or name[1] not in references for name in names]
        )
        matrix = (matrix @ sp.diags(free.astype(np.float64))).tocsr()
        return cls(matrix, np.array(level), names, of_row, launch)

    def of_levels(self, levels: Collection[str]) -> _Design:
        """Return the same with the terms of some levels alone."""
        kept = np.array([name[0] in levels for name in self.names], dtype=np.float64)
        return replace(self, matrix=(self.matrix @ sp.diags(kept)).tocsr())


def fit_effects(
    rows: Sequence[Row],
    kernels: Sequence[RowKernels],
    *,
    copy_bytes_per_ms: float,
    heads: Collection[tuple[str, str, str]] = (),
    rounds: int = 8,
) -> Effects:
    """Fit the terms of all levels to the rows of others, then those of GPUs to our own.

    Args:
        rows: measured.
        kernels: kernels of each row.
        heads: GPU, mode and table of those with weights of their own in the networks' last layer.
        copy_bytes_per_ms: copy rate of inputs to the device.
        rounds: rounds of expectation maximisation, each with one Gauss-Newton step.
    """
    of_law = mark_others(rows)
    others, own = (
        _Rows(list(compress(rows, mine)), list(compress(kernels, mine)), copy_bytes_per_ms)
        for mine in (of_law, ~of_law)
    )
    tables = {table for _, _, table in heads}
    sources = {row.source for row in others.rows if row.table in tables}
    design = _Design.of(others.rows, others.kernels, tables | sources)
    sd = np.array([START_SD[name] for name in LEVELS])
    found, sd, row_sd = _most_likely(others, design, sd, ROW_SD, rounds, fixed=FIXED)
    known = dict(zip(design.names, found.tolist(), strict=True))
    with_table_head = {gpu for gpu, _, _ in heads}
    laboratories = _of_laboratories(others.rows, known, with_table_head)
    effects = Effects(
        *_of_gpus(others.rows, known, with_table_head, laboratories),
        laboratories,
        _of_kernel_timer(known),
        dict(zip(LEVELS, sd.tolist(), strict=True)),
        row_sd,
        known,
    )
    return _with_own(effects, own, sd, rounds) if own.rows else effects


def _with_own(effects: Effects, own: _Rows, sd: Floats, rounds: int) -> Effects:
    """Add to the effects of GPUs what our own rows say beyond the answers that others gave."""
    answered = GpuEffects(
        effects.of_gpus,
        effects.defaults,
        laboratories=effects.laboratories,
        kernel_timer=effects.kernel_timer,
    )
    kernels = [
        _slowed(found, answered.of(row.conditions))
        for row, found in zip(own.rows, own.kernels, strict=True)
    ]
    beyond = replace(own, kernels=kernels)
    design = _Design.of(own.rows, kernels, ()).of_levels(OF_ONE_GPU)
    added, *_ = _most_likely(beyond, design, sd, effects.row_sd, rounds, fixed=tuple(LEVELS))
    terms = dict(zip(design.names, added.tolist(), strict=True))
    named = _measured_or_like({row.device.name: row.device for row in own.rows})
    modes: tuple[Mode, ...] = get_args(Mode)
    of_gpus = dict(effects.of_gpus)
    for device in named.values():
        for mode in modes:
            place = Conditions(device=device, mode=mode, precision="fp32")
            of_gpus[device.name, mode] = answered.of(place) + _own_terms(terms, device, mode)
    return replace(effects, of_gpus=of_gpus)


def _slowed(found: RowKernels, effects: Floats) -> RowKernels:
    """Return kernels with effects of shape (classes, units)."""
    slower = effect_of_kernels(effects, found.kind, found.column, found.share)
    return replace(found, base_ms=found.base_ms * np.exp(slower))


def _most_likely(
    given: _Rows,
    design: _Design,
    sd: Floats,
    row_sd: Mapping[str, float],
    rounds: int,
    *,
    fixed: Collection[str],
) -> tuple[Floats, Floats, dict[str, float]]:
    """Return the most likely terms, the standard deviation of each level, and that of rows.

    Args:
        given: measured rows.
        design: their terms.
        sd: standard deviation of each level, to start from.
        row_sd: standard deviation of the residuals of rows, to start from.
        rounds: rounds of expectation maximisation, each with one Gauss-Newton step.
        fixed: levels that keep theirs.
    """
    rows, kernels = given.rows, given.kernels
    count, size = len(rows), len(design.names)
    base = np.concatenate([k.base_ms for k in kernels])
    serial = np.array([k.serial_ms for k in kernels])
    copied = np.array([row.timer == "wall+copy" for row in rows])
    copy = copied * np.array([k.input_bytes for k in kernels]) / given.copy_bytes_per_ms
    waits = np.array([row.timer != "kernel" for row in rows])
    launch_ms = np.array([default_host(row.device).launch_us / 1e3 for row in rows])
    host_ms = waits * np.array([k.launches for k in kernels]) * launch_ms
    label = np.log([row.latency_ms for row in rows])
    kinds = np.array([row.kind for row in rows])
    sums = sp.csr_matrix(
        (np.ones(len(base)), (design.of_row, np.arange(len(base)))), shape=(count, len(base))
    )
    sd, row_sd = sd.copy(), dict(row_sd)
    found = np.zeros(size)
    for _ in range(rounds):
        each = base * np.exp(design.matrix @ found)
        device = np.maximum(sums @ each + serial, 1e-12)
        host = host_ms * np.exp(found[design.launch])
        power = (host / device) ** OVERLAP_POWER
        wall = device * (1.0 + power) ** (1.0 / OVERLAP_POWER)
        error = label - np.log(wall + copy)
        # d log time / d term, of terms of kernels and of the machine's launch time
        of_wall = wall / (wall + copy)
        of_device = sp.diags(of_wall / (1.0 + power) / device)
        of_kernels = of_device @ sums @ sp.diags(each) @ design.matrix
        of_host = sp.csr_matrix(
            (of_wall * power / (1.0 + power), (np.arange(count), design.launch)), (count, size)
        )
        slopes = (of_kernels + of_host).tocsr()
        noise = np.array([row_sd[kind] for kind in kinds])
        weight = np.minimum(1.0, HEAVY * noise / np.maximum(np.abs(error), 1e-9)) / noise**2
        prior = 1.0 / sd[design.level] ** 2
        normal = (slopes.T @ sp.diags(weight) @ slopes).toarray()
        normal[np.diag_indices(size)] += prior
        factor = scipy.linalg.cho_factor(normal)
        step = scipy.linalg.cho_solve(factor, slopes.T @ (weight * error) - prior * found)
        found = found + np.clip(step, -MOST_STEP, MOST_STEP)
        variance = np.diag(scipy.linalg.cho_solve(factor, np.eye(size)))
        for place, name in enumerate(LEVELS):
            mine = design.level == place
            if name not in fixed:
                sd[place] = max(LEAST_SD, np.sqrt(np.mean(found[mine] ** 2 + variance[mine])))
        left = np.abs(error - slopes @ step)
        for kind in set(kinds.tolist()):
            row_sd[kind] = max(LEAST_ROW_SD, float(1.4826 * np.median(left[kinds == kind])))
    return found, sd, row_sd


def _of_gpus(
    rows: Sequence[Row],
    known: Mapping[tuple[Any, ...], float],
    with_table_head: Collection[str],
    laboratories: Mapping[KindOfBoard, float],
) -> tuple[dict[tuple[str, Mode], Floats], dict[tuple[str, Mode], Floats]]:
    """Return what GPUs have of their own, and what others take, from the terms by name."""
    modes: tuple[Mode, ...] = get_args(Mode)
    shape = N_CLASSES, N_EFFECT_UNITS
    defaults = {
        (family, mode): np.array([_usual(known, family, mode, *at) for at in np.ndindex(shape)])
        for family in (*get_args(MemoryFamily), ANY_MEMORY)
        for mode in modes
    }
    defaults = {key: found.reshape(shape) for key, found in defaults.items()}
    of_gpus = {}
    measured = {row.device.name: row.device for row in rows}
    for device in _measured_or_like(measured).values():
        of_laboratories = (
            _of_clock(known, REFERENCE if device.name in with_table_head else OTHERS)
            if device.name in measured
            else laboratories[kind_of_board(device)]
        )
        for mode in modes:
            of_all = defaults[device.memory_family or ANY_MEMORY, mode]
            own = _own_terms(known, device, mode)
            of_gpus[device.name, mode] = of_all + of_laboratories + own
    return of_gpus, defaults


def _own_terms(known: Mapping[tuple[Any, ...], float], device: Device, mode: Mode) -> Floats:
    """Return what a GPU has of its own, b, h, g and i, shape (classes, units)."""
    chip, shape = chip_of(device), (N_CLASSES, N_EFFECT_UNITS)
    own = [
        known.get(("chip", chip, unit), 0.0)
        + known.get(("chip_class", chip, kind, unit), 0.0)
        + known.get(("gpu", device.name, unit), 0.0)
        + known.get(("gpu_mode", device.name, mode, unit), 0.0)
        for kind, unit in np.ndindex(shape)
    ]
    return np.reshape(own, shape)


def _measured_or_like(measured: Mapping[str, Device]) -> dict[str, Device]:
    """Return measured GPUs by name, and those with a chip of theirs and about its power limit."""
    return dict(measured) | {
        found.name: found
        for found in all_devices()
        if any(is_like_board(found, device) for device in measured.values())
    }


def _of_clock(known: Mapping[tuple[Any, ...], float], which: str) -> float:
    """Return what laboratories add that read a clock."""
    return known.get(("laboratories", which), 0.0) + known.get(("timer", CLOCK), 0.0)


def _of_kernel_timer(known: Mapping[tuple[Any, ...], float]) -> float:
    """Return how much less those find who sum kernels; 0 where one of both is missing."""
    found = [known[name] for name in (("timer", KERNELS), ("timer", CLOCK)) if name in known]
    return found[0] - found[1] if len(found) == 2 else 0.0


def _of_laboratories(
    rows: Sequence[Row], known: Mapping[tuple[Any, ...], float], with_table_head: Collection[str]
) -> dict[KindOfBoard, float]:
    """Return the mean term of laboratories (a), by kind of board, for unmeasured GPUs."""
    of_reference = {kind_of_board(row.device) for row in rows if row.device.name in with_table_head}
    return {
        kind: _of_clock(known, REFERENCE if kind in of_reference else OTHERS)
        for kind in get_args(KindOfBoard)
    }


def _usual(
    known: Mapping[tuple[Any, ...], float], family: str, mode: Mode, kind: int, unit: int
) -> float:
    """Return d; where nothing of the mode taught it that of eager mode, then of any memory."""
    for families in ((family,), get_args(MemoryFamily)):
        for one in (mode, "eager"):
            names = [("default", other, one, kind, unit) for other in families]
            found = [known[name] for name in names if name in known]
            if found:
                return float(np.mean(found))
    return 0.0


def chip_of(device: Device) -> str:
    """Return what boards of one chip have in common, see `monotonic_bounds.is_same_chip`."""
    return f"{device.architecture} {device.sm_count}"


def is_like_board(device: Device, other: Device) -> bool:
    """Tell whether a board has the chip of another one, and about its power limit.

    A GTX 1080 has the multiprocessors of a P4, and two and a half times its power: what the limit
    of the one does to the chip says nothing of the other.
    """
    limit_w, other_w = device.power_limit_w, other.power_limit_w
    if chip_of(device) != chip_of(other) or limit_w is None or other_w is None:
        return False
    return max(limit_w, other_w) <= ALIKE_LIMITS * min(limit_w, other_w)


def sampled_rows(rows: Sequence[Row]) -> list[Row]:
    """Return at most MOST_ROWS rows of each table, precision and kind of work, always the same.

    None of those of TRAINING_ONLY, and no operator amid a model: they are many and far apart, and
    would outvote the whole models that they come from, which users ask for.
    """
    asked = (row for row in rows if row.source not in TRAINING_ONLY and row.node is None)
    return sampled_by(
        asked,
        lambda row: (row.table, row.precision, "model" if row.is_model else row.family),
        MOST_ROWS,
    )


def row_kernels(
    laws: Sequence[KernelLaw], rows: Sequence[Row], graph: GraphLookup
) -> list[list[RowKernels]]:
    """Return the kernels of rows by the shared law of each checkpoint, in the order of the rows.

    What a row launches is the same by all of them, and costs more than to ask a law.

    Args:
        laws: laws of checkpoints; their effects are ignored.
        rows: measured.
        graph: key → graph.
    """
    bare = [replace(law, effects=GpuEffects({}, {})) for law in laws]
    found = over_graphs(partial(_of_graph, bare), rows, graph, what="times by the shared law")
    return [list(of_law) for of_law in zip(*found, strict=True)] if found else [[] for _ in laws]


def _of_graph(
    laws: Sequence[KernelLaw], graph: ModelGraph, rows: Sequence[Row]
) -> list[list[RowKernels]]:
    """Return the kernels of each row, by each law."""
    made: dict[tuple[Any, ...], LawKernels] = {}
    found = []
    for row in rows:
        precision = same_arithmetic(row.device, row.precision)[0]
        key = (precision, row.mode, row.channels_last, row.kept_half, row.node)
        if key not in made:
            table = row.kernel_table(graph, precision)
            if row.node is not None:
                table = kernels_of_node(table, row.node)
            made[key] = LawKernels.of(KernelGraph.of(table, ROUNDS))
        found.append(_of_row(laws, made[key], row))
    return found


def _of_row(laws: Sequence[KernelLaw], kernels: LawKernels, row: Row) -> list[RowKernels]:
    view = DeviceView.of(row.device, row.mig)
    places = [Place(view, row.conditions)]
    if kernels.ieee_unique_kernels is not None and "tf32" in row.device.peak_tflops:
        places.append(Place(view, row.conditions, ieee=True))
    unique, graph = kernels.unique_kernels, kernels.graph
    inverse = kernels.inverse[graph.class_of]
    serial = serial_ms(unique, row.batch)[inverse]
    per_sample, fixed = graph.table.input_bytes
    same = RowKernels(
        base_ms=np.zeros(len(unique.kind)),
        kind=unique.kind.astype(np.int64),
        column=effect_column(unique.unit),
        share=arithmetic_share(unique, row.batch, view),
        serial_ms=float(serial.sum()),
        launches=graph.launches,
        input_bytes=float(per_sample * row.batch + fixed),
    )
    found = []
    for law in laws:
        times = law.times(kernels, row.batch, places)
        kernel_ms = np.min([of_place.kernel_ms for of_place in times], axis=0)
        busy = np.maximum(kernel_ms - serial, 0.0)
        base_ms = np.bincount(inverse, busy, len(unique.kind)).astype(np.float64)
        found.append(replace(same, base_ms=base_ms))
    return found
