"""The applications of MAELSTROM: what D3.5 measured and what DIPPM predicts, as a table.

Run: python -m scripts.site.maelstrom     # write the table of docs/pipelines.md anew

D3.5 prints the energy in J; 55,502 J in 176.6 ms would be 314 kW, so it is read as mJ here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from scripts.site.links import ROOT

PAGE = ROOT / "docs" / "pipelines.md"
BETWEEN = re.compile(r"(<!-- maelstrom -->\n).*?(<!-- end of maelstrom -->)", re.DOTALL)
MEASURED: Mapping[str, tuple[float, float, float] | None] = {
    "AP1": (176.6, 40227, 55.502),
    "AP2": None,
    "AP3": (130.0, 2135, 13.296),
    "AP4": (4.9, 2823, 0.470),
    "AP5": (8.1, 2733, 1.278),
}
"""Latency in ms, memory in MB and energy in J of tables 5 to 8 of D3.5, on an A100-40GB."""
HEAD = (
    "| | D3.5: ms | MB | J | W | DIPPM: ms | 90 % interval | MB, at 99 % | J | W |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
)


def table() -> str:
    """Return the table in Markdown."""
    return HEAD + "".join(row(name) for name in MEASURED)


def row(name: str) -> str:
    """Return the row of an application; its power is the energy over the time."""
    import dippm
    from dippm.base.number_format import show

    file = ROOT / "examples" / "pipelines" / f"{name.lower()}.toml"
    found = dippm.pipeline(file, device="A100")
    said = MEASURED[name]
    theirs = ["–"] * 4
    if said is not None:
        latency_ms, memory_mb, energy_j = said
        theirs = [f"{latency_ms:g}", f"{memory_mb:,.0f}", f"{energy_j:g}"]
        theirs.append(f"{1e3 * energy_j / latency_ms:.0f}")
    interval = found.intervals["latency_ms"]
    assert found.memory_mb is not None
    assert found.memory_bound_mb is not None
    assert found.energy_j is not None
    assert found.power_w is not None
    ours = [
        show(found.latency_ms),
        f"{show(interval.low)} – {show(interval.high)}",
        f"{show(found.memory_mb)}, {show(found.memory_bound_mb)}",
        show(found.energy_j),
        f"{found.power_w:.0f}",
    ]
    return "| " + " | ".join([name, *theirs, *ours]) + " |\n"


def main() -> int:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    new = BETWEEN.sub(lambda match: match[1] + table() + match[2], text)
    if new != text:
        PAGE.write_text(new, encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)} written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
