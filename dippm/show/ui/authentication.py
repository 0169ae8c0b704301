"""Authentication of every request to the page, and the policy of what a browser may do with it.

On this machine alone (loopback) no token is needed, but a request has to name this machine: a
page elsewhere whose name resolves to 127.0.0.1 (DNS rebinding) is refused. On any other address
each request needs the token, once by its form or address, then by a cookie that no script reads.
"""

from __future__ import annotations

from flask import Flask, Response, make_response, redirect, request

from dippm.show.service.access import COOKIE, Access, TokenError, is_loopback

FIELD = "token"
DOORS = ("/", "/predict")
__all__ = ["COOKIE", "PageAuthentication", "TokenError", "is_loopback"]
FORM = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>DIPPM</title>
<meta name="viewport" content="width=device-width"></head>
<body><form method="post" action="token"><label>Token, as <code>dippm ui</code> printed it:
<input type="password" name="token" autocomplete="current-password" autofocus></label>
<button name="door" value="{door}">Open</button></form></body></html>
"""


class PageAuthentication:
    """Checks the token of every request, and sets the security headers of the page.

    Attributes:
        token: the secret; "" on this machine alone.
    """

    def __init__(self, token: str = "") -> None:
        """Take a token.

        Raises:
            TokenError: if it could be guessed.
        """
        self._access = Access(token)
        self.token = token

    def protect(self, server: Flask, scripts: tuple[str, ...] = ()) -> None:
        """Check every request to a server.

        Args:
            server: server of the page.
            scripts: hashes of inline scripts, in the form of a content security policy.
        """
        policy = "; ".join(
            (
                "default-src 'self'",
                " ".join(("script-src 'self'", *scripts)),
                "style-src 'self' 'unsafe-inline'",  # plotly and React set styles of elements
                "img-src 'self' data: blob:",
                "connect-src 'self'",
                "object-src 'none'",
                "base-uri 'none'",
                "form-action 'self'",
                "frame-ancestors 'none'",
            )
        )
        server.before_request(self._authenticate)

        @server.after_request
        def _add_headers(response: Response) -> Response:
            response.headers["Content-Security-Policy"] = policy
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Referrer-Policy"] = "same-origin"
            response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
            if not request.path.startswith(("/_dash-component-suites/", "/assets/")):
                response.headers["Cache-Control"] = "no-store"
            return response

    def _authenticate(self) -> Response | None:
        """Return the response to a request that is not allowed; None if it is."""
        why = self._access.forbids(request.host, request.headers.get("Origin"))
        if why is not None:
            return _refusal(why, 403)
        authorization = request.headers.get("Authorization", "")
        if self._access.lets_in(authorization, request.cookies.get(COOKIE, "")):
            return None
        if request.path == "/token" and request.method == "POST":
            door = request.form.get("door", "/")
            return self._let_in(request.form.get(FIELD, ""), door if door in DOORS else "/")
        if request.path in DOORS and request.method == "GET" and FIELD in request.args:
            return self._let_in(request.args[FIELD], request.path)
        return _form()

    def _let_in(self, given: str, to: str = "/") -> Response:
        if not self._access.knows(given):
            return _form()
        response = make_response(redirect(to, 303))
        response.set_cookie(
            COOKIE, given, httponly=True, samesite="Strict", secure=request.is_secure
        )
        return response


def _refusal(reason: str, status: int) -> Response:
    return Response(f"{reason}\n", status, mimetype="text/plain")


def _form() -> Response:
    door = request.path if request.path in DOORS else "/"
    return Response(FORM.format(door=door), 401, mimetype="text/html")
