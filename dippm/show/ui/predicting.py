"""`Predicting`: what the Predict door asks of the service, in the process of the page.

The page is one more client of the parts of the service: its questions, uploads, jobs and processes
are theirs. The processes start with the first visitor of the door, not with the page of runs. A
model file comes in pieces, so that who may come in is asked before each and none is large.
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
from dippm.show.service.uploads import Arriving, Model

MOST_ARRIVING = 16
IDLE_S = 60.0
"""After which a file of which nothing more comes is given up."""
ASKED: dict[str, type[Predict | Compare]] = {"predict": Predict, "compare": Compare}
OPTIONS = ("batch", "input", "device", "mig", "precision", "mode", "runtime", "phase", "optimizer")
"""Of a command, in its order; those of their default are left out, but for batch and device."""


@dataclass(slots=True)
class _Piecewise:
    arriving: Arriving
    size: int = 0
    since: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False


class Predicting:
    """Questions of visitors; safe from any thread.

    Attributes:
        settings: what is allowed.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """Take what is allowed; nothing starts yet."""
        self.settings = settings or Settings()
        self._service: Service | None = None
        self._lock = threading.Lock()
        self._arriving: dict[str, _Piecewise] = {}
        self._is_closed = False

    @property
    def service(self) -> Service:
        """The service, which starts when it is first asked for.

        Raises:
            NoRoomError: if there is no place for uploads.
            NotHereError: if the page ends.
        """
        with self._lock:
            if self._is_closed:
                raise NotHereError("the page ends", "Start it again: dippm ui.")
            if self._service is None:
                self._service = Service(self.settings)
            return self._service

    def begin(self, name: str) -> str:
        """Begin an upload; return its name for `take` and `end`.

        Raises:
            BusyError: if too many files arrive.
            BadQuestionError: if the file has a name that no file should have.
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
            self._arriving[key] = _Piecewise(arriving)
        return key

    def take(self, key: str, at: int, piece: bytes) -> int:
        """Take the next piece of an upload; return how many bytes are here.

        Args:
            key: that `begin` gave.
            at: bytes before this piece.
            piece: of the file.

        Raises:
            NotHereError: if no such file arrives, or no longer.
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

    def end(self, key: str) -> Model:
        """Return the model of which the last piece has come; it stays until `forget`.

        Raises:
            NotHereError: if no such file arrives, or no longer.
            BadQuestionError: if it is empty.
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
        """Keep a model no longer, or give up an upload of this name.

        Raises:
            NotHereError: if there is none.
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
        """Return the answer of a question, or the job that will have it, and the question.

        Raises:
            NotHereError: if nothing of this kind is asked here, or a model is no longer here.
            BadQuestionError: if the question has no meaning.
            BusyError: if the queue is full.
        """
        if kind not in ASKED:
            raise NotHereError("nothing of this kind is asked here", "Ask predict or compare.")
        question = read_question(ASKED[kind], text)
        assert isinstance(question, Predict | Compare)
        service = self.service
        answer = service.answer(question, service.find_models(question), client)
        if isinstance(answer, Job):
            answer.is_detached = True  # the visitor asks how far it is
            service.leave(answer)
        return answer, question

    def close(self) -> None:
        """End everything, and remove what was uploaded."""
        with self._lock:
            self._is_closed = True
            parts, service = list(self._arriving.items()), self._service
        for key, part in parts:
            with part.lock:
                self._drop(key, part)
        if service is not None:
            service.close()

    def _part(self, key: str) -> _Piecewise:
        with self._lock:
            part = self._arriving.get(key)
        if part is None:
            raise _gone()
        return part

    def _drop(self, key: str, part: _Piecewise) -> None:
        """Remove what has come of a file; its lock is held."""
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
    """Return the line of `dippm predict` that asks the same.

    Args:
        question: about one model.
        name: of the uploaded file, as the visitor has it.
    """
    model = _model(question, name)
    words = ["dippm", "predict", f"./{model}" if model.startswith("-") else model]
    for key, value in _given(question).items():
        words += [f"--{key}", str(value)]
    return shlex.join(words)


def as_python(question: Predict, name: str) -> str:
    """Return lines of Python that ask the same; see `as_command`."""
    words = [repr(_model(question, name))]
    words += [f"{key}={value!r}" for key, value in _given(question).items()]
    return f"import dippm\n\ndippm.predict({', '.join(words)})"


def _given(question: Predict) -> dict[str, Any]:
    """Return what differs from the defaults; batch and device always."""
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
    """Return what the visitor would name; a packed folder by the name of its zip."""
    if isinstance(question.model, KeptModel):
        return re.sub(r"\.zip$", "", printable(name), flags=re.IGNORECASE) or "model"
    return str(question.model)
