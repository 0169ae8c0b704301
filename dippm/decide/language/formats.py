"""Formats of stored weights: their size, and the unit that multiplies them.

Matrices of the layers are quantised; embedding, head, norms and routers keep the model's precision.
The kernel that multiplies integer weights converts them to half precision (weight-only
quantisation, like GPTQ and AWQ), so they save bytes but no arithmetic; fp8 products use the fp8
unit where the GPU has one, and are converted otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dippm.devices import Device
from dippm.estimate.conditions import spelt
from dippm.estimate.features.kernel import Unit

HALF = ("bf16", "fp16")
GROUP = 128
"""Weights that share a 16-bit scale and a zero point of the width of a weight."""
_BITS = {"int4": 4, "int8": 8, "fp8": 8}
FORMATS = (*HALF, *_BITS)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the matrices of the layers are stored.

    Attributes:
        name: one of FORMATS.
        bytes_each: bytes per weight, with its share of the scales.
        unit: unit that multiplies; "int8" is the 8-bit unit, also for fp8.
        in_bytes: bytes per element of the other operand.
    """

    name: str
    bytes_each: float
    unit: Unit = "half"
    in_bytes: int = 2


def format_of(name: str, device: Device) -> WeightFormat:
    """Return a format on a device.

    Raises:
        ConditionsError: if the name is not one of FORMATS.
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
    """Return the format that `quantization_config` of a model names; None without one.

    "unknown" stands for a scheme that does not state its bits.
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
