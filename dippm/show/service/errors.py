"""What the service answers beside what a prediction raises, and the status code of each error."""

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
    """The service cannot be started, reached, or answer.

    Attributes:
        status: code of HTTP.
        retry_after_s: seconds after which another attempt makes sense; None if none does.
    """

    status: ClassVar[int] = 500

    def __init__(self, message: str, hint: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class ServiceNotInstalledError(ServiceError, ImportError):
    """The libraries of the service are missing."""


class BadQuestionError(ServiceError, ValueError):
    """A question that has no meaning: a field is missing, wrong, or unknown."""

    status: ClassVar[int] = 422


class NoAccessError(ServiceError, PermissionError):
    """The token is missing or wrong."""

    status: ClassVar[int] = 401


class ForbiddenError(ServiceError, PermissionError):
    """What nobody may ask here: from another site, of a path outside the root, with trust."""

    status: ClassVar[int] = 403


class NotHereError(ServiceError, LookupError):
    """No such job, model or address, or no longer."""

    status: ClassVar[int] = 404


class TooSlowError(ServiceError, TimeoutError):
    """The request did not arrive in time."""

    status: ClassVar[int] = 408


class TooLargeError(ServiceError):
    """The request is larger than the service takes."""

    status: ClassVar[int] = 413


class WrongTypeError(ServiceError):
    """The body is neither a question nor a file."""

    status: ClassVar[int] = 415


class BusyError(ServiceError):
    """The queue is full; the same question may be asked again in a while."""

    status: ClassVar[int] = 429


class JobCancelledError(ServiceError):
    """The job was cancelled by whoever asked."""

    status: ClassVar[int] = 409


class WorkerLostError(ServiceError):
    """The process that worked on the answer was ended from outside, twice."""

    status: ClassVar[int] = 503


class ClosingError(ServiceError):
    """The service ends."""

    status: ClassVar[int] = 503


class TimeLimitError(ServiceError, TimeoutError):
    """The answer took longer than the service gives to any."""

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
"""By type of an error; others are of the question: 422."""


def error_text(error: DippmError) -> dict[str, Any]:
    """Return the document of an error, as the command line has it."""
    return {"schema": "dippm.error/1", "error": error.to_dict()}
