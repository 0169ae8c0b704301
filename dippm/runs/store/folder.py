"""The folder of a run: everything is written here first, independently of the store.

    start.json       `Start`, replaced atomically
    events.jsonl     spans, values, params and tags, one line each, append-only
    samples-*.dippm  samples, see `dippm.measure.sampler_file`
    artifacts/       copies of files that the run stored
    end.json         `End`, written once; missing during the run, or if it was killed

A line is a single write to a file opened for appending, so threads and processes may share it, and
a crash loses at most the line in flight. Standard library only: workloads import this.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from dippm.base.files import is_regular
from dippm.errors import RunError, shortened
from dippm.runs.store.record import End, Moment, RunStatus, Span, SpanStatus, Start, Value, as_json

VERSION = 1
START, EVENTS, END = "start.json", "events.jsonl", "end.json"
ARTIFACTS = "artifacts"
SAMPLES = "samples-*.dippm"
SPOOL_VARIABLE = "DIPPM_SPOOL"
IDS = 2**20
Kind = TypeVar("Kind")


def spool() -> Path:
    """Return the parent of the runs' folders: `$DIPPM_SPOOL`, or one in the user's state."""
    given = os.environ.get(SPOOL_VARIABLE)
    if given:
        return Path(given).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dippm" / "runs"


class RunFolder:
    """Writer of one run.

    Attributes:
        path: path of the folder.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder of a started run, from any of its processes."""
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._events = os.open(path / EVENTS, flags, 0o666)

    @classmethod
    def create(cls, start: Start, root: Path | None = None) -> RunFolder:
        """Create the folder of a run under `root`, by default the spool.

        Raises:
            OSError: if it cannot be written, or if this uuid already has one.
        """
        path = (root or spool()) / start.uuid
        path.mkdir(parents=True)
        folder = cls(path)
        folder.start(start)
        return folder

    def start(self, start: Start) -> None:
        """Record the start of the run, again when the working process is known.

        Raises:
            OSError: if it cannot be written.
        """
        _write_whole(self.path / START, {"version": VERSION, **as_json(start)})

    def span(self, span: Span) -> None:
        """Append a span; a later line of the same id wins, so an open span is closed by another."""
        self._append({"span": _short(as_json(span))})

    def value(self, value: Value) -> None:
        """Append a value."""
        self._append({"value": _short(as_json(value))})

    def settings(
        self,
        *,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Append params, tags or environment; a later value of the same name wins."""
        given = {"params": params, "tags": tags, "environment": environment}
        self._append({kind: dict(texts) for kind, texts in given.items() if texts})

    def artifact(self, source: Path, under: str = "") -> None:
        """Store a copy of a file or folder as it is now, replacing one of the same name.

        Args:
            source: file or folder.
            under: relative path of the destination folder.

        Raises:
            ValueError: if `under` leaves the run's folder.
            OSError: if the source cannot be read or the copy cannot be written.
        """
        import shutil

        into = self.path / ARTIFACTS / under
        if os.path.isabs(under) or ".." in Path(under).parts:
            raise ValueError(f"{under!r} leads out of the run")
        into.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, into / source.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, into / source.name)

    def end(self, end: End) -> None:
        """Record how the run ended.

        Raises:
            OSError: if it cannot be written.
        """
        _write_whole(self.path / END, as_json(end))

    def first_id(self) -> int:
        """Return the first of `IDS` span ids that are unique across all processes.

        Raises:
            OSError: if nothing can be written.
        """
        self._append({"process": os.getpid()})
        return os.lseek(self._events, 0, os.SEEK_CUR) * IDS  # unique: no other line ends there

    def line(self, line: bytes) -> None:
        """Append a serialised event: one JSON object and a newline."""
        if os.write(self._events, line) < len(line):  # full disk: end the torn line
            os.write(self._events, b"\n")

    def close(self) -> None:
        """Close the file of events; later writes raise `OSError`."""
        events, self._events = self._events, -1
        os.close(events)

    def _append(self, event: dict[str, Any]) -> None:
        text = json.dumps(event, separators=(",", ":"), default=str)
        self.line(text.encode(errors="backslashreplace") + b"\n")


class RecordedRun(NamedTuple):
    """The contents of a run's folder.

    Attributes:
        path: path of the folder.
        start: start of the run, with params, tags and environment added later.
        spans: spans in the order of their ids.
        values: values in the order of logging.
        samples: files of samplers.
        end: end of the run; None while it is in progress, or if it was not recorded.
        damaged_lines: number of unreadable lines of events.
    """

    path: Path
    start: Start
    spans: tuple[Span, ...] = ()
    values: tuple[Value, ...] = ()
    samples: tuple[Path, ...] = ()
    end: End | None = None
    damaged_lines: int = 0


