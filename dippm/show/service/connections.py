"""`ServiceListener`: uvicorn with limits on the number and slowness of connections.

Like `dippm/show/ui/connections.py` of the page: the head of a request has to arrive within a time
limit, a client that does not read its response is disconnected, and at the limit of connections the
one that has been idle longest is closed. The application limits the time of the body.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dippm.show.service.metrics import log

MAX_CONNECTIONS = 512
HEADER_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 60
LARGEST_HEADER_BYTES = 32 << 10
CLOSE_S = 5


class CertificateError(Exception):
    """A certificate, or its key, cannot be used."""


class ServiceConnection(H11Protocol):
    """A client's connection, with the start of its wait."""

    most = MAX_CONNECTIONS

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.since = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None

    @property
    def is_asking(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, and close an idle one if there are too many."""
        super().connection_made(transport)
        # asyncio sets TCP_NODELAY only on sockets of its own; without it head and body of a
        # response wait 40 ms for each other's acknowledgement.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait()
        if len(self.connections) > self.most:
            waiting = [
                c for c in self.connections if isinstance(c, ServiceConnection) and not c.is_asking
            ]
            min(waiting, key=lambda c: (c.cycle is not None, c.since)).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        if not self.is_asking and self._timer is None:
            self._wait()
        super().data_received(data)
        if self.is_asking and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """Start the time limit of a client that does not read."""
        super().pause_writing()
        self._reading = self.loop.call_later(READ_TIMEOUT_S, self.drop)

    def resume_writing(self) -> None:
        """Stop the time limit."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def drop(self) -> None:
        """End the connection at once."""
        self._stop_timers()
        self.connections.discard(self)  # before connection_lost: many may arrive at once
        self.transport.abort()

    def _wait(self) -> None:
        self.since = time.monotonic()
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self.drop)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._reading):
            if timer is not None:
                timer.cancel()
        self._timer = self._reading = None


class ServiceListener:
    """An HTTP server at an address.

    Attributes:
        port: port that it listens on.
    """

    def __init__(
        self,
        application: Any,
        host: str,
        port: int,
        *,
        certificate: str | None = None,
        key: str | None = None,
    ) -> None:
        """Bind the address; clients wait until `answer`.

        Raises:
            OSError: if the address cannot be taken.
            CertificateError: if the certificate or its key cannot be used.
        """
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            application,
            http=ServiceConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=IDLE_TIMEOUT_S,
            timeout_graceful_shutdown=CLOSE_S,
            h11_max_incomplete_event_size=LARGEST_HEADER_BYTES,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except OSError as error:
            self._socket.close()
            raise CertificateError(str(error)) from error
        self._server = uvicorn.Server(config)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    def answer(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `close`, SIGINT or SIGTERM."""
        log("listening", port=self.port)
        ready()
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Stop; may be called from another thread."""
        self._server.should_exit = True
