"""`ServedPage`: the page at an address."""

from __future__ import annotations

import secrets
from urllib.parse import quote

from dippm.base.printable import printable
from dippm.errors import DippmError
from dippm.show.ui.authentication import PageAuthentication, is_loopback
from dippm.show.ui.library import Library

TOKEN_VARIABLE = "DIPPM_UI_TOKEN"
UNENCRYPTED = (
    "the page is served without encryption: anyone on the network can read the token and what the "
    "page shows. Serve it to this machine only, behind a proxy with TLS, or reach it through ssh: "
    "docs/tracking/page.md, “Who may see it”"
)
"""Warning of a page that other machines reach."""


class PageError(DippmError):
    """The page cannot be served."""


class PageNotInstalledError(PageError, ImportError):
    """The libraries of the page are missing."""


class ServedPage:
    """A running page.

    Attributes:
        address: URL to open, with the token if one is needed.
        shown: URL without the token.
        predict_address: URL of the Predict page, with the token if one is needed.
        predict_shown: URL of the Predict page without the token.
        is_shared: whether other machines can reach it.
    """

    def __init__(self, library: Library, host: str, port: int, token: str = "") -> None:
        """Bind the address; `answer` starts to serve.

        Args:
            library: the runs.
            host: name or address of this machine.
            port: port; 0 for any free one.
            token: token for a shared host; generated if empty.

        Raises:
            PageError: if the address cannot be bound; `PageNotInstalledError` without Dash.
            TokenError: if the token could be guessed.
        """
        try:
            from dippm.show.ui.connections import PageListener
            from dippm.show.ui.page.app import application
            from dippm.show.ui.predicting import PredictSessions
        except ImportError as error:
            raise PageNotInstalledError(
                f"the page needs {error.name}", "Install it: pip install 'dippm[ui]'."
            ) from error
        self.is_shared = not is_loopback(host)
        authentication = PageAuthentication(
            (token or secrets.token_urlsafe(32)) if self.is_shared or token else ""
        )
        try:
            self._predicting = PredictSessions()
            page = application(library, authentication, self._predicting)
            self._listener = PageListener(page, host, port)
        except (OSError, ValueError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "this is no address"
            raise PageError(
                f"cannot serve at {printable(host)}:{port}: {reason}",
                "Choose another port: port=0; or another host: 127.0.0.1.",
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.shown = f"http://{name}:{self._listener.port}/"
        token = f"?token={quote(authentication.token)}" if authentication.token else ""
        self.address = self.shown + token
        self.predict_shown = f"{self.shown}predict"
        self.predict_address = self.predict_shown + token

    def answer(self) -> None:
        """Serve until `close`; then end the sessions of the Predict page."""
        try:
            self._listener.answer()
        finally:
            self._predicting.close()

    def close(self) -> None:
        """Stop; may be called from another thread."""
        self._listener.close()
