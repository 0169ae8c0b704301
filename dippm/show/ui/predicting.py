"""`PredictSessions`: questions and uploads of the Predict page, in the process of the page.

The page uses the questions, uploads, jobs and processes of the service directly. The processes
start with the first visit of the Predict page, not with the page of runs. A model file arrives in
pieces, so that each small request is authenticated before its body is read.
"""

from __future__ import annotations

import re
import secrets
import shlex
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from dippm.base.printable import printable
from dippm.show.service.errors import BadQuestionError, BusyError, NotHereError
from dippm.show.service.jobs import Job
from dippm.show.service.questions import SHA256, Compare, KeptModel, Predict, read_question
from dippm.show.service.service import Service
from dippm.show.service.settings import Settings
from dippm.show.service.uploads import IncomingFile, UploadedModel

MOST_ARRIVING = 16
IDLE_S = 60.0
"""Time in s after which a stalled upload is dropped."""
ASKED: dict[str, type[Predict | Compare]] = {"predict": Predict, "compare": Compare}
OPTIONS = ("batch", "input", "device", "mig", "precision", "mode", "runtime", "phase", "optimizer")
"""Options of a command in their order; defaults are left out, except for batch and device."""


@dataclass(slots=True)
class _UploadInParts:
    arriving: IncomingFile
    size: int = 0
    since: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False


class PredictSessions:
    """Questions and uploads of visitors; thread-safe.

    Attributes:
        settings: settings of the service.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """Store the settings; nothing starts yet."""
        self.settings = settings or Settings()
        self._service: Service | None = None
        self._lock = threading.Lock()
        self._arriving: dict[str, _UploadInParts] = {}
        self._is_closed = False

    @property
    def service(self) -> Service:
        """The service, which starts on first use.

        Raises:
            NoRoomError: if the folder of uploads cannot be created.
            NotHereError: if the page is shutting down.
        """
        with self._lock:
            if self._is_closed:
                raise NotHereError("the page ends", "Start it again: dippm ui.")
            if self._service is None:
                self._service = Service(self.settings)
            return self._service

    def begin(self, name: str) -> str:
        """Begin an upload; return its key for `take` and `end`.

        Raises:
            BusyError: if too many uploads are in progress.
            BadQuestionError: if the name is not a valid file name.
        """
        self._give_up_idle()
        uploads = self.service.uploads
        with self._lock:
            if len(self._arriving) >= MOST_ARRIVING:
                raise BusyError(
                    f"{MOST_ARRIVING} files arrive already", "Try again soon.", retry_after_s=5
                )
            arriving = uploads.receive(name, self.settings.upload_mb)
            arriving.__enter__()
            key = secrets.token_urlsafe(16)
            self._arriving[key] = _UploadInParts(arriving)
        return key

    def take(self, key: str, at: int, piece: bytes) -> int:
        """Write the next piece of an upload; return the number of bytes so far.

        Args:
            key: key from `begin`.
            at: offset of the piece in bytes.
            piece: content of the piece.

        Raises:
            NotHereError: if there is no such upload, or no longer.
            BadQuestionError: if the piece is not the next one.
            TooLargeError: if the file is too large.
            NoRoomError: if the disk is full.
        """
        part = self._part(key)
        with part.lock:
            if part.is_closed:
                raise _gone()
            if at != part.size:
                raise BadQuestionError(
                    f"the piece begins at {at:,}, not at {part.size:,}", "Send the file again."
                )
            try:
                part.arriving.take(piece)
            except BaseException:
                self._drop(key, part)
                raise
            part.size += len(piece)
            part.since = time.monotonic()
            return part.size

    def end(self, key: str) -> UploadedModel:
        """Finish an upload and return its model, which stays until `forget`.

        Raises:
            NotHereError: if there is no such upload, or no longer.
            BadQuestionError: if the file is empty.
        """
        part = self._part(key)
        with part.lock:
            if part.is_closed:
                raise _gone()
            try:
                model = part.arriving.whole(keep=True)
            finally:
                self._drop(key, part)
        self.service.uploads.release(model)
        return model

    def forget(self, sha256: str) -> None:
        """Remove a model, or abort an upload with this key.

        Raises:
            NotHereError: if there is no such model or upload.
        """
        with self._lock:
            part = self._arriving.get(sha256)
        if part is not None:
            with part.lock:
                self._drop(sha256, part)
            return
        if SHA256.fullmatch(sha256) is None:
            raise _gone()
        self.service.uploads.forget(sha256)

    def ask(self, kind: str, text: bytes, client: str) -> tuple[str | Job, Predict | Compare]:
        """Return the answer to a question or the job that will have it, and the question.

        Raises:
            NotHereError: if the kind is not supported, or a model no longer exists.
            BadQuestionError: if the question is not valid.
            BusyError: if the queue is full.
        """
        if kind not in ASKED:
            raise NotHereError("nothing of this kind is asked here", "Ask predict or compare.")
        question = read_question(ASKED[kind], text)
        assert isinstance(question, Predict | Compare)
        service = self.service
        answer = service.answer(question, service.find_models(question), client)
        if isinstance(answer, Job):
            answer.is_detached = True  # the visitor polls it
            service.leave(answer)
        return answer, question

    def close(self) -> None:
        """End the service, and remove all uploads."""
        with self._lock:
            self._is_closed = True
            parts, service = list(self._arriving.items()), self._service
        for key, part in parts:
            with part.lock:
                self._drop(key, part)
        if service is not None:
            service.close()

    def _part(self, key: str) -> _UploadInParts:
        with self._lock:
            part = self._arriving.get(key)
        if part is None:
            raise _gone()
        return part

    def _drop(self, key: str, part: _UploadInParts) -> None:
        """Remove an incomplete file; its lock is held."""
        with self._lock:
            self._arriving.pop(key, None)
        if not part.is_closed:
            part.is_closed = True
            part.arriving.__exit__(None, None, None)

    def _give_up_idle(self) -> None:
        now = time.monotonic()
        with self._lock:
            idle = [(k, p) for k, p in self._arriving.items() if now - p.since > IDLE_S]
        for key, part in idle:
            with part.lock:
                self._drop(key, part)


def _gone() -> NotHereError:
    return NotHereError("no such file arrives, or no longer", "Choose the file again.")


def as_command(question: Predict, name: str) -> str:
    """Return the equivalent `dippm predict` command.

    Args:
        question: question about one model.
        name: visitor's name of the uploaded file.
    """
    model = _model(question, name)
    words = ["dippm", "predict", f"./{model}" if model.startswith("-") else model]
    for key, value in _given(question).items():
        words += [f"--{key}", str(value)]
    return shlex.join(words)


def as_python(question: Predict, name: str) -> str:
    """Return the equivalent Python code; see `as_command`."""
    words = [repr(_model(question, name))]
    words += [f"{key}={value!r}" for key, value in _given(question).items()]
    return f"import dippm\n\ndippm.predict({', '.join(words)})"


def _given(question: Predict) -> dict[str, Any]:
    """Return batch, device, and fields that differ from their defaults."""
    found = {}
    for key in OPTIONS:
        value = getattr(question, key)
        usual = Predict.model_fields[key].default
        if key in ("batch", "device") or (value is not None and value != usual):
            found[key] = value
    if question.arguments()["phase"] == "inference":
        found.pop("optimizer", None)
    return found


def _model(question: Predict, name: str) -> str:
    """Return the name of the model for the visitor; a packed folder takes that of its zip."""
    if isinstance(question.model, KeptModel):
        return re.sub(r"\.zip$", "", printable(name), flags=re.IGNORECASE) or "model"
    return str(question.model)
