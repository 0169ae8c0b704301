"""What a user should know before relying on an answer about a language model."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

from dippm.decide.language.architecture import Decoder
from dippm.decide.language.passes import PassCost, Passes
from dippm.estimate.models.answer_warnings import HOST_DECIDES
from dippm.estimate.models.intervals import Z90


def remarks(passes: Passes, decoder: Decoder, first: PassCost, last: PassCost) -> Iterator[str]:
    """Yield the warnings of an answer.

    Args:
        passes: of the setting.
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
        yield (f"{s.longest:,} tokens are more than the model was made for, {decoder.longest:,}")
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
        yield "experts are taken to be equally likely; routers that prefer some wake fewer"
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
