"""`ChartSelection`: the settings of the page, as a file that others can load."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dippm.errors import DippmError
from dippm.show.ui.lines import STRONGEST, Alignment

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
    """A file does not hold settings of the page."""


class _SavedPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ChartView(_SavedPart):
    """One chart.

    Attributes:
        stream: key of its stream, see `dippm.show.ui.streams`.
        log: whether its y axis is logarithmic.
        x: visible range of the x axis in s; None for all.
        y: visible range of the y axis in its unit (exponents on a logarithmic axis); None for all.
    """

    stream: Text
    log: bool = False
    x: Range | None = None
    y: Range | None = None


class ChartSelection(_SavedPart):
    """The settings of the page.

    Attributes:
        kind: kind of the file.
        version: version of its format.
        runs: uuids of the selected runs, in the order of selection.
        hidden: labels of hidden lines: uuids, or a JSON list of experiment and workload for merged
            lines.
        charts: charts from top to bottom.
        smoothing: smoothing in percent.
        alignment: alignment of the x axis if it is time.
        axis: kind of x axis: time, or the step that a run reported with its values.
        grouping: separate runs, or workloads as mean and range.
        rates: whether counters are drawn as rates.
        spans: whether spans are drawn behind the streams.
        prediction: whether predictions are drawn with the measurements.
        search: search words.
        status: status of the listed runs; "" for all.
        condition: condition on metrics of the listed runs.
        experiments: listed experiments; empty for all.
        workloads: listed workloads as (experiment, name); empty for all.
        columns: columns of the table, see `dippm.show.ui.table`; empty for the defaults.
        sort: column that the table is sorted by, with "-" before it for descending order.
        by: column that groups the runs of the table; "" for none.
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
    def _charts_differ(self) -> ChartSelection:
        streams = [chart.stream for chart in self.charts]
        if len(set(streams)) < len(streams):
            raise ValueError("two charts draw the same")
        return self

    def text(self) -> str:
        """Return the content of the file."""
        return self.model_dump_json(indent=1) + "\n"


def exploration_of(text: str | bytes) -> ChartSelection:
    """Read a file that `ChartSelection.text` wrote.

    Raises:
        ExplorationError: if it is not such a file, or of an unknown version.
    """
    if len(text) > LARGEST_BYTES:
        raise ExplorationError(f"the file is larger than {LARGEST_BYTES >> 20} MiB", HINT)
    try:
        return ChartSelection.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ExplorationError(f"this is no exploration: {place}: {first['msg']}", HINT) from error
