"""Pictures of both doors of `dippm ui` for the documentation, taken in headless Chromium.

    python -m scripts.page_pictures [--into docs/tracking] [--predict-into docs] [--all FOLDER]

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
    from dippm.show.ui.serving import ServedPage

SHOTS = {
    "page-wide-light.png": (1280, 620, "light"),
    "page-wide-dark.png": (1280, 620, "dark"),
    "page-narrow-light.png": (390, 900, "light"),
    "page-narrow-dark.png": (390, 900, "dark"),
}
KEPT = ("page-wide-light.png", "page-narrow-dark.png")
PREDICT_SHOTS = {
    "predict-wide-light.png": (1280, 1200, "light"),
    "predict-wide-dark.png": (1280, 1200, "dark"),
    "predict-narrow-light.png": (390, 900, "light"),
    "predict-narrow-dark.png": (390, 900, "dark"),
}
PREDICT_KEPT = ("predict-wide-light.png", "predict-narrow-dark.png")
MODEL = "timm:resnet50"
LARGEST_BYTES = 150 * 1024
STREAMS = {"tree.rss_mb": 9, "calls: forward": 9}
RUNS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("docs/tracking"))
    parser.add_argument("--predict-into", type=Path, default=Path("docs"))
    parser.add_argument("--all", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        names = tuple(PREDICT_SHOTS) if given.all else PREDICT_KEPT
        take_predict(Path(place), given.all or given.predict_into, names)
    with tempfile.TemporaryDirectory() as place:
        take(Path(place), given.all or given.into, tuple(SHOTS) if given.all else KEPT)


def take_predict(place: Path, into: Path, names: tuple[str, ...]) -> None:
    """Take pictures of the Predict door, one narrow and alone, one wide with two GPUs."""
    from dippm.show.ui.library import Library
    from dippm.show.ui.serving import ServedPage

    page = ServedPage(Library(str(place / "runs.db"), place / "spool"), "127.0.0.1", 0)
    answers = threading.Thread(target=page.answer)
    answers.start()
    try:
        with chromium(place) as tab:
            for name in names:
                width, height, scheme = PREDICT_SHOTS[name]
                tab.size(width, height, scheme=scheme)
                asked = {"name-a": MODEL, "device-a": "A100-40GB", "batch": 8}
                tab.open("about:blank")
                tab.open(f"{page.predict_shown}#{urlencode(asked)}")
                tab.wait("!!document.body && 'ready' in document.body.dataset")
                tab.click("#ask")
                tab.wait("document.querySelectorAll('.plot svg').length == 2")
                where = ".plot" if width < 760 else "header"
                tab.run(f"document.querySelector('{where}').closest('section, header')"
                        ".scrollIntoView()")  # fmt: skip
                tab.run("document.activeElement.blur()")
                save(tab, into / name, (width, height))
    finally:
        page.close()
        answers.join()


def take(place: Path, into: Path, names: tuple[str, ...]) -> None:
    """Take pictures of the page over the runs of an exhibition."""
    from dippm.runs.store.runs import open_store
    from dippm.show.ui.library import Library
    from dippm.show.ui.serving import ServedPage

    open_store(str(place / "runs.db"))  # creating its tables takes a while
    make_exhibition(place / "spool")
    library = Library(str(place / "runs.db"), place / "spool")
    library.start()
    page = ServedPage(library, "127.0.0.1", 0)
    threading.Thread(target=page.answer, daemon=True).start()
    with chromium(place) as tab:
        for name in names:
            width, height, scheme = SHOTS[name]
            tab.size(width, height, scheme=scheme)
            prepare(tab, page, library)
            tab.run("document.querySelector('#place').style.visibility = 'hidden'")
            save(tab, into / name, (width, height))
    page.close()
    library.close()


def save(tab: Chromium, path: Path, size: tuple[int, int]) -> None:
    """Save a picture with few colours, to keep it small."""
    tab.picture(path)
    Image.open(path).quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
    count = path.stat().st_size
    print(f"{path}: {size[0]} × {size[1]}, {count:,} bytes")
    if count > LARGEST_BYTES:
        raise SystemExit(f"{path} is larger than {LARGEST_BYTES:,} bytes")


def prepare(tab: Chromium, page: ServedPage, library: Library) -> None:
    """Show workloads as mean and range next to their prediction, through the page's address."""
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
