"""One row of a plan: a run that is to be made."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from dippm.errors import PlanError, shortened
from dippm.runs.colocation import Sharing
from dippm.runs.plans.status import Status, read_status

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
"""Of radT's plans; Name may be missing."""

NOTHING = ("", "-", "none", "nan")
LONGEST_PARAMS = 128 << 10
"""Characters; Linux hands no longer argument to a process."""
_DEVICE = re.compile(r"\d+(:\d+)?|(GPU|MIG)-[\w/-]+", re.IGNORECASE)
_SETTING = re.compile(r"[A-Za-z_][\w.-]*=.*", re.DOTALL)


class PlanRow(NamedTuple):
    """A run that is to be made.

    Attributes:
        number: from 1, in the order of the plan.
        experiment: what runs are gathered under.
        workload: runs of one start together.
        name: "" if none was given.
        status: what became of it.
        run: uuid of its run, "" if there was none.
        devices: GPUs by index or UUID; none leaves the environment as it is.
        sharing: as `dippm.runs.colocation.Sharing` spells it; "" for none.
        file: what is run: a Python file, or a command with its first words.
        listeners: names, in radT's or our words.
        params: arguments as they stand in the plan.
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

    @property
    def key(self) -> tuple[str, str]:
        """Experiment and workload: rows of one key start together."""
        return self.experiment, self.workload

    @property
    def content(self) -> tuple[object, ...]:
        """What is asked for: by it a row is known again in a plan that was edited."""
        return tuple(self._replace(number=0, status=Status(), run=""))


def read_row(number: int, cells: Mapping[str, str]) -> PlanRow:
    """Return a row from its cells by column.

    Raises:
        PlanError: if a cell makes no sense.
        UnknownNameError: if it names no status.
        CollocationError: if it names no way to share a device.
    """
    given = {name: text.strip() for name, text in cells.items()}
    if not given.get("File"):
        raise PlanError("the cell File is empty", "Name a Python file or a command.")
    words_of(given.get("Params", ""))
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
    )


def of_a_plan_only(**given: str) -> None:
    """Refuse what a command line says of rows beside a plan, which says it of each row.

    Raises:
        PlanError: naming what was given.
    """
    names = [name for name, text in given.items() if text]
    if names:
        hint = "Write it into the rows, or give a script in place of the plan."
        raise PlanError(f"a plan says for each row its {' and '.join(names)}", hint)


def read_devices(text: str) -> tuple[str, ...]:
    """Return the devices of a cell, "1+2"; none of "-", "" and "cpu".

    Raises:
        PlanError: if one is neither index nor UUID, or is named twice.
    """
    if text.casefold() in (*NOTHING, "cpu"):
        return ()
    found = tuple(word.strip() for word in text.split("+"))
    for word in found:
        if not _DEVICE.fullmatch(word):
            hint = "Give indices or UUIDs, for instance 0 or 1+2, or - for none."
            raise PlanError(f"{shortened(repr(text))} are no devices", hint)
    if len(set(found)) < len(found):
        raise PlanError(f"{shortened(repr(text))} names a device twice", "Name each once: 1+2.")
    return found


def read_listeners(text: str) -> tuple[str, ...]:
    """Return the listeners of a cell, "smi+top"."""
    if text.casefold() in NOTHING:
        return ()
    return tuple(filter(None, (word.strip().casefold() for word in text.split("+"))))


def read_sharing(text: str) -> str:
    """Return how devices are shared, as `Sharing` spells it.

    Raises:
        CollocationError: if there is no such way.
    """
    return "" if text.casefold() in NOTHING else str(Sharing.parse(text))


def words_of(params: str) -> tuple[str, ...]:
    """Return the arguments of a cell Params, split as a shell does.

    Raises:
        PlanError: if a quote is not closed, or they are longer than a process takes.
    """
    if len(params) > LONGEST_PARAMS:  # the time to split a word grows with its square
        what = f"Params of {len(params):,} characters"
        raise PlanError(what, f"At most {LONGEST_PARAMS:,}: write them to a file that is read.")
    try:
        return () if params.strip() == "-" else tuple(shlex.split(params))
    except ValueError as error:
        what = f"Params {shortened(repr(params))} cannot be split: {error}"
        raise PlanError(what, "Close the quote.") from None


def as_options(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return "batch-size=128", radT's older spelling, as "--batch-size 128".

    Only if every word is spelled so; words after a leading "--" stay as they are.
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
    """Return what arguments set, for the params of a run: "--lr 0.1", "--lr=0.1", "lr=0.1"."""
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
