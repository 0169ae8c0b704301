r"""Formulas as MathML, which browsers render without scripts, fonts or network.

Pages write `$...$` and `$$...$$`, as repository viewers read them; the Markdown extension
"arithmatex" finds them and hands them on between `\(...\)` and `\[...\]`.
"""

from __future__ import annotations

import re
from html import unescape

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def render_formulas(html: str) -> str:
    """Return a page with its formulas as MathML."""
    return FORMULA.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    whole = match[1] == "div"
    text = unescape(match[2]).strip()
    drawn = convert(text[2:-2].strip(), display="block" if whole else "inline")
    return f'<div class="formula">{drawn}</div>' if whole else drawn
