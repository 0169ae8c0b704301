"""Rows of a plan: the status of a run (`Status`), and the run that a row requests (`PlanRow`)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from dippm.base.written import whole_number
from dippm.errors import PlanError, UnknownNameError, shortened
from dippm.runs.colocation import Sharing

Word = Literal["PENDING", "RUNNING", "FINISHED", "FAILED", "TIMEOUT", "INTERRUPTED", "LOST"]
WORDS: tuple[Word, ...] = get_args(Word)
MLFLOW: dict[str, Word] = {"KILLED": "INTERRUPTED", "SCHEDULED": "LOST"}
"""Status words of MLflow that radT writes → words of this package."""


class Status(NamedTuple):
    """The status of a row.

    Attributes:
        word: status word, one of `WORDS`.
        detail: exit code for FAILED, "host:pid:start" for RUNNING, else "".
    """

    word: Word = "PENDING"
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.detail}" if self.detail else self.word


_PROCESS_NUMBER = re.compile("[0-9]{1,20}")


class Process(NamedTuple):
    """A process, identified uniquely even if its id is reused.

    Attributes:
        host: name of the machine.
        pid: id of the process.
        start: clock ticks from boot to the start of the process, independent of the system time.
    """

    host: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}"

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return a process of this machine; its start is 0 if it has ended."""
        return cls(os.uname().nodename, pid, _process_start(pid))

    @classmethod
    def parse(cls, text: str) -> Process | None:
        """Return the process in a text that `str` returned; None for any other text."""
        host, _, rest = text.strip().partition(":")
        pid, _, start = rest.partition(":")
        numbers = all(_PROCESS_NUMBER.fullmatch(part) for part in (pid, start))
        return cls(host, int(pid), int(start)) if numbers else None

    @property
    def here(self) -> bool:
        """Whether the process is on this machine."""
        return self.host == os.uname().nodename

    @property
    def goes_on(self) -> bool:
        """Whether the process is known to be running, which only its own machine can tell."""
        return self.here and self.start > 0 and _process_start(self.pid) == self.start


def read_status(text: str) -> Status:
    """Return the status in a cell; radT's words, which may be followed by a run, are accepted.

    Raises:
        UnknownNameError: if the status is unknown.
    """
    word, _, detail = text.strip().partition(" ")
    detail = detail.strip()
    if word in ("", "-"):
        return Status()
    upper = word.upper()
    for known in WORDS:
        if known == upper:
            kept = detail if known == "FAILED" or Process.parse(detail) else ""
            if known == "RUNNING" and not kept:
                return Status("LOST")  # radT does not record the process that runs it
            return Status(known, kept)
    if upper in MLFLOW:
        return Status(MLFLOW[upper])
    hint = f"Leave the cell empty to run it; a plan holds {', '.join(WORDS)}."
    raise UnknownNameError.of("status", text, WORDS, hint)


def _process_start(pid: int) -> int:
    """Return the start of a process in ticks since boot; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


# Rows, and the notation of their cells.


COLUMNS = (
    "Experiment",
    "Workload",
    "Name",
    "Status",
    "Run",
    "Devices",
    "Collocation",
    "File",
    "Listeners",
    "Params",
)
"""Columns of radT's plans; Name may be missing."""
OWN_COLUMNS = ("Model",)
"""Columns that radT's plans do not have; each may be missing."""
MODEL_OPTIONS = ("batch", "input", "precision", "mode", "device")
"""Conditions of a row's model, as `dippm predict` takes them."""

NOTHING = ("", "-", "none", "nan")
LONGEST_PARAMS = 128 << 10
"""Maximum number of characters of Params; Linux limits the length of an argument."""
_DEVICE = re.compile(r"\d+(:\d+)?|(GPU|MIG)-[\w/-]+", re.IGNORECASE)
_SETTING = re.compile(r"[A-Za-z_][\w.-]*=.*", re.DOTALL)


