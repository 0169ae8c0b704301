"""`PageListener`: waitress with limits on the number and slowness of connections.

waitress limits the time since the last byte, so a client that sends a byte now and then keeps its
connection for ever. Here each request has to arrive within a time limit, and at the limit of
connections the one that has been idle longest is closed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import Any

from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel

LARGEST_REQUEST_BYTES = 8 * 2**20
"""Largest request: a selection file of 4 MiB as base64, with the names of the selected runs."""
LARGEST_HEADER_BYTES = 32 * 2**10
THREADS = 32
MAX_CONNECTIONS = 200
HEADER_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0
LOOK_EVERY_S = 1.0


class PageConnection(HTTPChannel):  # type: ignore[misc]
    """A client's connection, with the start of its wait.

    Attributes:
        since: start of the incoming request, or end of the last response, in s of the monotonic
            clock.
        has_asked: whether a complete request ever arrived.
    """

    def __init__(self, *arguments: Any, **given: Any) -> None:
        """Take the socket of a new client."""
        self.since = time.monotonic()
        self.has_asked = False
        super().__init__(*arguments, **given)

    def received(self, data: bytes) -> bool:
        """Process received data."""
        if self.request is None:
            self.since = time.monotonic()
        taken: bool = super().received(data)
        self.has_asked = self.has_asked or bool(self.requests)
        return taken

    def service(self) -> None:
        """Answer the first request."""
        super().service()
        self.since = time.monotonic()

    def is_overdue(self) -> bool:
        """Return whether a client exceeds the time limit for a request, a pause, or reading."""
        if self.total_outbufs_len:  # waitress notes the time of its last send, by the other clock
            idle_s: float = time.time() - self.last_activity
            return idle_s > READ_TIMEOUT_S
        if self.requests:
            return False
        if self.request is not None and self.request.headers_finished:
            limit_s = REQUEST_TIMEOUT_S
        elif self.request is None and self.has_asked:
            limit_s = IDLE_TIMEOUT_S
        else:
            limit_s = HEADER_TIMEOUT_S
        return time.monotonic() - self.since > limit_s


class PageListener:
    """An HTTP server at an address.

    Attributes:
        port: port that it listens on.
    """

    def __init__(
        self, application: Any, host: str, port: int, *, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        """Bind the address; clients wait until `answer`.

        Args:
            application: WSGI application.
            host: name or address of this machine; "" for all addresses.
            port: port; 0 for any free one.
            max_connections: largest number of open connections.

        Raises:
            OSError: if the address cannot be bound.
            ValueError: if the address is not valid.
        """
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        logging.getLogger("waitress").setLevel(logging.CRITICAL)
        self._max_connections = max_connections
        self._map: dict[int, Any] = {}
        self._ended = threading.Event()
        self._server = create_server(
            application,
            map=self._map,
            sockets=[socket.create_server(address[:2], family=family)],
            threads=THREADS,
            connection_limit=max_connections + 16,  # accepts no more: all others are being answered
            max_request_body_size=LARGEST_REQUEST_BYTES,
            max_request_header_size=LARGEST_HEADER_BYTES,
            ident="",
            log_socket_errors=False,
            # A proxy states the scheme of the request, so that cookies stay on it; nothing else
            # that it states is trusted.
            trusted_proxy="*",
            trusted_proxy_headers={"x-forwarded-proto"},
        )
        self._server.channel_class = PageConnection
        self.port = int(self._server.effective_port)

    def answer(self) -> None:
        """Serve until `close`."""
        try:
            while not self._ended.is_set():
                wasyncore.loop(LOOK_EVERY_S, use_poll=True, map=self._map, count=1)
                self._close_overdue()
        finally:
            self._server.task_dispatcher.shutdown(timeout=1)
            wasyncore.close_all(self._map, ignore_all=True)

    def close(self) -> None:
        """Stop; may be called from another thread."""
        self._ended.set()
        with contextlib.suppress(OSError):  # it has ended already
            self._server.pull_trigger()

    def _close_overdue(self) -> None:
        waiting = []
        for connection in list(self._server.active_channels.values()):
            if connection.is_overdue():
                connection.handle_close()
            elif not connection.requests:
                waiting.append(connection)
        surplus = len(self._server.active_channels) - self._max_connections
        if surplus > 0:
            waiting.sort(key=lambda visitor: (visitor.has_asked, visitor.since))
            for connection in waiting[:surplus]:
                connection.handle_close()
