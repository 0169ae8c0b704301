"""`Served`: the page at an address, until it is closed."""

from __future__ import annotations

import logging
import secrets
from typing import Any
from urllib.parse import quote

from dippm.errors import DippmError
from dippm.ui.gate import Gate, is_loopback
from dippm.ui.library import Library

TOKEN_VARIABLE = "DIPPM_UI_TOKEN"


class PageError(DippmError):
    """The page cannot be served."""


class PageNotInstalledError(PageError, ImportError):
    """The libraries of the page are missing."""


class Served:
    """A page that answers.

    Attributes:
        address: to open, with the token if one is needed.
        shown: the same without it.
    """

    def __init__(self, library: Library, host: str, port: int, token: str = "") -> None:
        """Take the address; `answer` begins.

        Args:
            library: what it shows.
            host: a name or address of this machine.
            port: 0 for any that is free.
            token: for a host that others reach; made if there is none.

        Raises:
            PageError: if the address cannot be taken; `PageNotInstalledError` without Dash.
            TokenError: if the token could be guessed.
        """
        try:
            from werkzeug.serving import make_server

            from dippm.ui.page.app import application
        except ImportError as error:
            raise PageNotInstalledError(
                f"the page needs {error.name}", "Install it: pip install 'dippm[ui]'."
            ) from error
        needed = not is_loopback(host)
        gate = Gate((token or secrets.token_urlsafe(32)) if needed or token else "")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        try:
            self._server: Any = make_server(host, port, application(library, gate), threaded=True)
        except (OSError, SystemExit) as error:  # it ends the program if the port is taken
            reason = getattr(error, "strerror", None) or "the port is taken"
            raise PageError(
                f"cannot serve at {host}:{port}: {reason}", "Choose another port: port=0."
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.shown = f"http://{name}:{self._server.server_port}/"
        self.address = self.shown + (f"?token={quote(gate.token)}" if gate.token else "")

    def answer(self) -> None:
        """Answer visitors until `close`."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop; may be called from another thread."""
        self._server.shutdown()
