"""`Served`: the page at an address, until it is closed."""

from __future__ import annotations

import secrets
from urllib.parse import quote

from dippm.base.printable import printable
from dippm.errors import DippmError
from dippm.show.ui.gate import Gate, is_loopback
from dippm.show.ui.library import Library

TOKEN_VARIABLE = "DIPPM_UI_TOKEN"
UNENCRYPTED = (
    "the page is served without encryption: whoever listens to the network reads the token and "
    "what the page shows. Serve it to this machine alone with a proxy with TLS before it, or reach "
    "it through ssh: docs/tracking/page.md, “Who may see it”"
)
"""What a page that other machines reach has to say."""


class PageError(DippmError):
    """The page cannot be served."""


class PageNotInstalledError(PageError, ImportError):
    """The libraries of the page are missing."""


class Served:
    """A page that answers.

    Attributes:
        address: to open, with the token if one is needed.
        shown: the same without it.
        predict_address: the same of the Predict door.
        predict_shown: that without the token.
        is_shared: whether other machines reach it.
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
            from dippm.show.ui.connections import Listener
            from dippm.show.ui.page.app import application
            from dippm.show.ui.predicting import Predicting
        except ImportError as error:
            raise PageNotInstalledError(
                f"the page needs {error.name}", "Install it: pip install 'dippm[ui]'."
            ) from error
        self.is_shared = not is_loopback(host)
        gate = Gate((token or secrets.token_urlsafe(32)) if self.is_shared or token else "")
        try:
            self._predicting = Predicting()
            page = application(library, gate, self._predicting)
            self._listener = Listener(page, host, port)
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "this is no address"
            raise PageError(
                f"cannot serve at {printable(host)}:{port}: {reason}",
                "Choose another port: port=0; or another host: 127.0.0.1.",
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.shown = f"http://{name}:{self._listener.port}/"
        token = f"?token={quote(gate.token)}" if gate.token else ""
        self.address = self.shown + token
        self.predict_shown = f"{self.shown}predict"
        self.predict_address = self.predict_shown + token

    def answer(self) -> None:
        """Answer visitors until `close`; then end what answers the Predict door."""
        try:
            self._listener.answer()
        finally:
            self._predicting.close()

    def close(self) -> None:
        """Stop; may be called from another thread."""
        self._listener.close()
