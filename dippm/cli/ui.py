"""`dippm ui`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from dippm.cli.output import errors_reported, print_warnings, say
from dippm.cli.runs import Store


def ui(
    store: Store = None,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to serve at; any but this machine's needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any that is free.")
    ] = 8050,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Open a page with two doors: Predict takes a model file, Runs shows what was tracked.

    Predict answers with charts, two models or GPUs side by side. Runs are compared, smoothed and
    zoomed beside what was predicted. Nothing leaves the machine.

    The token of a page that others reach is that of $DIPPM_UI_TOKEN, or of $DIPPM_TOKEN as that of
    `dippm serve`, else it is made and printed.
    """
    with errors_reported(as_json=False):
        from dippm.show.service import access
        from dippm.show.ui.library import Library
        from dippm.show.ui.serving import TOKEN_VARIABLE, UNENCRYPTED, ServedPage

        library = Library(store)
        token = os.environ.get(TOKEN_VARIABLE) or os.environ.get(access.TOKEN_VARIABLE, "")
        served = ServedPage(library, host, port, token)
        library.start()
        if served.is_shared:
            print_warnings([UNENCRYPTED])
        say(f"runs at {served.address}")
        say(f"predict at {served.predict_address}")
        sys.stdout.flush()
        if browser:
            typer.launch(served.predict_shown)  # others could see a token on a command line
        try:
            served.answer()
        finally:
            library.close()
