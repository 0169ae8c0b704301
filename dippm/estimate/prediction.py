"""`Prediction`: the answer for one model under one set of conditions, and how it prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from math import isfinite
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import between, decimals, show
from dippm.base.printable import printable
from dippm.devices import Device, MigProfile, seed_profile, smallest_profile
from dippm.estimate import conditions
from dippm.estimate.conditions import FLOAT32_SETTINGS, Conditions
from dippm.estimate.derived import DERIVED
from dippm.estimate.epoch import Epoch, epoch_of
from dippm.estimate.measure_line import Asked, measure_line
from dippm.estimate.models.targets import (
    UNITS,
    Estimate,
    Estimates,
    HostUse,
    Interval,
    MemoryParts,
    OperatorCost,
)
from dippm.estimate.module_tree import ModuleCost, Weights, module_tree
from dippm.model.graph.model_graph import ModelGraph

SEED_DEVICE = "A100-40GB"
SHOWN = 10
"""Number of operators that a notebook lists."""
LABELS = {"memory_mb": "memory", "energy_j": "energy", "latency_ms": "latency", "power_w": "power"}
WHERE = ("source", "device", "slice", "batch", "precision")
_APART = (*WHERE, "mig", "host")
CONDITIONS = tuple(name for name in conditions.CONDITIONS if name not in _APART)
FIT = ("memory_bound_mb", "capacity_mb", "headroom_mb", "fits")
COLUMNS = (
    *(*WHERE, *LABELS, "mig", "error"),
    *(f"{target}_{end}" for target in LABELS for end in ("low", "high")),
    *("coverage", *FIT, *CONDITIONS, "host", "host_launch_us", "host_assumed"),
    *("checkpoint", "absent", "warnings", "verify", *DERIVED),
)
"""Columns of a prediction's row, alone or in a comparison; new ones are appended."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a prediction.

    Attributes:
        source: file name, specification or class of the model.
        checkpoint: "name version".
        kind: kind of predictor.
        sha256: hash of the checkpoint's weights.
        graph_version: version of the canonical rules.
        dippm_version: version of this package.
        frameworks: frameworks whose runs the checkpoint learned from, for which the numbers hold.
    """

    source: str
    checkpoint: str
    kind: str
    sha256: str
    graph_version: str
    dippm_version: str
    frameworks: tuple[str, ...] = ("torch",)


@dataclass(frozen=True, slots=True)
class Prediction(Answer):
    """The cost of a model on a GPU, as `dippm.predict` returns it.

    It unpacks as memory, energy, latency, MIG profile, in that order, rounded for print.

    Attributes:
        memory_mb: peak GPU memory in MiB as `nvidia-smi` shows it; None, as every target, if it is
            in `absent`.
        energy_j: energy of one forward pass of the batch, or of one training step, in J.
        latency_ms: time of that pass or step in ms.
        power_w: mean power during that pass or step in W.
        mig: smallest MIG profile whose usable memory holds `memory_bound_mb`; None if none does
            or the GPU has none, with the reason in `absent`.
        host: machine that launches the kernels, and its share of the latency; None if the
            checkpoint knows only one.
        memory_bound_mb: one-sided 99 % upper bound of the memory, on which `fits` is based; on a
            slice that of the whole GPU.
        memory_parts: summands of `memory_mb`, and the operator at its peak; None, with the reason
            in `absent`, if the checkpoint predicts it as one number, and for points of a grid.
        intervals: interval by target.
        absent: reason by target (or "mig", "fits", "memory_parts") that has no value.
        warnings: limits of the answer that a user should know.
        operators: cost per operator, the host's share last; empty for points of a grid.
        conditions: conditions that the prediction is for.
        provenance: checkpoint and rules that answered.
        source_graph: converted model before its batch is fixed, see `graph`.
        asked: file or name that the model was read from; None if it is not known.
    """

    memory_mb: float | None
    energy_j: float | None
    latency_ms: float | None
    power_w: float | None
    mig: MigProfile | None
    memory_bound_mb: float | None
    memory_parts: MemoryParts | None = field(repr=False)
    host: HostUse | None = field(repr=False)
    intervals: Mapping[str, Interval]
    absent: Mapping[str, str]
    warnings: tuple[str, ...]
    operators: tuple[OperatorCost, ...] = field(repr=False)
    conditions: Conditions = field(repr=False)
    provenance: Provenance = field(repr=False)
    source_graph: ModelGraph = field(repr=False)
    asked: Asked | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        estimates: Estimates,
        graph: ModelGraph,
        *,
        conditions: Conditions,
        provenance: Provenance,
        asked: Asked | None = None,
    ) -> Prediction:
        """Return the prediction that consists of a predictor's estimates."""
        known = {t: e for t, e in estimates.values.items() if _is_finite(e)}
        values = {target: estimate.value for target, estimate in known.items()}
        reasons = {
            **dict.fromkeys(UNITS, f"{provenance.checkpoint} does not predict it"),
            **dict.fromkeys(estimates.values, f"{provenance.checkpoint} gave no finite number"),
            **estimates.absent,
        }
        absent = {target: reasons[target] for target in UNITS if target not in values}
        bound = estimates.memory_bound_mb if "memory_mb" in known else None
        parts = estimates.memory_parts if "memory_mb" in known else None
        if parts is None:
            whole = f"{provenance.checkpoint} predicts the memory as one number"
            absent["memory_parts"] = absent.get("memory_mb", reasons.get("memory_parts", whole))
        if bound is None:
            absent["fits"] = absent.get("memory_mb", f"{provenance.checkpoint} gives no 99 % bound")
        mig, why_not = _advise(bound, conditions)
        return cls(
            memory_mb=values.get("memory_mb"),
            energy_j=values.get("energy_j"),
            latency_ms=values.get("latency_ms"),
            power_w=values.get("power_w"),
            mig=mig,
            memory_bound_mb=bound,
            memory_parts=parts,
            host=estimates.host,
            intervals={target: e.interval for target, e in known.items()},
            absent={**absent, "mig": why_not} if why_not else absent,
            warnings=(
                *graph.notes,
                *estimates.warnings,
                *_capacity_warnings(known.get("memory_mb"), bound, conditions),
            ),
            operators=estimates.operators if "latency_ms" in known else (),
            conditions=conditions,
            provenance=provenance,
            source_graph=graph,
            asked=asked,
        )

    @property
    def graph(self) -> ModelGraph:
        """The model's graph at the batch of the prediction."""
        if not self.source_graph.batch_is_symbolic:
            return self.source_graph
        return self.source_graph.at_batch(self.conditions.batch)

    def estimate(self, name: str) -> Estimate | None:
        """Return a target, or what follows from one (`dippm.estimate.derived`), with its interval.

        None without a value; for a target `absent` has the reason.
        """
        if name in DERIVED:
            found = self.estimate(DERIVED[name].target)
            return found and DERIVED[name].of(found, self.conditions.batch)
        value = getattr(self, name)
        return None if value is None else Estimate(value, self.intervals[name])

    def rows(self) -> list[dict[str, Any]]:
        """Return its single row, with the keys `COLUMNS` as in a comparison."""
        row, host = point_row(self.provenance.source, self.conditions), self.host
        for target in LABELS:
            interval = self.intervals.get(target)
            row[target] = getattr(self, target)
            row[f"{target}_low"] = interval and interval.low
            row[f"{target}_high"] = interval and interval.high
            row["coverage"] = interval.coverage if interval else row["coverage"]
        for name in DERIVED:
            found = self.estimate(name)
            row[name] = found and found.value
        return [
            {
                **row,
                **{name: getattr(self, name) for name in FIT},
                "mig": self.mig and self.mig.name,
                "host": host and host.name,
                "host_launch_us": host and host.launch_us,
                "host_assumed": host and host.assumed,
                "checkpoint": self.provenance.checkpoint,
                "absent": dict(self.absent),
                "warnings": list(self.warnings),
                "verify": self.verify,
            }
        ]

    @property
    def capacity_mb(self) -> int:
        """Memory of the GPU in MiB, or usable memory of the slice."""
        return self.conditions.capacity_mb

    @property
    def headroom_mb(self) -> float | None:
        """Memory left at the 99 % bound in MiB, negative if it does not fit; None as `fits`."""
        return None if self.memory_bound_mb is None else self.capacity_mb - self.memory_bound_mb

    @property
    def fits(self) -> bool | None:
        """Whether the memory holds the 99 % bound, which also decides `mig`.

        None, with the reason in `absent`, where the memory is not predicted.
        """
        return None if self.memory_bound_mb is None else self.memory_bound_mb <= self.capacity_mb

    @property
    def misfit(self) -> str | None:
        """Why the model is not known to fit, in words; None if it fits."""
        if self.fits:
            return None
        c = self.conditions
        place = f"{c.mig} of {c.device.name}" if c.mig else c.device.name
        if self.memory_bound_mb is None:
            return f"whether it fits {place} is not known: {self.absent['fits']}"
        needs = f"needs up to {show(self.memory_bound_mb)} MB at 99 %"
        return f"does not fit {place}: {needs}, of {self.capacity_mb:,}"

    @property
    def tree(self) -> ModuleCost:
        """The cost of each module, with subtotals; without times where `operators` is empty.

        Its weights add up to those of `memory_parts`.
        """
        return module_tree(
            self.graph, self.operators, name=self.provenance.source, weights=self.weights
        )

    @property
    def weights(self) -> Weights:
        """The weights in memory by operator."""
        parts = self.memory_parts
        total_bytes = None if parts is None else parts.weights_mb * 2**20
        return Weights.of(self.source_graph, self.conditions.precision, total_bytes)

    def epoch(self, samples: int, *, epochs: int = 1, price_per_hour: float | None = None) -> Epoch:
        """Return the cost of training on a data set, see `dippm.estimate.epoch.epoch_of`.

        Args:
            samples: number of samples in the data set.
            epochs: number of passes over it.
            price_per_hour: price of the GPU.

        Raises:
            ConditionsError: if this is not the prediction of a training step.
        """
        return epoch_of(self, samples, epochs=epochs, price_per_hour=price_per_hour)

    @property
    def seed_mig(self) -> MigProfile | None:
        """The slice by the published rule of DIPPM, without margin; only for an A100-40GB."""
        if self.memory_mb is None or self.conditions.device.name != SEED_DEVICE:
            return None
        return seed_profile(self.memory_mb)

    def __iter__(self) -> Iterator[float | MigProfile | None]:
        yield _rounded(self.memory_mb)
        yield _rounded(self.energy_j)
        yield _rounded(self.latency_ms)
        yield self.mig

    def __str__(self) -> str:
        lines = [" " + self.title, f"{'':14}{'predicted':<14}{_coverage(self.intervals)}"]
        for label, value, rest in self._rows():
            lines.append(f" {label:<13}{value:<13} {rest}".rstrip())
            if label == LABELS["memory_mb"]:
                lines += [f"   {line}" for line in self._memory_lines()]
        lines += [f" ! {printable(warning)}" for warning in self.warnings]
        return "\n".join([*lines, " " + self.footer])

    @property
    def title(self) -> str:
        """Model and conditions in one printable line."""
        c = self.conditions
        place = f"{c.device.name}, slice {c.mig}" if c.mig else c.device.name
        parts = [self.provenance.source, f"batch {c.batch}", place, c.precision]
        parts += [c.execution.engine, *c.execution.remarks]
        if c.phase == "train":
            parts += ["training step", c.optimizer, *["checkpointing"] * c.checkpointing]
        return printable(" · ".join(parts))

    @property
    def footer(self) -> str:
        """Checkpoint, graph and host in one printable line."""
        unknown = sum(self.source_graph.unknown_ops.values())
        operators = len(self.source_graph.nodes)
        checkpoint = printable(self.provenance.checkpoint)
        host = self.host
        place = f" · host {host.name}{' (assumed)' * host.assumed}" if host else ""
        return f"{checkpoint} · {operators} operators, {unknown} unknown{place}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; the graph is summed up."""
        c, graph = self.conditions, self.source_graph
        return {
            "source": self.provenance.source,
            "conditions": c.to_dict(),
            "precision_settings": FLOAT32_SETTINGS.get(c.precision),
            "host": self.host and asdict(self.host),
            **{target: getattr(self, target) for target in LABELS},
            "mig": self.mig and self.mig.name,
            "memory_bound_mb": self.memory_bound_mb,
            "capacity_mb": self.capacity_mb,
            "headroom_mb": self.headroom_mb,
            "fits": self.fits,
            "memory_parts": self.memory_parts and asdict(self.memory_parts),
            "intervals": {target: asdict(i) for target, i in self.intervals.items()},
            "absent": {**self.absent, **self.unverified},
            "warnings": list(self.warnings),
            "operators": [asdict(operator) for operator in self.operators],
            "graph": {
                "operators": len(graph.nodes),
                "unknown": dict(graph.unknown_ops),
                "param_bytes": graph.param_bytes,
            },
            "provenance": {
                **asdict(self.provenance),
                "frameworks": list(self.provenance.frameworks),
            },
            "verify": self.verify,
        }

    def _repr_html_(self) -> str:
        if not self.operators:
            return self.answer_html()
        costliest = sorted(self.operators, key=lambda cost: cost.time_ms, reverse=True)[:SHOWN]
        folded = {"By module": self.tree._repr_html_(), "Costliest": operators_html(costliest)}
        return self.answer_html() + "".join(
            f"<details><summary>{name}</summary>{table}</details>" for name, table in folded.items()
        )

    def answer_html(self, *, titled: bool = True) -> str:
        """Return the table of values alone as markup; a page says the title by itself."""
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows()
        )
        head = f"<tr><th></th><th>predicted</th><th>{_coverage(self.intervals)}</th></tr>"
        notes = "".join(f"<li>{escape(printable(warning))}</li>" for warning in self.warnings)
        caption = f"<caption>{escape(self.title)}</caption>" if titled else ""
        memory = (
            f"<p>memory: {escape('; '.join(self._memory_lines()))}</p>" if self.memory_parts else ""
        )
        verify, unverified = self._check
        check = f"<code>{escape(printable(verify))}</code>" if verify else escape(unverified)
        check = f"<p>verify: {check}</p>" if titled else ""  # a page says it by itself, last
        return (
            f"<table>{caption}{head}{rows}</table>{memory}"
            f"{f'<ul>{notes}</ul>' if notes else ''}<small>{escape(self.footer)}</small>"
            f"{check}"
        )

    @property
    def verify(self) -> str | None:
        """The line of `dippm measure` that checks this on a machine that has the GPU.

        None if there is none; `to_dict` has the reason in "absent".
        """
        return self._check[0] or None

    @property
    def unverified(self) -> dict[str, str]:
        """The reason why nothing checks this, as "verify"; {} if a line does."""
        reason = self._check[1]
        return {"verify": reason} if reason else {}

    @property
    def verify_line(self) -> str:
        """What checks this, or why nothing does, in one printable line."""
        verify, unverified = self._check
        return printable(f"verify        {verify or 'no command: ' + unverified}")

    @property
    def _check(self) -> tuple[str, str]:
        return measure_line(self.asked, self.conditions, self.provenance.frameworks)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for target, label in LABELS.items():
            value = getattr(self, target)
            if value is None:
                yield label, "not available: " + printable(self.absent[target]), ""
                continue
            interval = self.intervals[target]
            yield label, f"{show(value)} {UNITS[target]}", between(interval.low, interval.high)
        yield "fits", *self._fit_row()
        yield "MIG slice", *self._mig_row()

    def _memory_lines(self) -> tuple[str, ...]:
        """Return the parts of the memory, and where the peak stands, as printable lines."""
        parts = self.memory_parts
        if parts is None:
            return ()
        place = f"{parts.peak_path} {parts.peak_op}".strip() or "the inputs"
        kept = "activations"
        if self.conditions.autograd and parts.peak_node is None:
            place, kept = "the end of the forward pass", "saved activations"
        if self.conditions.phase == "train":
            place = "the start of the backward pass"
            kept = (
                f"gradients {show(parts.gradients_mb)} + optimizer {show(parts.optimizer_mb)} "
                "+ saved activations and loss"
            )
        context = f"context {show(parts.context_mb)}"
        if parts.context_sd_mb is not None:
            context += f" ({parts.context_software}{', assumed' * parts.context_assumed})"
        return (
            f"weights {show(parts.weights_mb)} + {kept} {show(parts.activations_mb)} "
            f"+ workspace {show(parts.workspace_mb)} + {context}",
            f"nvidia-smi shows the sum; {show(parts.reserved_mb)} of it is the allocator's",
            f"peak at {printable(place)}",
        )

    def _fit_row(self) -> tuple[str, str]:
        if self.memory_bound_mb is None:
            return "not known: " + printable(self.absent["fits"]), ""
        of_all = f"{show(self.memory_bound_mb)} MB at 99 %, of {self.capacity_mb:,}"
        return "yes" if self.fits else "no", of_all

    def _mig_row(self) -> tuple[str, str]:
        if self.mig is None:
            return "none: " + printable(self.absent["mig"]), ""
        assert self.memory_bound_mb is not None
        return self.mig.name, f"{show(self.memory_bound_mb)} MB at 99 %, of {self.mig.memory_mb:,}"


