"""`LanguagePrediction`: cost of serving a language model, and how it prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dippm.base.answer import Answer
from dippm.base.number_format import between, show
from dippm.base.printable import printable
from dippm.decide.language.architecture import Decoder
from dippm.decide.language.memory import LanguageMemory
from dippm.decide.language.passes import PassCost
from dippm.decide.language.setting import ServingSetting
from dippm.estimate.models.memory import ONE_CONTEXT
from dippm.estimate.models.targets import Estimate, HostUse

HEADER = ("context", "step ms", "90 % interval", "tokens/s", "J/token", "memory MB")


UNVERIFIED = "dippm measure serves no language model: the engine's own benchmark would check it"
"""Why no command of DIPPM checks an answer about a language model."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A decode step at one context.

    Attributes:
        context: tokens of each sequence, including the new one.
        cost: cost of the step.
        tokens_per_s: throughput over all sequences.
        joules_per_token: energy of all GPUs; None if the power is not known.
        memory_mb: memory of one GPU at this context.
        fits: whether the GPU holds the 99 % bound of it.
    """

    context: int
    cost: PassCost
    tokens_per_s: float
    joules_per_token: float | None
    memory_mb: float
    fits: bool

    def row(self) -> dict[str, Any]:
        """Return the step as one flat mapping."""
        row = self.to_dict()
        for name, ends in row.pop("intervals").items():
            row |= {f"{name}_low": ends["low"], f"{name}_high": ends["high"]}
        return {**row, "parts_ms": row.pop("parts_ms")}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data, with the fields of `cost` on the same level."""
        return {
            "context": self.context,
            **self.cost.to_dict(),
            "tokens_per_s": self.tokens_per_s,
            "joules_per_token": self.joules_per_token,
            "memory_mb": self.memory_mb,
            "fits": self.fits,
        }


