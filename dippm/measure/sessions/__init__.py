"""Files of frameworks other than PyTorch, run unchanged for inference on the CPU.

To add one: write a module with `open_session` and list it in `OPENERS`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from dippm.errors import ConditionsError, UnknownFormatError
from dippm.measure.protocol import Regime
from dippm.measure.sessions.session import Session
from dippm.model.frontends import InputSpec, registry
from dippm.model.frontends.registry import Entry

OPENERS = {
    "onnx": "dippm.measure.sessions.onnx",
    "keras": "dippm.measure.sessions.keras",
    "tensorflow": "dippm.measure.sessions.savedmodel",
    "paddle": "dippm.measure.sessions.paddle",
}


def entry_of(source: object) -> Entry | None:
    """Return the frontend of a file of a framework other than PyTorch, else None.

    Raises:
        ModelFileError: if the path is not a file of a known framework.
    """
    if not isinstance(source, str | Path):
        return None
    entry = registry.find(source)
    return None if entry.framework == "pytorch" else entry


def runtime_of(source: object) -> str:
    """Return the runtime that measures a model: "torch", "onnxruntime", "keras", ...

    Raises:
        ModelFileError: if the path is not a file of a known framework.
    """
    entry = entry_of(source)
    return "torch" if entry is None else registry.RUNTIMES.get(entry.framework, entry.framework)


def open_session(
    entry: Entry,
    path: Path,
    inputs: InputSpec,
    *,
    batch: int,
    regime: Regime,
    on_cpu: bool,
    trust: bool,
) -> Session:
    """Load a file with random inputs.

    Args:
        entry: frontend of the file.
        path: path of the file.
        inputs: shapes without the batch; the file's own if empty.
        batch: number of samples.
        regime: conditions, which must be the default ones.
        on_cpu: whether to run on the CPU.
        trust: whether the file may run code.

    Raises:
        FrameworkNotInstalledError: if the framework is missing.
        UnsafeModelError: if running the file could run code and `trust` is false.
        ConditionsError: if the conditions differ from running the file unchanged on the CPU.
        InputShapeError: if a size is missing or does not fit.
    """
    if entry.framework not in OPENERS:
        raise UnknownFormatError(
            f"files of {entry.framework} cannot be run here", f"Known: {', '.join(OPENERS)}"
        )
    if regime != Regime() or not on_cpu:
        raise ConditionsError(
            f"{path.name} is measured as it is, for inference on the CPU",
            "For a GPU, another precision or a training step measure the PyTorch model.",
        )
    entry.check_installed(path.name)
    opener = importlib.import_module(OPENERS[entry.framework]).open_session
    session: Session = opener(path, inputs, batch=batch, trust=trust)
    return session
