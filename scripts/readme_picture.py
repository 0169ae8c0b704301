"""The README's picture: memory of a model over batch sizes, and capacities of GPU slices.

Plain SVG for repository viewers: without scripts and fonts, one version for light and one for dark
pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

from dippm.decide.batch_sweep import BatchSweep

WIDTH, HEIGHT = 560, 430
LEFT, RIGHT, TOP, BOTTOM = 70, 390, 70, 372
"""Edges of the plot area; the names of the slices are to the right of it."""
TICKS_MB = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000)
LINE_HEIGHT = 20

PALETTES: Mapping[str, Mapping[str, str]] = {
    "light": {"ink": "#1f2328", "quiet": "#59636e", "line": "#c4ccd4", "mark": "#0969da"},
    "dark": {"ink": "#f0f6fc", "quiet": "#9da7b3", "line": "#4c545d", "mark": "#58a6ff"},
}
"""Palettes with a text contrast of at least 4.5 on white and on near black."""


def picture(sweep: BatchSweep, palette: Mapping[str, str]) -> str:
    """Return the SVG of a sweep whose memory is predicted.

    Args:
        sweep: sweep over at least two batches, on a GPU with slices.
        palette: one of `PALETTES`.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="16">',
            f"<title>{escape(caption(sweep))}</title>",
            f'<clipPath id="inside"><path d="M{LEFT} {TOP}H{RIGHT}V{BOTTOM}H{LEFT}Z"/></clipPath>',
            *_parts(sweep, palette),
            "</svg>\n",
        ]
    )


def caption(sweep: BatchSweep) -> str:
    """Return a description of the picture."""
    held = (
        f"{place.name} to batch {place.largest_batch}"
        if place.largest_batch
        else f"{place.name} none"
        for place in sweep.places
    )
    return f"Memory of {sweep.title} over batch sizes. At 99 %: {', '.join(held)}."


def _parts(sweep: BatchSweep, palette: Mapping[str, str]) -> Iterator[str]:
    rows = sweep.rows()
    first, last = rows[0], rows[-1]
    lowest = 0.9 * first["memory_mb_low"]
    highest = 1.2 * max(place.memory_mb for place in sweep.places)

    def x(batch: float) -> float:
        share = math.log(batch / first["batch"]) / math.log(last["batch"] / first["batch"])
        return LEFT + share * (RIGHT - LEFT)

    def y(memory_mb: float) -> float:
        share = math.log(memory_mb / lowest) / math.log(highest / lowest)
        return BOTTOM - share * (BOTTOM - TOP)

    def text(words: str, x: float, y: float, colour: str = "quiet", more: str = "") -> str:
        return (
            f'<text x="{x:.0f}" y="{y:.0f}" fill="{palette[colour]}"{more}>{escape(words)}</text>'
        )

    def curve(column: str, more: str, back: str = "") -> str:
        points = [f"{x(row['batch']):.1f} {y(row[column]):.1f}" for row in rows]
        points += [f"{x(row['batch']):.1f} {y(row[back]):.1f}" for row in reversed(rows) if back]
        return f'<path d="M{"L".join(points)}" clip-path="url(#inside)" {more}/>'

    line, mark = palette["line"], palette["mark"]
    yield text(sweep.title, 8, 22, "ink", ' font-weight="600"')
    yield text("memory MB: predicted, its 90 % interval, its 99 % bound (dashed)", 8, 46)
    for row in rows[:: 1 if len(rows) < 9 else 2]:
        yield text(f"{row['batch']:,}", x(row["batch"]), BOTTOM + 22, more=' text-anchor="middle"')
    yield text("batch", (LEFT + RIGHT) / 2, BOTTOM + 46, more=' text-anchor="middle"')
    for memory_mb in TICKS_MB:
        if lowest < memory_mb < highest:
            yield text(f"{memory_mb:,}", LEFT - 8, y(memory_mb) + 5, more=' text-anchor="end"')
    yield f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="{line}"/>'
    fill = f'fill="{mark}" fill-opacity="0.2"'
    yield curve("memory_mb_low", fill, back="memory_mb_high")
    yield curve("memory_mb", f'fill="none" stroke="{mark}" stroke-width="2.5"')
    yield curve("memory_bound_mb", f'fill="none" stroke="{mark}" stroke-dasharray="5 4"')
    above = math.inf
    for memory_mb in sorted({place.memory_mb for place in sweep.places}):
        places = [place for place in sweep.places if place.memory_mb == memory_mb]
        level, largest = y(memory_mb), places[0].largest_batch
        above = min(level, above - LINE_HEIGHT)
        path = f"M{LEFT} {level:.1f}H{RIGHT}L{RIGHT + 10} {above:.1f}"
        yield f'<path d="{path}" fill="none" stroke="{line}"/>'
        yield text(", ".join(p.name for p in places), RIGHT + 14, above + 5, "ink")
        if largest:
            yield f'<circle cx="{x(largest):.1f}" cy="{level:.1f}" r="4.5" fill="{mark}"/>'
        if largest and above == level:
            yield text(f"{largest}", x(largest) - 9, level - 8, "ink", ' text-anchor="end"')