class PlanRow(NamedTuple):
    """One run of a plan.

    Attributes:
        number: position in the plan, from 1.
        experiment: name of the experiment that groups runs.
        workload: name shared by runs that start together.
        name: name of the run; "" if none was given.
        status: status of the row.
        run: UUID of the row's run; "" if there was none.
        devices: GPUs by index or UUID; empty leaves the environment unchanged.
        sharing: way of sharing, as in `dippm.runs.colocation.Sharing`; "" for none.
        file: path of a Python file, or a command with its first arguments.
        listeners: names of radT's listeners or of sources.
        params: arguments as written in the plan.
        model: model of the run and its conditions as written in the plan, see `model_of`; "" if
            they are not stated.
    """

    number: int
    experiment: str
    workload: str
    name: str = ""
    status: Status = Status()
    run: str = ""
    devices: tuple[str, ...] = ()
    sharing: str = ""
    file: str = ""
    listeners: tuple[str, ...] = ()
    params: str = ""
    model: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Experiment and workload: rows with the same key start together."""
        return self.experiment, self.workload

    @property
    def content(self) -> tuple[object, ...]:
        """Requested run, which identifies a row after the plan was edited."""
        return tuple(self._replace(number=0, status=Status(), run=""))


def read_row(number: int, cells: Mapping[str, str]) -> PlanRow:
    """Return a row from its cells by column.

    Raises:
        PlanError: if a cell is invalid.
        UnknownNameError: if the status is unknown.
        CollocationError: if the way of sharing is unknown.
    """
    given = {name: text.strip() for name, text in cells.items()}
    if not given.get("File"):
        raise PlanError("the cell File is empty", "Name a Python file or a command.")
    words_of(given.get("Params", ""))
    model = "" if given.get("Model", "").casefold() in NOTHING else given["Model"]
    if model:
        model_of(model)
    return PlanRow(
        number,
        given.get("Experiment", "") or "0",
        given.get("Workload", "") or "0",
        given.get("Name", ""),
        read_status(given.get("Status", "")),
        given.get("Run", ""),
        read_devices(given.get("Devices", "")),
        read_sharing(given.get("Collocation", "")),
        given["File"],
        read_listeners(given.get("Listeners", "")),
        given.get("Params", ""),
        model,
    )


def of_a_plan_only(**given: str) -> None:
    """Check that no option is given that a plan states in each of its rows.

    Raises:
        PlanError: if one was given, naming it.
    """
    names = [name for name, text in given.items() if text]
    if names:
        hint = "Write it into the rows, or give a script in place of the plan."
        raise PlanError(f"a plan says for each row its {' and '.join(names)}", hint)


def read_devices(text: str) -> tuple[str, ...]:
    """Return the devices of a cell, "1+2"; empty for "-", "" and "cpu".

    Raises:
        PlanError: if a device is neither index nor UUID, or is named twice.
    """
    if text.casefold() in (*NOTHING, "cpu"):
        return ()
    found = tuple(word.strip() for word in text.split("+"))
    for word in found:
        if not _DEVICE.fullmatch(word):
            hint = "Give indices or UUIDs, for instance 0 or 1+2, or - for none."
            raise PlanError(f"{shortened(repr(text))} are not devices", hint)
    if len(set(found)) < len(found):
        raise PlanError(f"{shortened(repr(text))} names a device twice", "Name each once: 1+2.")
    return found


def read_listeners(text: str) -> tuple[str, ...]:
    """Return the listeners of a cell, "smi+top"."""
    if text.casefold() in NOTHING:
        return ()
    return tuple(filter(None, (word.strip().casefold() for word in text.split("+"))))


def read_sharing(text: str) -> str:
    """Return the way of sharing in `Sharing`'s notation.

    Raises:
        CollocationError: if it is unknown.
    """
    return "" if text.casefold() in NOTHING else str(Sharing.parse(text))


def words_of(params: str) -> tuple[str, ...]:
    """Return the arguments in a cell Params, split as a shell does.

    Raises:
        PlanError: if a quote is not closed, or they exceed the limit of a process.
    """
    if len(params) > LONGEST_PARAMS:  # splitting a word takes time quadratic in its length
        what = f"Params of {len(params):,} characters"
        raise PlanError(what, f"At most {LONGEST_PARAMS:,}: write them to a file that is read.")
    try:
        return () if params.strip() == "-" else tuple(shlex.split(params))
    except ValueError as error:
        what = f"Params {shortened(repr(params))} cannot be split: {error}"
        raise PlanError(what, "Close the quote.") from None


def model_of(cell: str) -> tuple[str, dict[str, Any]]:
    """Return path or name of the model in a cell Model, and the conditions of its prediction.

    Raises:
        PlanError: if the model is not followed by options with a value each, or a batch is not a
            number.
        UnknownNameError: if an option is not one of `MODEL_OPTIONS`.
    """
    model, *words = words_of(cell) or ("",)
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or not all(name.startswith("--") for name in names) or not model:
        hint = "Write it as for `dippm predict`: net.onnx --batch 8 --precision fp16."
        raise PlanError(f"Model {shortened(repr(cell))} is no model with its conditions", hint)
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if name.removeprefix("--") not in MODEL_OPTIONS:
            options = [f"--{option}" for option in MODEL_OPTIONS]
            raise UnknownNameError.of("option of a model", name, options)
        found[name.removeprefix("--")] = value
    if "batch" in found:
        try:
            found["batch"] = whole_number(found["batch"])
        except ValueError:
            what = f"the batch of Model is {shortened(repr(found['batch']))}"
            raise PlanError(what, "Give a whole number.") from None
    return model, found


def as_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return radT's older notation "batch-size=128" as "--batch-size 128".

    Only if every word has that form; words after a leading "--" stay as they are.
    """
    if words[:1] == ("--",):
        return words[1:]
    if words and all(_SETTING.fullmatch(word) for word in words):
        return tuple(
            piece
            for name, _, value in (word.partition("=") for word in words)
            for piece in (f"--{name}", value)
        )
    return words


def settings_of(words: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters that arguments set, as in "--lr 0.1", "--lr=0.1" or "lr=0.1"."""
    found: dict[str, str] = {}
    waiting = ""
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and len(word) > 2:
            waiting = "" if equals else name.removeprefix("--")
            found[name.removeprefix("--")] = value if equals else "true"
        elif waiting:
            found[waiting], waiting = word, ""
        elif _SETTING.fullmatch(word):
            found[name] = value
    return found
