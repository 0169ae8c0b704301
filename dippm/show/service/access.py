"""`Access`: access rules of the page and of the service.

On this machine alone (loopback) no token is needed, but a request has to name this machine: a
page elsewhere whose name resolves to 127.0.0.1 (DNS rebinding) is refused. On any other address
each request needs the token, as a bearer token or by the cookie that the page sets. Cross-site
requests of a browser are refused in either case.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from dippm.errors import DippmError

COOKIE = "dippm-token"
SHORTEST_TOKEN = 16
TOKEN_VARIABLE = "DIPPM_TOKEN"
OTHER_SITE = "requests from other sites are not allowed"
OTHER_MACHINE = "only requests from this machine are allowed"


class TokenError(DippmError, ValueError):
    """A token is too weak."""


class Access:
    """Decides which requests are allowed.

    Attributes:
        token: the secret; "" on this machine alone.
    """

    def __init__(self, token: str = "") -> None:
        """Take a token.

        Raises:
            TokenError: if it could be guessed.
        """
        if token and (len(token) < SHORTEST_TOKEN or not token.isascii()):
            raise TokenError(
                f"the token has to have {SHORTEST_TOKEN} plain characters at least",
                "Make one: python -c 'import secrets; print(secrets.token_urlsafe())'.",
            )
        self.token = token

    def forbids(self, host: str, origin: str | None) -> str | None:
        """Return why a request is refused regardless of its token; None if it is not.

        Args:
            host: `Host` header, with the port.
            origin: `Origin` header of a browser; None without one.
        """
        if origin is not None and split_address(origin).netloc != host:
            return OTHER_SITE
        if not self.token and not is_loopback(split_address(f"//{host}").hostname or ""):
            return OTHER_MACHINE
        return None

    def lets_in(self, authorization: str, *tokens: str) -> bool:
        """Return whether a request carries the token; without a token all are allowed.

        Args:
            authorization: `Authorization` header; "" without one.
            tokens: tokens from cookies.
        """
        given: Iterable[str] = (bearer(authorization), *tokens)
        return not self.token or any(map(self.knows, given))

    def knows(self, given: str) -> bool:
        """Return whether a token is correct, by a constant-time comparison."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or name."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> SplitResult:
    """Return the parts of a URL; all of them are empty if it is not valid."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def bearer(authorization: str) -> str:
    """Return the token of an `Authorization` header; "" without one."""
    kind, _, given = authorization.partition(" ")
    return given.strip() if kind.casefold() == "bearer" else ""