@dataclass(frozen=True, slots=True)
class LanguagePrediction(Answer):
    """Cost of serving a language model; `dippm.language_model` makes it.

    Attributes:
        first_token: prefill pass over the prompts: time to first token.
        steps: decode steps, by context.
        generate_s: time from the prompts to the last token, in s.
        tokens_per_s: generated tokens of all sequences over that time.
        joules_per_token: energy of all GPUs over the generated tokens; None, with the reason in
            `absent`, if the power is not known.
        memory: memory of one GPU at the longest context.
        largest_batch: largest batch that fits at 99 %, with the prompt and generated tokens asked
            for.
        largest_context: longest context that fits at 99 % at the batch asked for, within the
            model's own limit.
        memory_context: longest context that fits, regardless of the model's own limit.
        host: the machine that launches kernels.
        absent: reason for each quantity without a value.
        warnings: warnings about the numbers.
        decoder: the model.
        setting: the question.
        checkpoint: "name version" of the predictor.
        sha256: hash of its weights.
    """

    first_token: PassCost
    steps: tuple[DecodeStep, ...]
    generate_s: float
    tokens_per_s: float
    joules_per_token: float | None
    memory: LanguageMemory
    largest_batch: int
    largest_context: int
    memory_context: int
    host: HostUse = field(repr=False)
    absent: dict[str, str]
    warnings: tuple[str, ...]
    decoder: Decoder = field(repr=False)
    setting: ServingSetting = field(repr=False)
    checkpoint: str
    sha256: str = field(repr=False)

    @property
    def title(self) -> str:
        """Model and setting in one printable line."""
        s, c = self.setting, self.setting.conditions
        place = f"{s.gpus} × {c.device.name}" if s.gpus > 1 else c.device.name
        formats = c.precision if s.weights.name == c.precision else f"{s.weights.name} weights"
        parts = [self.decoder.name, place, f"batch {c.batch:,}"]
        parts += [f"{s.prompt:,} + {s.generated:,} tokens", formats]
        parts += [f"{s.cache} cache"] * (s.cache not in ("bf16", "fp16"))
        return printable(" · ".join([*parts, s.software]))

    @property
    def footer(self) -> str:
        """Checkpoint, model and host in one printable line."""
        d = self.decoder
        kinds = ", ".join(sorted({layer.attention.sharing for layer in d.layers}))
        active = d.active_parameters
        routed = f", {_billions(active)} active" if active < d.parameters else ""
        host = f" · host {self.host.name}{' (assumed)' * self.host.assumed}"
        return printable(
            f"{self.checkpoint} · {_billions(d.parameters)} parameters{routed}, {kinds}"
            f"{host if self.setting.software != 'graph' else ''}"
        )

    def figures(self) -> Iterator[tuple[str, str, str]]:
        """Yield label, value and remark of each figure."""
        first, s = self.first_token, self.setting
        yield "first token", f"{show(first.latency_ms.value)} ms", _between(first.latency_ms)
        yield "generate", f"{show(self.generate_s)} s", f"{s.generated:,} tokens of each sequence"
        yield "throughput", f"{show(self.tokens_per_s)} tokens/s", "prompts included"
        if self.joules_per_token is None:
            yield "energy", "not available: " + printable(self.absent["energy"]), ""
        else:
            yield "energy", f"{show(self.joules_per_token)} J/token", "prompts included"
        m = self.memory
        of_each = " each" if s.gpus > 1 else ""
        context = f"context {show(m.context_mb)}"
        if m.context_software != ONE_CONTEXT:
            context += f" ({m.context_software}{', assumed' * m.context_assumed})"
        yield (
            "memory",
            f"{show(m.total_mb)} MB{of_each}",
            f"weights {show(m.weights_mb)} + cache {show(m.cache_mb)} + activations "
            f"{show(m.activations_mb + m.workspace_mb)} + {context}",
        )
        context = f"or a context of {self.largest_context:,}"
        if self.largest_context < self.memory_context:
            context += f", the model's longest; the memory would hold {self.memory_context:,}"
        yield "fits", f"batch {self.largest_batch:,}", context

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat mapping per decode step, by context; intervals as "_low" and "_high"."""
        return [step.row() for step in self.steps]

    def table(self) -> list[tuple[str, ...]]:
        """Return the cells of the steps, in the order of HEADER."""
        return [
            (
                f"{step.context:,}",
                show(step.cost.latency_ms.value),
                _between(step.cost.latency_ms),
                show(step.tokens_per_s),
                "–" if step.joules_per_token is None else show(step.joules_per_token),
                show(step.memory_mb) + ("" if step.fits else " !"),
            )
            for step in self.steps
        ]

    def __str__(self) -> str:
        lines = [" " + self.title]
        lines += [f" {a:<12}{b:<20} {c}".rstrip() for a, b, c in self.figures()]
        cells = [HEADER, *self.table()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(HEADER))]
        lines.append("")
        for row in cells:
            lines.append(
                "  " + "   ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
            )
        lines += [f" ! {printable(warning)}" for warning in self.warnings]
        return "\n".join([*lines, " " + self.footer])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data; layers are summed up."""
        s, c, d = self.setting, self.setting.conditions, self.decoder
        return {
            "model": {
                "name": d.name,
                "family": d.family,
                "parameters": d.parameters,
                "active_parameters": d.active_parameters,
                "layers": len(d.layers),
                "attention": sorted({layer.attention.sharing for layer in d.layers}),
                "longest": d.longest,
            },
            "setting": {
                "device": c.device.name,
                "gpus": s.gpus,
                "link": s.link,
                "batch": c.batch,
                "prompt": s.prompt,
                "generated": s.generated,
                "precision": c.precision,
                "weights": s.weights.name,
                "cache": s.cache,
                "software": s.software,
                "host": c.host and c.host.name,
                "context_mb": c.context_mb,
            },
            "first_token": self.first_token.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "generate_s": self.generate_s,
            "tokens_per_s": self.tokens_per_s,
            "joules_per_token": self.joules_per_token,
            "memory_mb": self.memory.total_mb,
            "memory_bound_mb": self.memory.bound_mb,
            "capacity_mb": c.device.memory_mb,
            "headroom_mb": c.device.memory_mb - self.memory.bound_mb,
            "fits": self.memory.bound_mb <= c.device.memory_mb,
            "memory_parts": asdict(self.memory),
            "largest_batch": self.largest_batch,
            "largest_context": self.largest_context,
            "memory_context": self.memory_context,
            "host": asdict(self.host),
            "absent": {**self.absent, "verify": UNVERIFIED},
            "warnings": list(self.warnings),
            "provenance": {"checkpoint": self.checkpoint, "sha256": self.sha256},
            "verify": None,
        }


def _between(estimate: Estimate) -> str:
    return between(estimate.interval.low, estimate.interval.high)


def _billions(count: int) -> str:
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
