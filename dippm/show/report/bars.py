"""`bars`: a bar chart of quantities with intervals and limits, in HTML without a script.

Bars scale with the window, and their values are printed as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

from dippm.base.number_format import show
from dippm.base.printable import printable
from dippm.estimate.models.targets import Interval

BLUE = "#3b6fb6"
COLOURS = (BLUE, "#e0a458", "#4c956c", "#8d99ae", "#a05195", "#d1495b", "#2f4b7c", "#b8b08d")
MOST_BARS = 60
MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """One quantity.

    Attributes:
        name: label of the bar.
        value: length of the bar; None draws no bar.
        said: text next to the bar.
        interval: interval whose ends are marked.
        limit: limit that a line marks.
        parts: (name, value) of the stacked parts of the bar, each in a colour of its own.
        muted: whether the bar is grey.
    """

    name: str
    value: float | None
    said: str = ""
    interval: Interval | None = None
    limit: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    muted: bool = False


def bars(title: str, rows: Sequence[Bar], *, limit: str = "") -> str:
    """Return the chart as markup.

    Args:
        title: title, with the unit.
        rows: bars from top to bottom; the first `MOST_BARS` are drawn.
        limit: name of the limits in the legend.
    """
    drawn = rows[:MOST_BARS]
    ends = [end for row in drawn for end in _ends(row)]
    if not ends or max(ends) <= 0:
        return ""
    step = round_step(max(ends) / MOST_TICKS)
    most = step * -(-max(ends) // step)
    colours = dict(zip(_parts(drawn), COLOURS * len(drawn), strict=False))
    body = "".join(_row(row, most, colours) for row in drawn)
    count = round(most / step)
    ticks = "".join(
        f'<span class="tick" style="left:{100 * n / count:.4g}%">{_tick(n * step)}</span>'
        for n in range(count + 1)
    )
    axis = f'<div class="row axis"><span class="name"></span><div class="track">{ticks}</div></div>'
    more = f"<p>and {len(rows) - MOST_BARS:,} more, see the table</p>" * (len(rows) > MOST_BARS)
    return (
        f'<figure class="bars"><figcaption>{escape(printable(title))}</figcaption>'
        f"{_legend(drawn, colours, limit)}{body}{axis}{more}</figure>"
    )


def _row(row: Bar, most: float, colours: dict[str, str]) -> str:
    inner, at = "", 0.0
    plain = "#8d99ae" if row.muted else BLUE
    for name, value in row.parts or (("", row.value or 0.0),):
        colour = colours.get(name, plain)
        inner += (
            f'<span class="part" title="{escape(printable(name))} {show(value)}" '
            f'style="left:{_percent(at, most)};width:{_percent(value, most)};'
            f'background:{colour}"></span>'
        )
        at += value
    if row.interval is not None:
        low, high = row.interval.low, row.interval.high
        inner += (
            f'<span class="between" title="{show(low)} – {show(high)}" '
            f'style="left:{_percent(low, most)};width:{_percent(high - low, most)}"></span>'
        )
    if row.limit is not None:
        inner += f'<span class="limit" style="left:{_percent(row.limit, most)}"></span>'
    return (
        f'<div class="row"><span class="name">{escape(printable(row.name))}</span>'
        f'<div class="track">{inner}</div>'
        f'<span class="said">{escape(printable(row.said))}</span></div>'
    )


def legend(colours: Mapping[str, str], *others: str) -> str:
    """Return names with their colours, and other entries as markup, in a line."""
    items = [
        f'<span><i style="background:{colour}"></i>{escape(printable(name))}</span>'
        for name, colour in colours.items()
    ]
    items += others
    return f'<p class="legend">{"".join(items)}</p>' if items else ""


def _legend(rows: Sequence[Bar], colours: Mapping[str, str], limit: str) -> str:
    others = []
    levels = sorted({row.interval.coverage for row in rows if row.interval})
    if levels:
        percents = ", ".join(f"{100 * level:g}" for level in levels)
        others.append(f"<span>⊢⊣ {percents} % interval</span>")
    if limit and any(row.limit is not None for row in rows):
        others.append(f'<span><i class="limit"></i>{escape(printable(limit))}</span>')
    return legend(colours, *others)


def _parts(rows: Sequence[Bar]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name, _ in row.parts))


def _ends(row: Bar) -> list[float]:
    found = [row.value, row.limit, row.interval.high if row.interval else None]
    found.append(sum(value for _, value in row.parts))
    return [end for end in found if end is not None and isfinite(end)]


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is at least a number."""
    power = 10.0 ** floor(log10(least))
    return next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= least * (1 - 1e-9))


def _tick(value: float) -> str:
    return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"


def _percent(value: float, most: float) -> str:
    return f"{100 * max(0.0, min(value, most)) / most:.4g}%"
