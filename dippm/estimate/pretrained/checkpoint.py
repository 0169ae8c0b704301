"""`Checkpoint`: a trained predictor with its configuration and metrics."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import CheckpointError
from dippm.estimate.pretrained import store
from dippm.estimate.pretrained.model_card import render
from dippm.model.graph import GRAPH_VERSION

if TYPE_CHECKING:
    import torch

    from dippm.estimate.models.predictor import Predictor

MODULES = {"hybrid": "dippm.estimate.models.hybrid", "pmgns": "dippm.estimate.models.pmgns"}
"""Where the built-in kinds register themselves; imported only when a checkpoint names them."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        name: name, for instance "graphsage-a100".
        version: version, for instance "1.0.0".
        kind: kind of predictor.
        predictor: the predictor.
        config: content of `config.json`.
        metrics: content of `metrics.json`.
        path: its folder.
    """

    name: str
    version: str
    kind: str
    predictor: Predictor = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    metrics: Mapping[str, Any] = field(repr=False)
    path: Path


def load(name_or_path: str | Path | None = None) -> Checkpoint:
    """Find, check and load a checkpoint; the same one is loaded once per process.

    Args:
        name_or_path: name, "name@version" or folder, see `store.find`.

    Raises:
        UnknownNameError: if no checkpoint has this name.
        CheckpointError: if it is missing or damaged, or made for another version of the graph or
            of the features.
    """
    info = store.find(name_or_path)
    return _load(info.path.resolve(), info.config["sha256"])


@lru_cache(maxsize=8)
def _load(folder: Path, sha256: str) -> Checkpoint:
    info = store.read_info(folder)
    kind = predictor_class(info.kind)
    check_versions(info, kind)
    with store.readable(folder), open_weights(folder) as file:
        weights = file.read()
    _check_hash(folder, hashlib.sha256(weights).hexdigest(), sha256)
    try:
        predictor = kind.from_checkpoint(_tensors(weights, kind), info.config)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a predictor, perhaps not one of ours, makes of it
        raise CheckpointError(
            f"the checkpoint in {folder} does not fit its predictor {info.kind!r}: {error}",
            "Use the version of DIPPM that it was trained with, or train it again.",
        ) from error
    metrics = store.read_metrics(folder)
    return Checkpoint(info.name, info.version, info.kind, predictor, info.config, metrics, folder)


def _tensors(weights: bytes, kind: type[Predictor]) -> Mapping[str, Any]:
    """Return the weights as the predictor wants them: torch's tensors, or numpy's arrays."""
    if getattr(kind, "tensor_library", "torch") == "numpy":
        from safetensors.numpy import load as load_arrays

        return load_arrays(weights)
    from safetensors.torch import load as load_tensors

    return load_tensors(weights)


def verify(info: store.CheckpointInfo) -> None:
    """Check that the weights are the published ones, without loading them.

    Raises:
        CheckpointError: if they are not.
    """
    with store.readable(info.path), open_weights(info.path) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    _check_hash(info.path, found, info.config["sha256"])


def predictor_class(kind: str) -> type[Predictor]:
    """Return the class that is registered for a kind.

    Raises:
        CheckpointError: if nothing is.
    """
    from dippm.estimate.models.predictor import PREDICTORS

    if kind not in PREDICTORS and kind in MODULES:
        try:
            import_module(MODULES[kind])
        except ImportError as error:
            raise CheckpointError(
                f"predictors of kind {kind!r} need {error.name}, which is not installed",
                'pip install "dippm[pmgns]", or use a checkpoint of kind hybrid.',
            ) from error
    if kind not in PREDICTORS:
        raise CheckpointError(
            f"no predictor of kind {kind!r} is known",
            f"Known: {', '.join(sorted({*PREDICTORS, *MODULES}))}. Import the module that "
            "registers it, or upgrade DIPPM.",
        )
    return PREDICTORS[kind]


def check_versions(info: store.CheckpointInfo, kind: type[Predictor]) -> None:
    """Refuse a checkpoint whose inputs were built by other rules than today's.

    Raises:
        CheckpointError: if the graph version or the feature version differs.
    """
    versions = {"graph_version": GRAPH_VERSION}
    feature_version = getattr(kind, "feature_version", None)
    if feature_version is not None:
        versions["feature_version"] = str(feature_version)
    for key, installed in versions.items():
        trained = info.config.get(key)
        if trained != installed:
            raise CheckpointError(
                f"checkpoint {info.name} {info.version} was trained with {key} {trained}, "
                f"this DIPPM has {installed}",
                "Use a checkpoint that `dippm models` lists, or the DIPPM version that it is for.",
            )


def save_checkpoint(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
) -> Checkpoint:
    """Write a checkpoint with its card, and load it back.

    Args:
        folder: `<root>/<name>/<version>`; name and version of the checkpoint are taken from it.
        tensors: state of the predictor.
        config: must have "kind" and "graph_version", and "feature_version" if the predictor class
            has the attribute `feature_version`; "card" is the text of the model card.
        metrics: title → rows (a table of the card) or text. "summary" has the rows with gpu,
            target, data, split, n, median_ape and mape (percent) that the README quotes.

    Raises:
        CheckpointError: if what was written cannot be loaded.
    """
    from safetensors.torch import save

    weights = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    document = {
        **config,
        "name": folder.resolve().parent.name,
        "version": folder.resolve().name,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / store.WEIGHTS).write_bytes(weights)
    (folder / store.CONFIG).write_text(_json(document), encoding="utf-8")
    (folder / store.METRICS).write_text(_json(metrics), encoding="utf-8")
    (folder / store.CARD).write_text(render(document, metrics), encoding="utf-8")
    return load(folder)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _check_hash(folder: Path, found: str, sha256: str) -> None:
    if found != sha256:
        raise CheckpointError(
            f"{folder / store.WEIGHTS} is not the published file: its sha256 differs",
            "Restore the folder from its release.",
        )


# The weights file of a checkpoint, looked at before it is read: 40 GB of nothing cost nothing.
#
# A safetensors file is eight bytes with the length of its header, the header (JSON with the places
# of all tensors), and the tensors, which end where the file ends.


MAX_BYTES = 1 << 30
"""A hundred and sixty times the largest predictor that was ever shipped."""

MAX_HEADER_BYTES = 16 << 20
_LENGTH = struct.Struct("<Q")


@contextmanager
def open_weights(folder: Path) -> Iterator[BufferedReader]:
    """Yield the weights file of a checkpoint at its first byte, if its size can be right.

    Raises:
        CheckpointError: if the file is too large, or not as long as its own header says.
        OSError: if it cannot be read.
    """
    path = folder / store.WEIGHTS
    with path.open("rb") as file:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _damaged(path, f"{size:,} bytes, more than any predictor has")
        if _said(file) != size:
            raise _damaged(path, "its length is not the one that its header says")
        file.seek(0)
        yield file


def _said(file: BufferedReader) -> int | None:
    """Return the size of the file that its header says; None if there is no such header."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if not 2 <= length <= MAX_HEADER_BYTES:
        return None
    try:
        tensors: Any = json.loads(file.read(length))
        ends = [t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__"]
        return _LENGTH.size + int(length) + max(map(int, ends), default=0)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a file of weights: {what}", "Restore the folder from its release."
    )
