"""`dippm serve` and `dippm ui`: answers over HTTP, to programs and on a page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_warnings, say
from dippm.cli.runs import Store

Host = Annotated[
    str,
    typer.Option("--host", help="Address to listen on; a token is required unless it is local."),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free port.")]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8060,
    root: Annotated[
        list[Path] | None,
        typer.Option(
            "--root", help="Folder whose model files clients may name by path; may be repeated."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Number of worker processes.")
    ] = 2,
    upload_mb: Annotated[
        int,
        typer.Option("--upload-mb", min=1, help="Maximum size of an uploaded model file in MiB."),
    ] = 512,
    uploads_mb: Annotated[
        int, typer.Option("--uploads-mb", min=1, help="Maximum size of all current uploads in MiB.")
    ] = 4096,
    kept_mb: Annotated[
        int,
        typer.Option(
            "--kept-mb", min=0, help="Maximum size of model files that clients store here, in MiB."
        ),
    ] = 1024,
    results_mb: Annotated[
        int,
        typer.Option("--results-mb", min=0, help="Size of the result cache in MiB; 0: no cache."),
    ] = 128,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="Time limit of a conversion in s.")
    ] = 120.0,
    memory_limit_mb: options.MemoryLimit = 4096,
    answer_s: Annotated[
        float, typer.Option("--answer-s", help="Time limit of an answer in s.")
    ] = 600.0,
    queue: Annotated[
        int, typer.Option("--queue", min=1, help="Maximum number of waiting requests.")
    ] = 256,
    queue_of_client: Annotated[
        int,
        typer.Option(
            "--queue-of-client", min=1, help="Maximum number of waiting requests of one client."
        ),
    ] = 64,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Folder for uploads. Default: a temporary folder."),
    ] = None,
    webhook: Annotated[
        str,
        typer.Option(
            "--webhook",
            help="Kubernetes admission webhook: open (admits pods that get no answer), closed "
            "(rejects them) or off.",
        ),
    ] = "off",
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="TLS certificate of the server, PEM.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Private key of the certificate, PEM.")
    ] = None,
) -> None:
    """Serve predictions over HTTP: predict, compare, choose, slice, fit and request.

    Clients on other machines need a token: $DIPPM_TOKEN, else one is generated and printed. The log
    is JSON lines on stderr; GET /openapi.json returns the OpenAPI description.
    """
    with errors_reported(as_json=False):
        from dippm.show.service.access import TOKEN_VARIABLE
        from dippm.show.service.serving import UNENCRYPTED, ServedService
        from dippm.show.service.settings import Settings

        settings = Settings(
            roots=tuple(root or ()),
            workers=workers,
            upload_mb=upload_mb,
            uploads_mb=uploads_mb,
            kept_mb=kept_mb,
            results_mb=results_mb,
            timeout_s=timeout_s,
            memory_limit_mb=memory_limit_mb,
            answer_s=answer_s,
            queue=queue,
            queue_of_client=queue_of_client,
            folder=folder,
            webhook=webhook,
        )
        token = os.environ.get(TOKEN_VARIABLE, "")
        served = ServedService(settings, host, port, token=token, certificate=certificate, key=key)
        if served.is_shared and not served.is_encrypted:
            print_warnings([UNENCRYPTED])
        say(f"answers at {served.address}")
        if served.token and not token:
            say(f"token {served.token}")
        sys.stdout.flush()
        served.answer()


def ui(
    store: Store = None,
    host: Host = "127.0.0.1",
    port: Port = 8050,
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
