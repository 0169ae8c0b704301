"""`language_model`: the cost of serving a language model, from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

from dippm.base.progress import stage
from dippm.decide.language.answer import DecodeStep, LanguagePrediction
from dippm.decide.language.architecture import Decoder
from dippm.decide.language.corrections import shipped_corrections
from dippm.decide.language.kernels import Pass
from dippm.decide.language.memory import CACHE_BYTES, LanguageMemory, language_memory
from dippm.decide.language.passes import PassCost, Passes
from dippm.decide.language.reading import read_decoder
from dippm.decide.language.setting import (
    CACHE_FORMATS,
    HALF,
    MOST_GPUS,
    MOST_TOKENS,
    ServingSetting,
    Software,
    format_of,
    half_precision,
    positive_integer,
    software_of,
)
from dippm.errors import (
    CheckpointError,
    ConditionsError,
    DoesNotFitError,
    UnsupportedPrecisionError,
)
from dippm.estimate import pretrained
from dippm.estimate.conditions import Conditions, Precision, supported_precisions
from dippm.estimate.largest_batch import largest_batch
from dippm.estimate.models.answer_warnings import HOST_DECIDES
from dippm.estimate.models.hybrid import Hybrid
from dippm.estimate.models.intervals import Z90
from dippm.estimate.models.kernel_law import KernelLaw
from dippm.estimate.models.memory import MemoryModel
from dippm.estimate.place import DEFAULT_DEVICE, ContextLike, DeviceLike, HostLike, device_of
from dippm.estimate.pretrained.store import for_device

SAMPLES = 9
"""Contexts at which decode steps are evaluated to integrate over all of them."""


def language_model(
    config: Any,
    *,
    device: DeviceLike = DEFAULT_DEVICE,
    batch: int = 1,
    prompt: int = 1024,
    generated: int = 128,
    precision: str = "bf16",
    weights: str | None = None,
    cache: str | None = None,
    tensor_parallel: int = 1,
    software: Software = "graph",
    host: HostLike = None,
    context_mb: ContextLike = None,
    link: str | None = None,
    checkpoint: str | Path | None = None,
) -> LanguagePrediction:
    """Predict the cost of serving a language model from its configuration alone.

    Args:
        config: a config.json, its folder, a mapping, or an object with `to_dict`.
        device: the GPU, as `dippm.predict` takes it.
        batch: number of concurrent sequences.
        prompt: tokens per prompt.
        generated: generated tokens per sequence.
        precision: "bf16" or "fp16".
        weights: format of the matrices of the layers: "bf16", "fp16", "int8", "fp8" or "int4"; None
            takes that of the configuration, else `precision`.
        cache: format of keys and values: "bf16", "fp16" or "fp8"; None takes `precision`.
        tensor_parallel: number of GPUs that share the model.
        software: "graph", "engine" or "eager", see `dippm.decide.language.setting`.
        host: the machine that launches kernels, as `dippm.predict` takes it.
        context_mb: memory of the process outside the allocator, as `dippm.predict` takes it.
        link: link between GPUs, "nvlink" or "pcie"; None takes that of the device.
        checkpoint: see `dippm.predict`; its kind has to be "hybrid".

    Raises:
        ModelFileError: if the configuration cannot be read.
        UnknownArchitectureError: if it describes no supported language model.
        ConditionsError: if a number or format cannot be predicted, or two contradict each other.
        DoesNotFitError: if the memory is too small; the hint names what would fit.
        UnknownNameError: if device, host, link or checkpoint is not known.
        DeviceError: if a device file is not valid, or lacks a value that the answer needs.
        CheckpointError: if the checkpoint is damaged or of another kind.
    """
    decoder = read_decoder(config)
    chosen = half_precision(precision)
    gpu = device_of(device)
    try:
        asked = Conditions(
            device=gpu, batch=batch, precision=chosen, host=host, context_mb=context_mb
        )
    except UnsupportedPrecisionError as error:
        other: Precision = "fp16" if chosen == "bf16" else "bf16"
        if other not in supported_precisions(gpu):
            raise
        hint = f'Say precision="{other}": {gpu.name} has hardware for it.'
        raise UnsupportedPrecisionError(error.message, hint) from error
    setting = ServingSetting(
        asked,
        positive_integer("prompt", prompt),
        positive_integer("generated", generated),
        format_of(weight_format(decoder, weights, chosen), gpu),
        cache_format(cache, chosen, software_of(software)),
        positive_integer("tensor_parallel", tensor_parallel, MOST_GPUS),
        software_of(software),
        link,
    )
    if gpu.kind == "cpu":
        raise ConditionsError(
            f"language models are predicted on GPUs, {gpu.name} is a CPU",
            "Name a GPU; `dippm devices` lists them.",
        )
    found = pretrained.load((pretrained.find(checkpoint) if checkpoint else for_device(gpu)).path)
    if not isinstance(found.predictor, Hybrid):
        raise CheckpointError(
            f"{found.name} is of the kind {found.kind!r}, which does not predict single kernels",
            "Leave checkpoint out, or name one of the kind hybrid; `dippm models` lists them.",
        )
    if not isinstance(found.predictor.law, KernelLaw):
        raise CheckpointError(
            f"{found.name} predicts training steps, not the serving of a language model",
            "Leave checkpoint out, or name one of inference; `dippm models` lists them.",
        )
    with stage(f"predicting {decoder.name}"):
        return _ServingQuestion(found.predictor, decoder, setting).answer(
            f"{found.name} {found.version}", str(found.config["sha256"])
        )


class _ServingQuestion:
    def __init__(self, hybrid: Hybrid, decoder: Decoder, setting: ServingSetting) -> None:
        self.hybrid, self.decoder, self.setting = hybrid, decoder, setting
        self.passes = Passes(hybrid, decoder, setting, shipped_corrections())

    def answer(self, checkpoint: str, sha256: str) -> LanguagePrediction:
        """Return the answer, or raise an error that names what would fit."""
        s, batch = self.setting, self.setting.conditions.batch
        memory = self.memory(batch, s.longest)
        most_batch, most_context = self._largest_batch(), self._largest_context()
        if memory.bound_mb > s.conditions.device.memory_mb:
            raise self._too_large(memory, most_batch, most_context)
        first = self.passes.cost(Pass.prefill(batch, s.prompt))
        steps = tuple(self._step(context) for context in self._contexts(most_context or 0))
        decode_s, decode_j = self._all_steps()
        generate_s = first.latency_ms.value / 1e3 + decode_s
        joules = None
        if first.energy_j is not None and decode_j is not None:
            joules = (first.energy_j.value + decode_j) / (batch * s.generated)
        absent = {}
        if joules is None:
            absent["energy"] = f"the power limit of {s.conditions.device.name} is not known"
        last = steps[-1].cost
        host = replace(self.passes.host_use, launches=last.launches, share=last.host_share)
        return LanguagePrediction(
            first_token=first,
            steps=steps,
            generate_s=generate_s,
            tokens_per_s=batch * s.generated / generate_s,
            joules_per_token=joules,
            memory=memory,
            largest_batch=most_batch or 0,
            largest_context=self._supported_context(most_context or 0),
            memory_context=most_context or 0,
            host=host,
            absent=absent,
            warnings=tuple(remarks(self.passes, self.decoder, first, last)),
            decoder=self.decoder,
            setting=s,
            checkpoint=checkpoint,
            sha256=sha256,
        )

    def memory(self, batch: int, longest: int) -> LanguageMemory:
        """Return the memory of one GPU for a batch of sequences of `longest` tokens."""
        s, memory = self.setting, self.hybrid.memory
        assert isinstance(memory, MemoryModel)
        return language_memory(
            self.passes.part,
            s.weights,
            memory,
            s.conditions,
            batch=batch,
            prompt=min(s.prompt, longest),
            longest=longest,
            cache_width=s.cache_width,
            software=s.software,
        )

    def _largest_batch(self) -> int | None:
        s = self.setting
        return largest_batch(
            lambda batch: self.memory(batch, s.longest).bound_mb, s.conditions.capacity_mb
        )

    def _largest_context(self) -> int | None:
        c = self.setting.conditions
        return largest_batch(
            lambda context: self.memory(c.batch, context).bound_mb, c.capacity_mb, MOST_TOKENS
        )

    def _supported_context(self, context: int) -> int:
        """Return a context that fits, cut to the longest that the model supports."""
        return min(context, self.decoder.longest or context)

    def _contexts(self, most: int) -> list[int]:
        """Return the contexts of the table: that of the question, and longer ones that fit."""
        s = self.setting
        found = {s.prompt + 1, s.longest}
        longest, context = self._supported_context(most), 1024
        while context <= longest:
            if context > s.longest:
                found.add(context)
            context *= 4
        return sorted(found)

    def _step(self, context: int) -> DecodeStep:
        batch = self.setting.conditions.batch
        cost = self.passes.cost(Pass.decode(batch, context))
        memory = self.memory(batch, context)
        return DecodeStep(
            context=context,
            cost=cost,
            tokens_per_s=1e3 * batch / cost.latency_ms.value,
            joules_per_token=None if cost.energy_j is None else cost.energy_j.value / batch,
            memory_mb=memory.total_mb,
            fits=memory.bound_mb <= self.setting.conditions.device.memory_mb,
        )

    def _all_steps(self) -> tuple[float, float | None]:
        """Return time in s and energy in J of all steps after the first token."""
        s = self.setting
        count = s.generated - 1
        if count == 0:
            return 0.0, 0.0 if s.conditions.device.power_limit_w is not None else None
        contexts = sorted({s.prompt + 1 + (count - 1) * i // (SAMPLES - 1) for i in range(SAMPLES)})
        costs = [self.passes.cost(Pass.decode(s.conditions.batch, c)) for c in contexts]
        seconds = _mean(contexts, [cost.latency_ms.value for cost in costs]) * count / 1e3
        joules = [cost.energy_j.value for cost in costs if cost.energy_j is not None]
        if len(joules) < len(costs):
            return seconds, None
        return seconds, _mean(contexts, joules) * count

    def _too_large(
        self, memory: LanguageMemory, batch: int | None, context: int | None
    ) -> DoesNotFitError:
        s, device = self.setting, self.setting.conditions.device
        context = self._supported_context(context or 0)
        ways = []
        if batch:
            ways.append(f"batch={batch} or less fits")
        if context >= 2:
            ways.append(
                f"{context:,} tokens of prompt and answer fit at batch {s.conditions.batch}"
            )
        if not ways:
            if s.weights.name in HALF:
                ways.append('weights="int4" takes a quarter')
            ways.append(f"tensor_parallel={2 * s.gpus} halves what each GPU holds")
        of_each = " on each GPU" if s.gpus > 1 else ""
        return DoesNotFitError(
            f"{self.decoder.name} needs up to {memory.bound_mb:,.0f} MB{of_each} "
            f"(weights {memory.weights_mb:,.0f}, cache {memory.cache_mb:,.0f}), {device.name} has "
            f"{device.memory_mb:,}",
            f"{'; '.join(ways)}.",
        )


def _mean(places: list[int], values: list[float]) -> float:
    """Return the mean of values over places by the trapezoidal rule."""
    if len(places) == 1:
        return values[0]
    pairs = zip(pairwise(places), pairwise(values), strict=True)
    area = sum((right - left) * (low + high) / 2 for (left, right), (low, high) in pairs)
    return area / (places[-1] - places[0])


# Warnings of an answer about a language model.


def remarks(passes: Passes, decoder: Decoder, first: PassCost, last: PassCost) -> Iterator[str]:
    """Yield the warnings of an answer.

    Args:
        passes: passes of the setting.
        decoder: the whole model.
        first: the pass over the prompts.
        last: the decode step at the longest context.
    """
    s, use = passes.setting, passes.host_use
    device, seen = s.conditions.device, passes.hybrid.config["seen"]["devices"]
    yield from decoder.notes
    if not device.was_measured(seen):
        yield f"{device.name} was never measured: extrapolated from other GPUs"
    if decoder.longest is not None and s.longest > decoder.longest:
        yield (f"{s.longest:,} tokens exceed the longest context of the model, {decoder.longest:,}")
    if s.weights.name in ("int4", "int8"):
        yield (
            f"products with {s.weights.name} weights were never measured: taken as products of "
            "half precision that read fewer bytes"
        )
        if s.software == "eager":
            yield (
                "steps of transformers with such weights took longer when they were measured: 1.2 "
                "times as long in the middle with int4, twice with int8 (bitsandbytes)"
            )
    if s.weights.name == "fp8" and s.weights.unit != "int8":
        yield f"{device.name} has no fp8 unit: weights are widened before they are multiplied"
    if any(layer.feed_forward.experts for layer in decoder.layers):
        yield "experts are taken to be equally likely; routers with preferences activate fewer"
    if s.gpus > 1:
        yield (
            "exchanges between GPUs are an estimate from public figures of their links "
            f"({last.exchange_ms / last.latency_ms.value:.0%} of a step)"
        )
    if max(first.host_share, last.host_share) >= HOST_DECIDES:
        cost = last if last.host_share >= HOST_DECIDES else first
        which = "steps" if cost is last else "the time to first token"
        text = f"the host decides {which}: {cost.launches:,} launches at {use.launch_us:.1f} µs"
        if use.assumed:
            text += (
                f", the time of {use.name}, which was assumed; machines differ by a factor of "
                f"{exp(Z90 * use.log_sd):.1f} either way: name yours (`--host`)"
            )
        yield text


# The formats of a question, with checks for contradictions.


def weight_format(decoder: Decoder, asked: str | None, precision: str) -> str:
    """Return the format of the weights, by default that of the configuration.

    Raises:
        ConditionsError: if it contradicts the configuration or the precision, or is not known.
    """
    stored = decoder.stored
    if asked is None:
        if stored == "unknown":
            raise ConditionsError(
                f"{decoder.name} is quantised in a way that is not known here",
                'Name the format of its weights: weights="int4", "int8" or "fp8".',
            )
        return stored or precision
    if stored not in (None, "unknown") and asked.strip().casefold() != stored:
        raise ConditionsError(
            f"the weights of {decoder.name} are stored as {stored}, not as {asked[:40]!r}",
            "Leave weights out, or give the configuration of the model before quantisation.",
        )
    if asked.strip().casefold() in HALF and asked.strip().casefold() != precision:
        raise ConditionsError(
            f"weights in {asked} contradict a precision of {precision}",
            f'Leave weights out, or give precision="{asked}".',
        )
    return asked


def cache_format(asked: str | None, precision: str, software: Software) -> str:
    """Return the format of keys and values, by default that of the precision.

    Raises:
        ConditionsError: if it contradicts the precision or the software, or is not known.
    """
    if asked is None:
        return precision
    name = asked.strip().casefold()
    if name not in CACHE_BYTES:
        raise ConditionsError(f"unknown cache {asked[:40]!r}", f"Known: {', '.join(CACHE_FORMATS)}")
    if name in HALF and name != precision:
        raise ConditionsError(
            f"a cache in {name} contradicts a precision of {precision}",
            f'Leave cache out, or give precision="{name}".',
        )
    if name == "fp8" and software == "eager":
        raise ConditionsError(
            "transformers keeps keys and values as it computes them, not in fp8",
            'Leave cache out, or give software="graph".',
        )
    return name
