"""`dippm serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dippm.cli.output import errors_reported, print_warnings, say


def serve(
    host: Annotated[
        str,
        typer.Option("--host", help="Address to serve at; any but this machine's needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any that is free.")
    ] = 8060,
    root: Annotated[
        list[Path] | None,
        typer.Option("--root", help="Folder whose models may be named by path; several times."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that answer.")
    ] = 2,
    upload_mb: Annotated[
        int, typer.Option("--upload-mb", min=1, help="Most MB of one model file.")
    ] = 512,
    uploads_mb: Annotated[
        int, typer.Option("--uploads-mb", min=1, help="Most MB of all that are here.")
    ] = 4096,
    kept_mb: Annotated[
        int, typer.Option("--kept-mb", min=0, help="Most MB of models that clients keep here.")
    ] = 1024,
    results_mb: Annotated[
        int, typer.Option("--results-mb", min=0, help="MB of answers to keep; 0 keeps none.")
    ] = 128,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="Seconds that a conversion may take.")
    ] = 120.0,
    memory_limit_mb: Annotated[
        int, typer.Option("--memory-limit-mb", help="Memory in MB that a conversion may use.")
    ] = 4096,
    answer_s: Annotated[
        float, typer.Option("--answer-s", help="Seconds after which any answer is given up.")
    ] = 600.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Questions that wait.")] = 256,
    queue_of_client: Annotated[
        int, typer.Option("--queue-of-client", min=1, help="Of one client.")
    ] = 64,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where uploads lie; else a temporary folder.")
    ] = None,
    webhook: Annotated[
        str,
        typer.Option(
            "--webhook",
            help="Admission webhook of Kubernetes: open lets a pod without an answer pass, closed "
            "refuses it.",
        ),
    ] = "off",
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Of the server, PEM; for TLS.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Of the certificate, PEM.")] = None,
) -> None:
    """Answer questions over HTTP: predict, compare, choose, slice, fit, request.

    The token of a service that others reach is that of $DIPPM_TOKEN, else it is made and printed.
    A line of JSON on stderr says what happens; GET /openapi.json says what may be asked.
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
