"""Errors of the service in addition to those of predictions, and their HTTP status codes."""

from __future__ import annotations

from typing import Any, ClassVar

from dippm.errors import (
    ConversionError,
    DippmError,
    ModelNotFoundError,
    UnknownFormatError,
    UnsafeModelError,
)


class ServiceError(DippmError):
    """The service cannot be started or reached, or cannot answer.

    Attributes:
        status: HTTP status code.
        retry_after_s: time in s after which to retry; None if a retry is pointless.
    """

    status: ClassVar[int] = 500

    def __init__(self, message: str, hint: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class ServiceNotInstalledError(ServiceError, ImportError):
    """The libraries of the service are missing."""


class BadQuestionError(ServiceError, ValueError):
    """A field of the question is missing, wrong, or unknown."""

    status: ClassVar[int] = 422


class NoAccessError(ServiceError, PermissionError):
    """The token is missing or wrong."""

    status: ClassVar[int] = 401


class ForbiddenError(ServiceError, PermissionError):
    """The request is never allowed: from another site, for a path outside the root, with trust."""

    status: ClassVar[int] = 403


class NotHereError(ServiceError, LookupError):
    """The job, model or path does not exist, or no longer."""

    status: ClassVar[int] = 404


class TooSlowError(ServiceError, TimeoutError):
    """The request did not arrive in time."""

    status: ClassVar[int] = 408


class TooLargeError(ServiceError):
    """The request is larger than the service allows."""

    status: ClassVar[int] = 413


class WrongTypeError(ServiceError):
    """The body is neither a question nor a file."""

    status: ClassVar[int] = 415


class BusyError(ServiceError):
    """The queue is full; retry later."""

    status: ClassVar[int] = 429


class JobCancelledError(ServiceError):
    """The client cancelled the job."""

    status: ClassVar[int] = 409


class WorkerLostError(ServiceError):
    """Two worker processes of the job were killed from outside."""

    status: ClassVar[int] = 503


class ClosingError(ServiceError):
    """The service is shutting down."""

    status: ClassVar[int] = 503


class TimeLimitError(ServiceError, TimeoutError):
    """The answer exceeded the time limit of the service."""

    status: ClassVar[int] = 504


class NoRoomError(ServiceError):
    """The disk of the service is full."""

    status: ClassVar[int] = 507


def status_of(error: DippmError) -> int:
    """Return the status code of an error."""
    if isinstance(error, ServiceError):
        return error.status
    return STATUS.get(type(error).__name__, 422)


STATUS = {
    ModelNotFoundError.__name__: 404,
    UnknownFormatError.__name__: 415,
    UnsafeModelError.__name__: 403,
    ConversionError.__name__: 422,
    "FrameworkNotInstalledError": 501,
    "CheckpointError": 500,
    "UnexpectedError": 500,
}
"""Status code by type of error; others are errors of the question: 422."""


def error_text(error: DippmError) -> dict[str, Any]:
    """Return the document of an error, as on the command line."""
    return {"schema": "dippm.error/1", "error": error.to_dict()}