def point_row(source: str, c: Conditions | None) -> dict[str, Any]:
    """Return the row of a point with its conditions, all predicted columns empty."""
    where: dict[str, Any] = {
        "source": source,
        "device": c and c.device.name,
        "slice": c and c.mig and c.mig.name,
        "batch": c and c.batch,
        "precision": c and c.precision,
    }
    row: dict[str, Any] = {**dict.fromkeys(COLUMNS), **where, "absent": {}, "warnings": []}
    values = c.to_dict() if c else {}
    return row | {name: values.get(name) for name in CONDITIONS}


def _is_finite(estimate: Estimate) -> bool:
    interval = estimate.interval
    return all(map(isfinite, (estimate.value, interval.low, interval.high)))


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    places = decimals(value)
    return round(value, places) if places else round(value)


def _coverage(intervals: Mapping[str, Interval]) -> str:
    levels = sorted({interval.coverage for interval in intervals.values()})
    return f"{', '.join(f'{100 * level:g}' for level in levels)} % interval" if levels else ""


def _advise(bound_mb: float | None, c: Conditions) -> tuple[MigProfile | None, str]:
    """Return the smallest slice whose memory holds the bound, or None and the reason."""
    if bound_mb is None:
        return None, "the memory is not predicted"
    if not (c.device.mig_profiles or c.device.unlisted_mig_profiles):
        return None, f"{c.device.name} has no MIG profiles"
    mig = smallest_profile(bound_mb, c.device)
    return mig, "" if mig else _no_slice(bound_mb, c.device)


