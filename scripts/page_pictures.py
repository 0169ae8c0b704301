"""Pictures of the page of runs for the documentation, taken in headless Chromium.

    python -m scripts.page_pictures [--into docs/tracking] [--all FOLDER]

`--all` takes both widths in both schemes, to look at.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from PIL import Image

from tests.chromium import Chromium, chromium
from tests.page_runs import make_exhibition

if TYPE_CHECKING:
    from dippm.show.ui.library import Library
    from dippm.show.ui.serving import Served

SHOTS = {
    "page-wide-light.png": (1280, 620, "light"),
    "page-wide-dark.png": (1280, 620, "dark"),
    "page-narrow-light.png": (390, 900, "light"),
    "page-narrow-dark.png": (390, 900, "dark"),
}
KEPT = ("page-wide-light.png", "page-narrow-dark.png")
LARGEST_BYTES = 150 * 1024
STREAMS = {"tree.rss_mb": 9, "calls: forward": 9}
RUNS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("docs/tracking"))
    parser.add_argument("--all", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        take(Path(place), given.all or given.into, tuple(SHOTS) if given.all else KEPT)


def take(place: Path, into: Path, names: tuple[str, ...]) -> None:
    """Take pictures of the page over the runs of an exhibition."""
    from dippm.runs.store.runs import open_store
    from dippm.show.ui.library import Library
    from dippm.show.ui.serving import Served

    open_store(str(place / "runs.db"))  # its tables take a while
    make_exhibition(place / "spool")
    library = Library(str(place / "runs.db"), place / "spool")
    library.start()
    page = Served(library, "127.0.0.1", 0)
    threading.Thread(target=page.answer, daemon=True).start()
    with chromium(place) as tab:
        for name in names:
            width, height, scheme = SHOTS[name]
            tab.size(width, height, scheme=scheme)
            prepare(tab, page, library)
            tab.run("document.querySelector('#place').style.visibility = 'hidden'")
            path = tab.picture(into / name)
            Image.open(path).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
            size = path.stat().st_size
            print(f"{path}: {width} × {height}, {size:,} bytes")
            if size > LARGEST_BYTES:
                raise SystemExit(f"{path} is larger than {LARGEST_BYTES:,} bytes")
    page.close()
    library.close()


def prepare(tab: Chromium, page: Served, library: Library) -> None:
    """Draw workloads as mean and range beside their prediction, by an address that says so."""
    while len(runs := [o.uuid for o in library.runs() if o.experiment == "co-location"]) < RUNS:
        library.wait(library.version, 60)
    asked = {"view": "charts", "runs": ",".join(runs), "lines": "merged", "stream": list(STREAMS)}
    tab.open("about:blank")
    tab.open(f"{page.address}#{urlencode(asked, doseq=True)}")
    for stream, traces in STREAMS.items():
        tab.wait(
            f"[...document.querySelectorAll('.chart')].some(card => "
            f"card.getAttribute('aria-label') === '{stream}' && "
            f"card.querySelectorAll('.scatterlayer .trace').length == {traces})"
        )
    tab.wait("!document.querySelector('.note .wait')")
    tab.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


if __name__ == "__main__":
    main()
