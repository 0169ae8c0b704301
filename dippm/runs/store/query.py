"""Runs in MLflow's tables: their list fields and names; full-text search, conditions on metrics."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from dippm.errors import RunError
from dippm.runs.store.columns import NUMBERS
from dippm.runs.store.folder import checked

UUID, COMPLETE, ABOUT, GROUP = "dippm.uuid", "dippm.complete", "dippm.run", "dippm.group"
SEARCHED = ("uuid", "name", "experiment", "group", "description")
NOT_GIVEN = ("dippm.", "mlflow.", "environment/", "absent/")
"""Prefixes of tags that do not come from the user."""
SUMMARY = "summary/"
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
LONGEST = 500
"""Most characters of a condition or search."""
_TAIL = re.compile(r"(<=|>=|!=|==|=|<|>)\s*([-+0-9.eE]+)$")
"""Relation and number at the end of a condition: a name may contain relation characters too."""


class RunEntry(NamedTuple):
    """A run as MLflow stores it.

    Attributes:
        id: MLflow's run id.
        experiment: name of the experiment.
        start_ms: start in milliseconds since 1970.
        tags: all tags.
        metrics: last value of each metric.
        params: params as text.
    """

    id: str
    experiment: str
    start_ms: int
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    params: Mapping[str, str]


class Clause(NamedTuple):
    """A condition on a run in a query.

    Attributes:
        kind: table to look in.
        name: name of the tag or metric.
        relation: operator in MLflow's and SQL's notation.
        value: value to compare with.
    """

    kind: Literal["tags", "metrics"]
    name: str
    relation: str
    value: str | float

    def text(self) -> str:
        """Return it in MLflow's filter language; values are uuids or come from `names.text`."""
        return f"{self.kind}.`{self.name}` {self.relation} {self.value!r}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a metric of runs.

    Attributes:
        metric: "SERIES.NUMBER" of a summary, or the name of a logged metric.
        relation: operator in MLflow's notation.
        number: number to compare with.
    """

    metric: str
    relation: str
    number: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition such as "tree.rss_mb.max > 100".

        Raises:
            RunError: if the text is not a condition.
        """
        check_length(text)
        plain = text.strip()
        try:
            found = _TAIL.search(plain)
            metric = plain[: found.start()].rstrip() if found else ""
            if not found or not metric or not math.isfinite(number := float(found[2])):
                raise ValueError
        except ValueError:
            hint = "Write a metric, a relation and a number: tree.rss_mb.max > 100."
            raise RunError(f"{text!r} is no condition", hint) from None
        return cls(metric, "=" if found[1] == "==" else found[1], number)

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Return whether a run's metrics meet it; a missing metric does not."""
        value = metrics.get(self.metric)
        return value is not None and RELATIONS[self.relation](value, self.number)

    def clause(self) -> Clause:
        """Return it as a clause of the store."""
        series, _, number = self.metric.rpartition(".")
        is_summary = series and number in NUMBERS
        name = f"{SUMMARY}{mlflow_key(series)}/{number}" if is_summary else mlflow_key(self.metric)
        return Clause("metrics", name, self.relation, self.number)


def check_length(text: str) -> None:
    """Refuse an unreasonably long condition or search.

    Raises:
        RunError: if it is longer than `LONGEST`.
    """
    if len(text) > LONGEST:
        raise RunError(
            f"a condition or search of {len(text):,} characters", f"At most {LONGEST} are taken."
        )


def run_fields(run: RunEntry) -> dict[str, Any]:
    """Return the fields of `StoredRun` that MLflow's own tables hold.

    Raises:
        RunError: if a field has an unexpected type.
    """
    tags = run.tags
    try:
        said: dict[str, Any] = checked(dict, json.loads(tags.get(ABOUT, "{}")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = f"`mlflow runs delete --run-id {run.id}` takes it off the list."
        raise RunError(f"run {tags[UUID]}: its tag {ABOUT} is damaged: {error}", hint) from error
    metrics = {_shown(name): value for name, value in run.metrics.items() if name[:7] != "system/"}
    found = {
        "uuid": tags[UUID],
        "name": "",
        "experiment": "",
        "status": "running",
        "wall_ns": run.start_ms * 1_000_000,
        "seconds": 0.0,
        "description": "",
        **said,
        "metrics": metrics,
        "group": tags.get(GROUP, ""),
    }
    own = (value for name, value in tags.items() if not name.startswith("dippm."))
    texts = (*(found[name] for name in SEARCHED), *own)
    held = "\n".join((*texts, *run.params, *run.params.values()))
    given = {name: value for name, value in tags.items() if not name.startswith(NOT_GIVEN)}
    return {**found, "params": run.params, "tags": given, "words": held.casefold()}


def holds(words: str, search: str) -> bool:
    """Return whether a run's words contain all search words, ignoring case."""
    return all(word in words for word in search.casefold().split())


@lru_cache(maxsize=4096)  # thousands of runs share a few names
def _shown(name: str) -> str:
    if not name.startswith(SUMMARY):
        return name
    series, _, number = name.removeprefix(SUMMARY).rpartition("/")
    return f"{series}.{number}"


# Names and texts as MLflow accepts them; the run's record has the originals.


_FORBIDDEN = re.compile(r"[^\w.\- :/]", re.ASCII)
LONGEST_KEY, LONGEST_PARAM, LONGEST_TAG = 250, 6000, 5000


def mlflow_key(name: str) -> str:
    """Return a valid key of MLflow for a name."""
    plain = _FORBIDDEN.sub("_", name).strip("/. ")[:LONGEST_KEY] or "_"
    return re.sub(r"//+", "/", re.sub(r"\.\.+", "_", plain)).replace("/./", "/_/")


def mlflow_keys(names: Iterable[str]) -> dict[str, str]:
    """Return a unique key for each name."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for name in names:
        plain = wanted = mlflow_key(name)
        while plain in taken:
            counts[wanted] = counts.get(wanted, 1) + 1
            plain = f"{wanted[: LONGEST_KEY - 8]}_{counts[wanted]}"
        taken.add(plain)
        found[name] = plain
    return found


def experiment_folder(name: str) -> str:
    """Return a unique folder name for an experiment."""
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def mlflow_text(value: object, longest: int) -> str:
    """Return text that every database accepts: no NUL, no lone surrogates."""
    plain = str(value).replace("\0", "\ufffd").encode(errors="replace").decode()
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def mlflow_texts(values: Mapping[str, object], longest: int) -> dict[str, str]:
    """Return such texts with such keys."""
    named = mlflow_keys(values)
    return {named[name]: mlflow_text(value, longest) for name, value in values.items()}