def _no_slice(bound_mb: float, device: Device) -> str:
    needs = f"{show(bound_mb)} MB"
    if not device.unlisted_mig_profiles:
        return f"no slice of {device.name} holds {needs}"
    others = "; the slices whose memory is known do not" if device.mig_profiles else ""
    return (
        f"whether {', '.join(device.unlisted_mig_profiles)} of {device.name} hold {needs} is not "
        f"known: their usable memory is not{others}"
    )


def _capacity_warnings(
    memory: Estimate | None, bound_mb: float | None, c: Conditions
) -> tuple[str, ...]:
    place, capacity = c.mig or c.device.name, c.capacity_mb
    if memory is None or bound_mb is None or bound_mb <= capacity:
        return ()
    has = f"{place} has {capacity:,} MB"
    if memory.interval.low > capacity:
        least = f"{show(memory.value)} MB, {show(memory.interval.low)} at the least"
        return (f"will run out of memory: needs {least}, {has}",)
    return (f"may run out of memory: needs up to {show(bound_mb)} MB, {has}",)


_BAR = "display: inline-block; height: .7em; background: #3b6fb6"
OPERATOR_HEADER = ("operator", "module", "ms", "share", "bound")


def operators_html(operators: Iterable[OperatorCost]) -> str:
    """Return a row for each operator, in the order given, with a bar for its share."""
    head = "".join(f"<th>{name}</th>" for name in OPERATOR_HEADER)
    return f"<table><tr>{head}</tr>{''.join(map(_operator_row, operators))}</table>"


def _operator_row(cost: OperatorCost) -> str:
    bar = f'<span style="{_BAR}; width:{max(cost.share, 0) * 20:.2f}rem"></span>'
    return (
        f"<tr><td>{escape(printable(cost.title))}</td><td>{escape(printable(cost.path))}</td>"
        f"<td>{show(cost.time_ms)}</td><td>{bar} {cost.share:.1%}</td>"
        f"<td>{escape(cost.bound)}</td></tr>"
    )
