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
        typer.Option(
            "--host", help="Address to listen on; a token is required unless it is local."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free port.")
    ] = 8050,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Open a web page with two parts: Predict takes a model file, Runs shows tracked runs.

    Predict shows charts, also of two models or GPUs side by side. Runs can be compared, smoothed,
    zoomed and checked against their predictions. No data leaves this machine.

    Clients on other machines need a token: $DIPPM_UI_TOKEN, else $DIPPM_TOKEN, else one is
    generated and printed.
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
