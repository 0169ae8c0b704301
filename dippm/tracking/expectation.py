"""What a run is expected to cost: a prediction of the same work, stored beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def expectation(
    model: Any,
    *,
    input: Any = None,
    batch: int = 1,
    device: str | None = None,
    precision: str = "fp32",
    mode: str = "eager",
    phase: str = "inference",
    channels_last: bool = False,
    checkpoint: str | None = None,
    trust: bool = False,
) -> Mapping[str, Any]:
    """Predict a model and return the document that a run keeps, for `RunOrder` and `track`.

    Args:
        model: as `dippm.predict` takes it.
        input: sizes without the batch.
        batch: samples per step.
        device: a GPU by name; None for what this machine has: its first GPU, or its CPU.
        precision: of the run.
        mode: "eager" or "compiled".
        phase: "inference" or "train".
        channels_last: memory layout of images.
        checkpoint: name of one, the usual one by default.
        trust: allow a file that can run code when it is read.

    Returns:
        `Prediction.to_dict()`, with the sizes of one sample under "input", and under "model" what
        it was read from: a whole path, or a name.

    Raises:
        ModelFileError: if the model cannot be read.
        ConditionsError: if nothing was trained for this device, or no such conditions.
    """
    from dippm.api import predict

    prediction = predict(
        model,
        input=input,
        batch=batch,
        device=device or _here(),
        checkpoint=checkpoint,
        precision=precision,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        phase=phase,  # type: ignore[arg-type]
        channels_last=channels_last,
        trust=trust,
    )
    sizes = None if input is None else input if isinstance(input, str) else list(input)
    file = Path(model) if isinstance(model, str | Path) else None
    found = file.resolve() if file and file.exists() else prediction.provenance.source
    return {**prediction.to_dict(), "input": sizes, "model": str(found)}


def _here() -> str:
    """Return the name of this machine's first GPU, or of its CPU if it has none."""
    from dippm.measure.provenance import machine
    from dippm.measure.subject import device_of

    return str(machine(device_of(None))["device"])
