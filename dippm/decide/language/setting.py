"""Setting in which a language model is served, and formats of its stored weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dippm.devices import Device
from dippm.errors import ConditionsError
from dippm.estimate.conditions import Conditions, Precision, spelt
from dippm.estimate.features.kernel import Unit

Software = Literal["graph", "engine", "eager"]
SOFTWARE: tuple[Software, ...] = get_args(Software)
"""Kinds of software that run the model:

    graph    a serving engine (fused kernels, paged cache) that replays each decode step as a CUDA
             graph, so the host launches nothing; prefill is launched by the host
    engine   the same kernels, all launched by the host
    eager    `generate` of transformers: a kernel per operation, launched by the host
"""
CACHE_FORMATS = ("bf16", "fp16", "fp8")
"""Number formats of cached keys and values."""
MOST_TOKENS = 100_000_000
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class ServingSetting:
    """Setting in which a model is served.

    Attributes:
        conditions: device, batch, precision ("bf16" or "fp16") and host; other fields are unused.
        prompt: number of tokens per prompt.
        generated: number of generated tokens per sequence.
        weights: format of the matrices of the layers.
        cache: format of keys and values, one of `CACHE_FORMATS`.
        gpus: number of GPUs that share the model by tensor parallelism.
        software: kind of software, one of `SOFTWARE`.
        link: link between GPUs, "nvlink" or "pcie"; None takes that of the device.
    """

    conditions: Conditions
    prompt: int
    generated: int
    weights: WeightFormat
    cache: str
    gpus: int = 1
    software: Software = "graph"
    link: str | None = None

    @property
    def longest(self) -> int:
        """Number of tokens of a sequence at its end."""
        return self.prompt + self.generated

    @property
    def cache_width(self) -> int:
        """Bytes per element of the cache."""
        return 1 if self.cache == "fp8" else 2


def positive_integer(name: str, value: Any, most: int = MOST_TOKENS) -> int:
    """Check an integer of at least 1, and return it.

    Raises:
        ConditionsError: if it is not an integer from 1 to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConditionsError(
            f"{name} is {str(value)[:40]!r}", f"Give a whole number from 1 to {most:,}."
        )
    return value


def half_precision(name: Any) -> Precision:
    """Return "bf16" or "fp16" for any of its names.

    Raises:
        ConditionsError: if it names another precision.
    """
    found = spelt("precision", name, ("bf16", "fp16"))
    return "bf16" if found == "bf16" else "fp16"


def software_of(name: Any) -> Software:
    """Return the member of `SOFTWARE` with a name.

    Raises:
        ConditionsError: if there is none with this name.
    """
    found = spelt("software", name, SOFTWARE)
    return next(one for one in SOFTWARE if one == found)


# Formats of stored weights: their size, and the unit that multiplies them.
#
# Matrices of the layers are quantised; embedding, head, norms and routers keep the model's
# precision. The kernel that multiplies integer weights converts them to half precision (weight-only
# quantisation, like GPTQ and AWQ), so they save bytes but no arithmetic; fp8 products use the fp8
# unit where the GPU has one, and are converted otherwise.

HALF = ("bf16", "fp16")
GROUP = 128
"""Number of weights that share a 16-bit scale and a zero point of the width of a weight."""
_BITS = {"int4": 4, "int8": 8, "fp8": 8}
FORMATS = (*HALF, *_BITS)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Format in which the matrices of the layers are stored.

    Attributes:
        name: name of the format, one of `FORMATS`.
        bytes_each: bytes per weight, with its share of the scales.
        unit: arithmetic unit of products; "int8" is the 8-bit unit, which also multiplies fp8.
        in_bytes: bytes per element of the other operand.
    """

    name: str
    bytes_each: float
    unit: Unit = "half"
    in_bytes: int = 2


def format_of(name: str, device: Device) -> WeightFormat:
    """Return the format with a name, as a device computes with it.

    Raises:
        ConditionsError: if the name is not one of `FORMATS`.
    """
    found = spelt("weights", name, FORMATS)
    if found in HALF:
        return WeightFormat(found, 2.0)
    if found == "fp8":
        if "fp8" in device.peak_tflops:
            return WeightFormat(found, 1.0, "int8", 1)
        return WeightFormat(found, 1.0)
    bits = _BITS[found]
    return WeightFormat(found, (bits + (16 + bits) / GROUP) / 8)


def stored_format(quantisation: Mapping[str, Any] | None) -> str | None:
    """Return the weight format in a model's `quantization_config`; None without a configuration.

    A scheme that does not state its bits, or has neither 4 nor 8, is "unknown".
    """
    if not quantisation:
        return None
    method = str(quantisation.get("quant_method", "")).casefold()
    if "fp8" in method or "fp8" in str(quantisation.get("fmt", "")).casefold():
        return "fp8"
    if method == "mxfp4" or quantisation.get("load_in_4bit"):
        return "int4"
    if quantisation.get("load_in_8bit"):
        return "int8"
    bits = quantisation.get("bits", quantisation.get("w_bit"))
    groups = quantisation.get("config_groups")
    if bits is None and isinstance(groups, Mapping):
        weights = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)]
        first = next((w for w in weights if isinstance(w, Mapping)), {})
        bits = first.get("num_bits")
        if first.get("type") == "float" and bits == 8:
            return "fp8"
    names = {4: "int4", 8: "int8"}
    return names.get(bits, "unknown") if isinstance(bits, int) else "unknown"
