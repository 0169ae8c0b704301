"""ONNX files, in ONNX Runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dippm.errors import FrameworkNotInstalledError
from dippm.measure.sessions.session import Argument, Session, random_feeds
from dippm.model.frontends import InputSpec

TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


def open_session(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
    """Load an ONNX file; it contains no code, so `trust` is not needed.

    Raises:
        FrameworkNotInstalledError: if ONNX Runtime is missing.
        InputShapeError: if a size is missing or does not fit.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise FrameworkNotInstalledError(
            f"{path.name} needs ONNX Runtime to run", "pip install onnxruntime"
        )
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    arguments = [
        Argument(
            one.name,
            tuple(size if isinstance(size, int) else None for size in one.shape),
            TYPES.get(one.type, "float32"),
        )
        for one in session.get_inputs()
    ]
    feeds = random_feeds(arguments, inputs, batch)
    return Session(lambda: session.run(None, feeds), f"onnxruntime {onnxruntime.__version__}")
