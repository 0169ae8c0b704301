"""`Exploration`: all that a person set on the page, as a file that a colleague loads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dippm.errors import DippmError
from dippm.show.ui.alignment import Alignment
from dippm.show.ui.smoothing import STRONGEST

LARGEST_BYTES = 4 * 2**20
HINT = "Load a file that the page's “Save exploration” wrote."
MAX_TEXT = 500
MAX_CHARTS = 50
MAX_COLUMNS = 100
Text = Annotated[str, Field(max_length=MAX_TEXT)]
MAX_NAMES = 20_000
Grouping = Literal["single", "merged"]
Axis = Literal["time", "step"]
Range = tuple[
    Annotated[float, Field(allow_inf_nan=False)], Annotated[float, Field(allow_inf_nan=False)]
]


class ExplorationError(DippmError, ValueError):
    """A file is no exploration."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ChartView(_Part):
    """One chart.

    Attributes:
        stream: key of what it draws, see `dippm.show.ui.streams`.
        log: whether its y axis is logarithmic.
        x: what is seen of the x axis: seconds; None for all.
        y: what is seen of the y axis, in its unit (its power of ten, on a logarithmic one).
    """

    stream: Text
    log: bool = False
    x: Range | None = None
    y: Range | None = None


class Exploration(_Part):
    """All that was set.

    Attributes:
        kind: what the file is.
        version: of its format.
        runs: uuids of what was selected, in the order of selection.
        hidden: labels of lines that are not drawn: uuids, or of merged ones a JSON list
            of experiment and workload.
        charts: from top to bottom.
        smoothing: percent.
        alignment: of the x axis, where it is time.
        axis: what the x axis is: time, or the step that a run told with its numbers.
        grouping: every run for itself, or workloads as mean and range.
        rates: whether a counter is drawn as its growth per second.
        spans: whether spans are drawn behind the streams.
        prediction: whether what was predicted is drawn beside what was measured.
        search: words.
        status: of runs in the list, "" for all.
        condition: on metrics of runs in the list.
        experiments: that the list is of; none for all.
        workloads: that the list is of, as experiment and name; none for all.
        columns: of the table, see `dippm.show.ui.table`; none for those that it chooses.
        sort: column that the table is sorted by, with "-" before it for falling order.
        by: column that gathers runs of the table into groups, "" for none.
    """

    kind: Literal["dippm exploration"] = "dippm exploration"
    version: Literal[1] = 1
    runs: Annotated[tuple[Text, ...], Field(max_length=MAX_NAMES)] = ()
    hidden: Annotated[tuple[Text, ...], Field(max_length=MAX_NAMES)] = ()
    charts: Annotated[tuple[ChartView, ...], Field(max_length=MAX_CHARTS)] = ()
    smoothing: Annotated[int, Field(ge=0, le=STRONGEST)] = 0
    alignment: Alignment = "run"
    axis: Axis = "time"
    grouping: Grouping = "single"
    rates: bool = True
    spans: bool = False
    prediction: bool = True
    search: Text = ""
    status: Text = ""
    condition: Text = ""
    experiments: Annotated[tuple[Text, ...], Field(max_length=MAX_NAMES)] = ()
    workloads: Annotated[tuple[tuple[Text, Text], ...], Field(max_length=MAX_NAMES)] = ()
    columns: Annotated[tuple[Text, ...], Field(max_length=MAX_COLUMNS)] = ()
    sort: Text = ""
    by: Text = ""

    @model_validator(mode="after")
    def _charts_differ(self) -> Exploration:
        streams = [chart.stream for chart in self.charts]
        if len(set(streams)) < len(streams):
            raise ValueError("two charts draw the same")
        return self

    def text(self) -> str:
        """Return the file."""
        return self.model_dump_json(indent=1) + "\n"


def exploration_of(text: str | bytes) -> Exploration:
    """Read a file that `Exploration.text` gave.

    Raises:
        ExplorationError: if it is none, or of a version that this one does not know.
    """
    if len(text) > LARGEST_BYTES:
        raise ExplorationError(f"the file is larger than {LARGEST_BYTES >> 20} MiB", HINT)
    try:
        return Exploration.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ExplorationError(f"this is no exploration: {place}: {first['msg']}", HINT) from error
