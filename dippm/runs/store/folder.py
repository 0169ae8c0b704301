"""The folder of a run: everything is written here first, whatever becomes of the store.

    start.json       `Start`, whole at any moment
    events.jsonl     spans, values, params and tags, a line each, appended
    samples-*.dippm  of samplers, see `dippm.measure.sampler_file`
    artifacts/       copies of files that the run told of
    end.json         `End`, written once; missing while the run goes on, or if it was killed

A line is one write to a file opened for appending, so threads and processes may share it, and a
crash loses at most the line in flight. Standard library only: workloads import this.
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
from dippm.runs.store.record import (
    End,
    Moment,
    RunStatus,
    Span,
    SpanStatus,
    Start,
    Value,
    as_json,
)

VERSION = 1
START, EVENTS, END = "start.json", "events.jsonl", "end.json"
ARTIFACTS = "artifacts"
SAMPLES = "samples-*.dippm"
SPOOL_VARIABLE = "DIPPM_SPOOL"
IDS = 2**20
Kind = TypeVar("Kind")


def spool() -> Path:
    """Return the folder of folders of runs: `$DIPPM_SPOOL`, or one of the user's state."""
    given = os.environ.get(SPOOL_VARIABLE)
    if given:
        return Path(given).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dippm" / "runs"


class RunFolder:
    """Writes one run.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder of a run that was started, from any process of it."""
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._events = os.open(path / EVENTS, flags, 0o666)

    @classmethod
    def create(cls, start: Start, root: Path | None = None) -> RunFolder:
        """Create the folder of a run under `root`, by default the spool.

        Raises:
            OSError: if it cannot be written, or if there is one of this uuid.
        """
        path = (root or spool()) / start.uuid
        path.mkdir(parents=True)
        folder = cls(path)
        folder.start(start)
        return folder

    def start(self, start: Start) -> None:
        """Say how the run started, once more when the process is known that does the work.

        Raises:
            OSError: if it cannot be written.
        """
        _write_whole(self.path / START, {"version": VERSION, **as_json(start)})

    def span(self, span: Span) -> None:
        """Append a span; of one id the last counts, so an open one may be closed later."""
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
        """Append params, tags or what the run depends on; of one name the last counts."""
        given = {"params": params, "tags": tags, "environment": environment}
        self._append({kind: dict(texts) for kind, texts in given.items() if texts})

    def artifact(self, source: Path, under: str = "") -> None:
        """Keep a copy of a file or folder as it is now; of one name the last counts.

        Args:
            source: the file or folder.
            under: folder that it goes into, relative.

        Raises:
            ValueError: if `under` leads out of the run.
            OSError: if it cannot be read, or the copy not be written.
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
        """Say how the run ended.

        Raises:
            OSError: if it cannot be written.
        """
        _write_whole(self.path / END, as_json(end))

    def first_id(self) -> int:
        """Return the first of `IDS` ids of spans that no other call gives, in any process.

        Raises:
            OSError: if nothing can be written.
        """
        self._append({"process": os.getpid()})
        return os.lseek(self._events, 0, os.SEEK_CUR) * IDS  # the end of a line is of one line

    def line(self, line: bytes) -> None:
        """Append an event that is spelled already: one JSON object and the end of its line."""
        if os.write(self._events, line) < len(line):  # a full disk; the next line is one again
            os.write(self._events, b"\n")

    def close(self) -> None:
        """Close the file of events; writing after it is an `OSError`."""
        events, self._events = self._events, -1
        os.close(events)

    def _append(self, event: dict[str, Any]) -> None:
        text = json.dumps(event, separators=(",", ":"), default=str)
        self.line(text.encode(errors="backslashreplace") + b"\n")


class RecordedRun(NamedTuple):
    """What a folder says of a run.

    Attributes:
        path: the folder.
        start: how it started, with what was said later of params, tags and environment.
        spans: in the order of their ids.
        values: in the order they were told.
        samples: files of samplers.
        end: None while it goes on, or if nobody could write it.
        damaged_lines: of events that could not be read.
    """

    path: Path
    start: Start
    spans: tuple[Span, ...] = ()
    values: tuple[Value, ...] = ()
    samples: tuple[Path, ...] = ()
    end: End | None = None
    damaged_lines: int = 0


def read_folder(path: Path) -> RecordedRun:
    """Read the folder of a run, also while it is written or after a crash.

    Raises:
        RunError: if there is no start in it that can be read.
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
    """Return how a run started, as `as_json` spells it; what it raises, see `checked`."""
    moment, command = checked(Moment, held["at"]), tuple(held["command"])
    return checked(Start, {**held, "at": moment, "command": command})


def end_of(held: Mapping[str, Any]) -> End:
    """Return how a run ended, as `as_json` spells it; what it raises, see `checked`."""
    return checked(End, {**held, "at": checked(Moment, held["at"])})


def _end(path: Path) -> End | None:
    try:
        return end_of(_json(_bytes(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _bytes(path: Path) -> bytes:
    """Return what a file holds; another kind of entry, as a pipe, is not waited for."""
    if not is_regular(path) and path.exists():
        raise OSError(f"{path.name} is no file")
    return path.read_bytes()


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def checked(kind: Callable[..., Kind], held: Mapping[str, Any]) -> Kind:
    """Return a record of what was read, whose fields are of the types that its readers count on.

    Raises:
        ValueError: if one is not.
        KeyError: if it has a field that is not known.
        TypeError: if it lacks one, or is no record.
        AttributeError: if it is no record.
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
    """Return whether all whole numbers in plain data can be floats, which readers draw and mean."""
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
"""What the fields of records hold, by their names, which mean the same in each."""


def _short(held: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is empty; reading fills it in."""
    return {
        name: value
        for name, value in held.items()
        if value not in ("", None, {}) or name in ("data", "name")
    }


def _write_whole(path: Path, document: dict[str, Any]) -> None:
    """Write a document so that a reader finds all of it or none."""
    beside = path.with_suffix(f".{os.getpid()}.part")
    with open(beside, "x", encoding="utf-8") as file:
        json.dump(document, file, indent=1, default=str)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
