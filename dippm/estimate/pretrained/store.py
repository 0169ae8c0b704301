"""The folders of checkpoints, and which one a name means.

A checkpoint is the folder `<name>/<version>/` with `model.safetensors`, `config.json`,
`metrics.json` and `README.md`. Published names and versions never change their content. To add a
checkpoint, add a folder: `training/` writes it with `save_checkpoint`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.errors import CheckpointError, UnknownNameError

DEFAULT = "hybrid-gpu"
"""Name of the default predictor."""

WEIGHTS, CONFIG, METRICS, CARD = "model.safetensors", "config.json", "metrics.json", "README.md"
MAX_JSON_BYTES = 16 << 20
"""A hundred times the largest configuration or table of metrics that was ever shipped."""

_VERSION = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint on disk, not yet loaded.

    Attributes:
        name: name, for instance "graphsage-a100".
        version: version, for instance "1.0.0".
        path: its folder.
        config: content of `config.json`; always has "kind" and "sha256".
    """

    name: str
    version: str
    path: Path
    config: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of predictor, see `dippm.estimate.models.predictor`."""
        return str(self.config["kind"])

    @property
    def summary(self) -> str:
        """One sentence about the checkpoint, from its card; empty without a card."""
        text = self.config.get("card", {}).get("summary", "")
        return text if isinstance(text, str) else " ".join(text)


def roots() -> tuple[Path, ...]:
    """Return the folders that are searched: inside the package, then a source checkout's."""
    package = Path(__file__).resolve().parents[2]
    candidates = (package / "checkpoints", package.parent / "checkpoints")
    return tuple(root for root in candidates if root.is_dir())


def available() -> tuple[CheckpointInfo, ...]:
    """Return every shipped checkpoint, by name, newest version first.

    A folder whose configuration cannot be read is left out here; `find` tells what is wrong.
    """
    found: dict[tuple[str, str], CheckpointInfo] = {}
    for root in roots():
        for folder in sorted(_folders(root)):
            try:
                found.setdefault((folder.parent.name, folder.name), read_info(folder))
            except CheckpointError:
                continue
    newest_first = sorted(found.values(), key=lambda info: _order(info.version), reverse=True)
    return tuple(sorted(newest_first, key=lambda info: info.name))


def find(name_or_path: str | Path | None = None) -> CheckpointInfo:
    """Find a checkpoint.

    Args:
        name_or_path: "name" (its newest version), "name@version", or the path of a folder. Text is
            a path only if it has a path separator, so a misspelt name is never taken for one.
            None is `DEFAULT`.

    Raises:
        UnknownNameError: if no checkpoint has this name or version.
        CheckpointError: if the folder is not a checkpoint.
    """
    wanted = DEFAULT if name_or_path is None else name_or_path
    if not isinstance(wanted, str | Path):
        raise UnknownNameError(
            f"the checkpoint is a {type(wanted).__qualname__}, neither a name nor a folder",
            "`dippm models` lists the names.",
        )
    if isinstance(wanted, Path) or os.sep in wanted or "/" in wanted:
        with readable(Path(wanted)):
            return read_info(Path(wanted).expanduser())
    name, _, version = wanted.partition("@")
    versions = {
        folder.name: folder
        for root in reversed(roots())
        for folder in _folders(root)
        if folder.parent.name == name
    }
    if not versions:
        raise UnknownNameError.of("checkpoint", name, {info.name for info in available()})
    if version and version not in versions:
        raise UnknownNameError.of(f"version of checkpoint {name}", version, versions)
    return read_info(versions[version or max(versions, key=_order)])


def read_info(folder: Path) -> CheckpointInfo:
    """Read the configuration of the checkpoint in `folder`.

    Raises:
        CheckpointError: if a file is missing or the configuration is not usable.
    """
    with readable(folder):
        return _read_info(folder)


def _read_info(folder: Path) -> CheckpointInfo:
    for name in (WEIGHTS, CONFIG):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder} is not a checkpoint: {name} is missing",
                "Give the folder <name>/<version>, or a name that `dippm models` lists.",
            )
    from dippm.estimate.models.checkpoint_schemas import Head, check

    config = _read_json(folder / CONFIG)
    check(config, Head, f"{CONFIG} of the checkpoint in {folder}")
    name, version = folder.resolve().parts[-2:]
    return CheckpointInfo(
        config.get("name") or name, config.get("version") or version, folder, config
    )


def read_metrics(folder: Path) -> Mapping[str, Any]:
    """Return the content of `metrics.json`; empty if the checkpoint has none.

    Raises:
        CheckpointError: if the file is damaged.
    """
    from dippm.estimate.models.checkpoint_schemas import MetricsSchema, check

    path = folder / METRICS
    with readable(folder):
        if not path.is_file():
            return {}
        metrics = _read_json(path)
    check(metrics, MetricsSchema, f"{METRICS} of the checkpoint in {folder}")
    return metrics


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of the file system into a `CheckpointError`.

    Raises:
        CheckpointError: that says what the system said.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, RuntimeError) as error:  # a home of an unknown user, a link to itself
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise CheckpointError(
            f"the checkpoint in {path} cannot be read: {reason}",
            "Give a folder that you may read, or a name that `dippm models` lists.",
        ) from error


def damaged() -> Iterator[tuple[Path, CheckpointError]]:
    """Yield the shipped folders that `available` leaves out, and why."""
    for folder in (folder for root in roots() for folder in sorted(_folders(root))):
        try:
            read_info(folder)
        except CheckpointError as error:
            yield folder, error


def _read_json(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.read(MAX_JSON_BYTES + 1)
    if len(text) > MAX_JSON_BYTES:
        raise _damaged(path.parent, f"{path.name} has more than {MAX_JSON_BYTES:,} bytes")
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise _damaged(path.parent, f"{path.name} is not JSON ({why})") from None
    if not isinstance(document, dict):
        raise _damaged(path.parent, f"{path.name} is not a mapping")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _folders(root: Path) -> list[Path]:
    return [path for path in root.glob("*/*") if path.is_dir() and _VERSION.match(path.name)]


def _order(version: str) -> tuple[int, ...]:
    numbers = _VERSION.match(version)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()


def _damaged(folder: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint in {folder} is damaged: {what}", "Restore the folder from its release."
    )
