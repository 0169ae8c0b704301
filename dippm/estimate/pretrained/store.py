"""The folders of checkpoints, and which one a name means, or answers for a device.

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

from dippm.devices import Device
from dippm.errors import CheckpointError, ConditionsError, UnknownNameError
from dippm.estimate.conditions import Phase
from dippm.estimate.models.predictor import phases_of

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


# Which shipped checkpoint answers for a device and a phase when none was named.
#
# The rule: of the checkpoints that know both, the default one; if it is not among them, the newest
# version of the one whose name comes first. Other conditions do not count: a checkpoint that
# was not trained for them refuses them and says so.


def for_device(device: Device, phase: Phase = "inference") -> CheckpointInfo:
    """Return the shipped checkpoint that answers for a device and a phase.

    Raises:
        UnknownNameError: if no shipped checkpoint knows the device.
        ConditionsError: if none that knows it predicts the phase.
        CheckpointError: if it is the default that would answer, and that is damaged.
    """
    default = find()
    if knows(default.config, device, phase):
        return default
    shipped = available()
    fitting = (info for info in shipped if knows(info.config, device, phase))
    found = next(fitting, None)
    if found is None:
        if any(_reaches(info.config, device) for info in shipped):
            what = "training steps" if phase == "train" else "inference"
            raise ConditionsError(
                f"no shipped checkpoint predicts {what} on {device.name}",
                "Name one of your own with checkpoint=..., or ask for another device or phase.",
            )
        listed = sorted({name for info in shipped for name in devices_of(info.config) or ()})
        raise UnknownNameError(
            f"no shipped checkpoint was trained on {device.name}",
            "Name one of your own with checkpoint=...; shipped ones answer for every GPU of "
            f"`dippm devices`{' and for ' + ', '.join(listed) if listed else ''}.",
        )
    return found


def knows(config: Mapping[str, Any], device: Device, phase: Phase = "inference") -> bool:
    """Return whether a checkpoint answers for a device and a phase."""
    return phase in phases_of(config) and _reaches(config, device)


def _reaches(config: Mapping[str, Any], device: Device) -> bool:
    listed = devices_of(config)
    return device.kind == "gpu" if listed is None else device.name in listed


def devices_of(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the devices that a checkpoint is limited to; None is every GPU, and no CPU."""
    return _listed(config, "devices")


def precisions_of(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the precisions that a checkpoint is limited to; None is no limit."""
    return _listed(config, "precision")


def frameworks_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return whose runs a checkpoint learned from, "torch" where it does not say."""
    return _listed(config, "framework") or ("torch",)


def _listed(config: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    conditions = config.get("conditions")
    listed = conditions.get(name) if isinstance(conditions, dict) else None
    return tuple(map(str, listed)) if isinstance(listed, list) else None
