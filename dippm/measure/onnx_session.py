"""An ONNX file as something that runs, in ONNX Runtime on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.errors import ConditionsError, FrameworkNotInstalledError, InputShapeError
from dippm.frontends import InputSpec
from dippm.frontends.frontend import FORMS
from dippm.measure.protocol import Regime

TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


@dataclass(frozen=True, slots=True)
class OnnxSession:
    """A loaded file with inputs; `run` is one forward pass.

    Attributes:
        session: of ONNX Runtime.
        feeds: numpy arrays by input name, batch included.
        framework: name and version, for provenance.
    """

    session: Any
    feeds: Mapping[str, Any]
    framework: str

    def run(self) -> object:
        """Run one forward pass."""
        return self.session.run(None, dict(self.feeds))


def open_session(
    path: Path, inputs: InputSpec, *, batch: int, regime: Regime, device: Any
) -> OnnxSession:
    """Load an ONNX file with random inputs.

    Raises:
        FrameworkNotInstalledError: if ONNX Runtime is missing.
        ConditionsError: if the regime is more than running the file as it is on the CPU.
        InputShapeError: if a size is missing or does not fit.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise FrameworkNotInstalledError(
            f"{path.name} needs ONNX Runtime to run", "pip install onnxruntime"
        )
    if regime != Regime() or device.type != "cpu":
        raise ConditionsError(
            f"{path.name} is measured as it is, for inference on the CPU",
            "For a GPU, another precision or a training step measure the PyTorch model.",
        )
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    shapes = {names[0] if name == "" else name: s for name, s in inputs.shapes.items()}
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise InputShapeError(
            f"{path.name} has no input {unknown[0]!r}", f"Its inputs: {', '.join(names)}. {FORMS}"
        )
    feeds = {
        argument.name: _array(argument, shapes.get(argument.name), batch=batch)
        for argument in session.get_inputs()
    }
    return OnnxSession(session, feeds, f"onnxruntime {onnxruntime.__version__}")


def _array(argument: Any, shape: tuple[int, ...] | None, *, batch: int) -> Any:
    import numpy as np

    sizes = (batch, *(shape if shape is not None else argument.shape[1:]))
    if not all(isinstance(size, int) for size in sizes):
        raise InputShapeError(f"input {argument.name!r} has open sizes {argument.shape}", FORMS)
    fixed = argument.shape[0] if argument.shape else None
    if isinstance(fixed, int) and fixed != batch:
        raise InputShapeError(
            f"the file fixes the batch of {argument.name!r} at {fixed}", f"Give --batch {fixed}."
        )
    kind = np.dtype(TYPES.get(argument.type, "float32"))
    generator = np.random.default_rng(0)
    if kind.kind == "f":
        return generator.standard_normal(sizes).astype(kind)
    return generator.integers(0, 2, sizes).astype(kind)
