"""Which formats a question means, and which of them contradict each other."""

from __future__ import annotations

from dippm.decide.language.architecture import Decoder
from dippm.decide.language.cache import CACHE_BYTES
from dippm.decide.language.formats import HALF
from dippm.decide.language.setting import CACHE_FORMATS, Software
from dippm.errors import ConditionsError


def weights_asked(decoder: Decoder, asked: str | None, precision: str) -> str:
    """Return the format of the weights, by the configuration where nobody asked.

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
            f"the weights of {decoder.name} are stored as {stored}, {asked[:40]!r} was asked for",
            "Leave weights out, or give the configuration of the model before quantisation.",
        )
    if asked.strip().casefold() in HALF and asked.strip().casefold() != precision:
        raise ConditionsError(
            f"weights in {asked} contradict a precision of {precision}",
            f'Leave weights out, or give precision="{asked}".',
        )
    return asked


def cache_asked(asked: str | None, precision: str, software: Software) -> str:
    """Return the format of keys and values, that of the precision where nobody asked.

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
