"""In which format weights are stored, what it takes, and which unit multiplies them.

Matrices of the layers are quantised; embedding, head, norms and routers keep the model's format.
Integer weights are widened to half precision in the kernel that multiplies them (weight-only, as
GPTQ, AWQ and their kernels do), so they save bytes and no arithmetic; fp8 products run in the fp8
unit where the GPU has one, and are widened where it has not.
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
"""Weights that share a scale of 16 bits and a zero point of as many bits as a weight."""
_BITS = {"int4": 4, "int8": 8, "fp8": 8}
FORMATS = (*HALF, *_BITS)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the matrices of the layers are stored.

    Attributes:
        name: one of FORMATS.
        bytes_each: of a weight, with its share of scales.
        unit: that multiplies them; "int8" is the 8-bit unit, of fp8 too.
        in_bytes: of what a product reads beside them, per element.
    """

    name: str
    bytes_each: float
    unit: Unit = "half"
    in_bytes: int = 2


def format_of(name: str, device: Device) -> WeightFormat:
    """Return a format on a device.

    Raises:
        ConditionsError: if the name is none of FORMATS.
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
    """Return the format that `quantization_config` of a model file names; None if there is none.

    "unknown" stands for a scheme whose bits it does not say.
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
