"""`ServedService`: the service at an address."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.base.printable import printable
from dippm.show.service.access import Access, is_loopback
from dippm.show.service.errors import ServiceError, ServiceNotInstalledError

if TYPE_CHECKING:
    from dippm.show.service.settings import Settings

UNENCRYPTED = (
    "questions, models and the token are sent without encryption: anyone on the network can read "
    "them. Give certificate=... and key=..., or serve to this machine only, behind a proxy"
)
"""Warning of a service that other machines reach without TLS."""


class ServedService:
    """A running service.

    Attributes:
        address: URL of the service.
        token: token for clients; "" if none is needed.
        is_shared: whether other machines can reach it.
        is_encrypted: whether it uses TLS.
    """

    def __init__(
        self,
        settings: Settings,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str = "",
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        """Bind the address and start the processes; `answer` starts to serve.

        Args:
            settings: settings of the service.
            host: name or address of this machine.
            port: port; 0 for any free one.
            token: token for a shared host; generated if empty.
            certificate: certificate of the server in PEM; with `key` the service uses TLS.
            key: private key of the certificate in PEM.

        Raises:
            ServiceError: if the address cannot be bound, or the certificate cannot be used.
            TokenError: if the token could be guessed.
        """
        try:
            from dippm.show.service.app import application
            from dippm.show.service.connections import CertificateError, ServiceListener
            from dippm.show.service.service import Service
        except ImportError as error:
            raise ServiceNotInstalledError(
                f"the service needs {error.name}", "Install it: pip install 'dippm[serve]'."
            ) from error
        if (certificate is None) != (key is None):
            raise ServiceError(
                "TLS needs a certificate and its key", "Give both: certificate=..., key=... ."
            )
        if settings.webhook != "off" and certificate is None:
            raise ServiceError(
                "Kubernetes connects to webhooks by TLS only",
                "Give certificate=... and key=..., or leave out webhook=... .",
            )
        self.is_shared, self.is_encrypted = not is_loopback(host), certificate is not None
        self.token = (token or secrets.token_urlsafe(32)) if self.is_shared or token else ""
        access = Access(self.token)
        self._service = Service(settings)
        try:
            self._listener = ServiceListener(
                application(self._service, access),
                host,
                port,
                certificate=str(certificate) if certificate else None,
                key=str(key) if key else None,
            )
        except CertificateError as error:
            self._service.close()
            raise ServiceError(
                f"the certificate or its key cannot be used: {error}",
                "Give both in PEM: certificate=cert.pem, key=key.pem.",
            ) from error
        except (OSError, ValueError, OverflowError) as error:
            self._service.close()
            reason = getattr(error, "strerror", None) or "this is no address"
            raise ServiceError(
                f"cannot serve at {printable(host)}:{port}: {reason}",
                "Choose another port: port=0; or another host: host=127.0.0.1.",
            ) from error
        self._service.metrics.look("dippm_connections", lambda: self._listener.connections)
        name = f"[{host}]" if ":" in host else host
        scheme = "https" if self.is_encrypted else "http"
        self.address = f"{scheme}://{name}:{self._listener.port}"

    def answer(self) -> None:
        """Serve until `close` or a signal; then end all processes."""
        try:
            self._listener.answer()
        finally:
            self._service.close()

    def close(self) -> None:
        """Stop; may be called from another thread."""
        self._listener.close()
