"""The expected cost of a run: a prediction of the same work, stored with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dippm.errors import DippmError, RunError

if TYPE_CHECKING:
    from dippm.estimate.options import Options


def expectation(model: Any, **options: Unpack[Options]) -> Mapping[str, Any]:
    """Predict a model and return the document that a run stores, for `RunConfig` and `track`.

    Args:
        model: model in any form that `dippm.predict` takes.
        **options: see `dippm.Options`; the default device is this machine's first GPU, or its CPU.

    Returns:
        `Prediction.to_dict()`, with the sizes of one sample under "input", and the model's origin
        under "model": a name, or "file:PATH@SIZES#HASH" as `dataset.join.model_files` reads it.

    Raises:
        ModelFileError: if the model cannot be read.
        ConditionsError: if the device has no trained predictor, or the conditions are invalid.
    """
    from dippm.api import predict

    given: Any = {**options, "device": options.get("device") or _here()}
    prediction = predict(model, **given)
    input: Any = options.get("input")
    sizes = None if input is None else input if isinstance(input, str) else list(input)
    name = prediction.provenance.source
    if isinstance(model, str | Path) and Path(model).is_file():
        name = _file_name(Path(model).resolve(), sizes)
    return {**prediction.to_dict(), "input": sizes, "model": name}


def expectation_beside(model: str, **conditions: Any) -> Mapping[str, Any]:
    """Return the same from a separate process, for a caller that must stay small and childless.

    Args:
        model: path or name.
        conditions: conditions as in `expectation`.

    Raises:
        RunError: if the prediction fails.
    """
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "dippm.runs.tracking.expectation"],
        input=json.dumps({"model": model, **conditions}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        answer: Mapping[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise RunError(f"the prediction of {model} failed", "Try `dippm predict` alone.") from error
    if "error" in answer:
        raise RunError(answer["error"]["message"], answer["error"]["hint"])
    return answer


def main() -> None:
    """Read the arguments of `expectation` as JSON from stdin, and print the result."""
    import sys

    try:
        answer = expectation(**json.load(sys.stdin))
    except DippmError as error:
        answer = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(answer) + "\n")


def _file_name(path: Path, sizes: Any) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    given = "" if sizes is None else "@" + str(sizes).strip("[]").replace(" ", "")
    return f"file:{path}{given}#{digest}"


def _here() -> str:
    """Return the name of this machine's first GPU, or of its CPU if it has none."""
    from dippm.measure.provenance import machine
    from dippm.measure.subject import device_of

    return str(machine(device_of(None))["device"])


if __name__ == "__main__":
    main()