def read_folder(path: Path) -> RecordedRun:
    """Read the folder of a run, even while it is being written or after a crash.

    Raises:
        RunError: if its start is missing or unreadable.
    """
    try:
        held = _json(_bytes(path / START))
        if held.pop("version") != VERSION:
            raise ValueError("another version")
        start_of(held)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Give the folder of a run, as `dippm run` made it."
        raise RunError(f"{path} holds no run: {error}", hint) from error
    spans: dict[int, Span] = {}
    values: list[Value] = []
    settings = {name: dict(held.get(name) or {}) for name in ("params", "tags", "environment")}
    damaged = 0
    for line in _lines(path / EVENTS):
        try:
            event = _json(line)
            if "span" in event:
                span = checked(Span, event["span"])
                spans[span.id] = span
            elif "value" in event:
                values.append(checked(Value, event["value"]))
            elif "process" not in event:
                for name, texts in event.items():
                    settings[name].update({key: str(text) for key, text in texts.items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
    held.update(settings)
    return RecordedRun(
        path,
        start_of(held),
        tuple(spans[key] for key in sorted(spans)),
        tuple(values),
        tuple(sorted(path.glob(SAMPLES))),
        _end(path / END),
        damaged,
    )


def _lines(path: Path) -> list[bytes]:
    try:
        return _bytes(path).splitlines()
    except OSError:
        return []


def start_of(held: Mapping[str, Any]) -> Start:
    """Return the start of a run from its JSON form; raises as `checked`."""
    moment, command = checked(Moment, held["at"]), tuple(held["command"])
    return checked(Start, {**held, "at": moment, "command": command})


def end_of(held: Mapping[str, Any]) -> End:
    """Return the end of a run from its JSON form; raises as `checked`."""
    return checked(End, {**held, "at": checked(Moment, held["at"])})


def _end(path: Path) -> End | None:
    try:
        return end_of(_json(_bytes(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _bytes(path: Path) -> bytes:
    """Return the content of a file, without blocking on other entries such as pipes."""
    if not is_regular(path) and path.exists():
        raise OSError(f"{path.name} is no file")
    return path.read_bytes()


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def checked(kind: Callable[..., Kind], held: Mapping[str, Any]) -> Kind:
    """Return a record of parsed data after checking the type of each field.

    Raises:
        ValueError: if a field has another type.
        KeyError: if a field is unknown.
        TypeError: if a field is missing, or the data is not a mapping.
        AttributeError: if the data is not a mapping.
    """
    for name, value in held.items():
        if not _FIELDS[name](value):
            raise ValueError(f"{name} is {shortened(repr(value))}")
    return kind(**held)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_LARGEST <= value <= _LARGEST


def _is_whole_or_none(value: Any) -> bool:
    return value is None or _is_whole(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _are_floats(data: Any) -> bool:
    """Return whether all integers in plain data fit into a float, as readers expect."""
    left = [data]
    while left:
        item = left.pop()
        if isinstance(item, dict | list):
            left += item.values() if isinstance(item, dict) else item
        elif isinstance(item, int) and abs(item) > sys.float_info.max:
            return False
    return True


def _is_uuid(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32 and set(value) <= _DIGITS


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


_LARGEST = 2**63 - 1
_DIGITS = frozenset("0123456789abcdef")
_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys("name experiment description folder host group store".split(), _is_text),
    **dict.fromkeys("thread error unit kind series scope reason".split(), _is_text),
    **dict.fromkeys("pid id start_ns parent time_ns span".split(), _is_whole),
    **dict.fromkeys("monotonic_ns wall_ns n".split(), _is_whole),
    **dict.fromkeys("mean p50 p95 max integral".split(), _is_number_or_none),
    **dict.fromkeys(("end_ns", "step", "exit_code"), _is_whole_or_none),
    **dict.fromkeys(("params", "tags", "environment", "absent"), _are_texts),
    "seconds": _is_number,
    "counter": lambda value: isinstance(value, bool),
    "uuid": _is_uuid,
    "status": lambda value: value in (*get_args(RunStatus), *get_args(SpanStatus)),
    "command": lambda value: all(map(_is_text, value)),
    "values": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "prediction": lambda value: value is None or isinstance(value, dict),
    "at": lambda value: isinstance(value, Moment),
    "data": lambda value: _are_floats(value),
}
"""Check of each field by its name, which means the same in all records."""


def _short(held: dict[str, Any]) -> dict[str, Any]:
    """Leave out empty fields; reading fills them in."""
    return {
        name: value
        for name, value in held.items()
        if value not in ("", None, {}) or name in ("data", "name")
    }


def _write_whole(path: Path, document: dict[str, Any]) -> None:
    """Write a document atomically."""
    partial = path.with_suffix(f".{os.getpid()}.part")
    with open(partial, "x", encoding="utf-8") as file:
        json.dump(document, file, indent=1, default=str)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
