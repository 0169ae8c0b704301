"""`Uploads`: untrusted files on disk, until they are answered or as long as the client keeps them.

Nothing here reads the content of a file: sandboxed processes do.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from dippm.show.service.errors import BadQuestionError, NoRoomError, NotHereError, TooLargeError

MB = 1 << 20
PREFIX = "dippm-serve-"
DEFAULT_NAME = "model"
_NAME = re.compile(r"\w[\w.+-]{0,99}")


@dataclass(eq=False, slots=True)
class UploadedModel:
    """An uploaded model.

    Attributes:
        sha256: hash of its content.
        name: name of the file, used in answers.
        folder: folder of its own, also for derived files.
        size: size in bytes.
        users: number of jobs and requests that use it.
        is_kept: whether it stays when it is not in use.
    """

    sha256: str
    name: str
    folder: Path
    size: int
    users: int = 0
    is_kept: bool = False

    @property
    def file(self) -> Path:
        """Path of the file."""
        return self.folder / self.name


@dataclass(eq=False, slots=True)
class IncomingFile:
    """A file that is being received; a context manager that removes an incomplete one."""

    uploads: Uploads
    name: str
    most: int
    folder: Path
    _hashed: hashlib._Hash = field(default_factory=hashlib.sha256)
    _size: int = 0
    _handle: int = -1

    def __enter__(self) -> IncomingFile:
        try:
            self.folder.mkdir(mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._handle = os.open(self.folder / self.name, flags, 0o600)
        except OSError as error:
            raise _no_room(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self.uploads._forget(self._size)
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def take(self, chunk: bytes) -> None:
        """Write the next chunk.

        Raises:
            TooLargeError: if the file gets too large.
            NoRoomError: if the disk is full, or the total size of uploads is reached.
        """
        self.uploads._reserve(len(chunk))
        self._size += len(chunk)
        if self._size > self.most:
            raise TooLargeError(
                f"the file has more than {self.most // MB:,} MB",
                "Export it without weights, or give it by its path under a root of the service.",
            )
        self._hashed.update(chunk)
        try:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError as error:
            raise _no_room(error) from error

    def whole(self, *, keep: bool) -> UploadedModel:
        """Return the complete model, held once.

        Raises:
            BadQuestionError: if the file is empty.
        """
        if not self._size:
            raise BadQuestionError("the body is empty", "Send the model file as the body.")
        return self.uploads._add(self, self._hashed.hexdigest(), self._size, keep=keep)


class Uploads:
    """Uploaded models; thread-safe.

    Attributes:
        folder: folder of the uploads, removed with the service.
    """

    def __init__(self, place: Path | None, most_mb: int, kept_mb: int) -> None:
        """Create the folder.

        Args:
            place: parent folder; None takes the system's folder for temporary files.
            most_mb: largest total size in MiB.
            kept_mb: largest total size of kept uploads in MiB; the oldest ones are removed.

        Raises:
            NoRoomError: if the folder cannot be created.
        """
        _sweep(Path(place or tempfile.gettempdir()))
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            self._owned = os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(self._owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _no_room(error) from error
        self._most, self._most_kept = most_mb * MB, kept_mb * MB
        self._arriving = 0
        self._models: OrderedDict[tuple[str, str], UploadedModel] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Total bytes of complete and incoming files."""
        with self._lock:
            return self._arriving + self._held()

    def __len__(self) -> int:
        with self._lock:
            return len(self._models)

    def receive(self, name: str, most_mb: int) -> IncomingFile:
        """Return a context manager that receives a file.

        Raises:
            BadQuestionError: if the name is not a valid file name.
        """
        if not _NAME.fullmatch(name):
            raise BadQuestionError(
                f"{name[:80]!r} is not a file name",
                "Give letters, digits, '.', '_', '-' and '+', 100 at most: name=model.onnx.",
            )
        return IncomingFile(self, name, most_mb * MB, self.folder / secrets.token_hex(16))

    def find(self, sha256: str) -> UploadedModel:
        """Return a kept model, held once more.

        Raises:
            NotHereError: if there is no such model.
        """
        with self._lock:
            for model in reversed(self._models.values()):
                if model.sha256 == sha256 and model.is_kept:
                    model.users += 1
                    self._models.move_to_end((model.sha256, model.name))
                    return model
        raise NotHereError(
            f"no model with sha256 {sha256[:12]}... is kept here",
            "Upload it with POST /v1/models; the least recently used models are removed first.",
        )

    def forget(self, sha256: str) -> None:
        """Stop keeping a model; it is removed when it is no longer in use.

        Raises:
            NotHereError: if there is no such model.
        """
        model = self.find(sha256)
        model.is_kept = False
        self.release(model)

    def use(self, model: UploadedModel) -> None:
        """Hold a model once more."""
        with self._lock:
            model.users += 1

    def release(self, model: UploadedModel) -> None:
        """Release a model once."""
        with self._lock:
            model.users -= 1
            gone = model.users <= 0 and not model.is_kept
            if gone:
                self._models.pop((model.sha256, model.name), None)
        if gone:
            shutil.rmtree(model.folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all uploads."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._owned)

    def _add(self, arrived: IncomingFile, sha256: str, size: int, *, keep: bool) -> UploadedModel:
        with self._lock:
            model = self._models.get((sha256, arrived.name))
            if model is None:
                model = UploadedModel(
                    sha256, arrived.name, arrived.folder.with_suffix(".model"), size
                )
                try:
                    arrived.folder.rename(model.folder)
                except OSError as error:
                    raise _no_room(error) from error
                self._models[sha256, arrived.name] = model
            model.users += 1
            model.is_kept = model.is_kept or keep
            surplus = self._surplus()
        for one in surplus:
            shutil.rmtree(one.folder, ignore_errors=True)
        return model

    def _surplus(self) -> list[UploadedModel]:
        """Remove and return the oldest kept models not in use, until the rest is within limits."""
        kept = [model for model in self._models.values() if model.is_kept]
        size, gone = sum(model.size for model in kept), []
        for model in kept:
            if size <= self._most_kept:
                break
            size -= model.size
            model.is_kept = False
            if model.users <= 0:
                del self._models[model.sha256, model.name]
                gone.append(model)
        return gone

    def _held(self) -> int:
        return sum(model.size for model in self._models.values())

    def _reserve(self, size: int) -> None:
        with self._lock:
            if self._arriving + self._held() + size > self._most:
                raise NoRoomError(
                    f"{self._most // MB:,} MB of uploads are stored, which is the limit",
                    "Try again when other questions are answered.",
                    retry_after_s=10,
                )
            self._arriving += size

    def _forget(self, size: int) -> None:
        with self._lock:
            self._arriving -= size


def _no_room(error: OSError) -> NoRoomError:
    return NoRoomError(
        f"the service cannot write the file: {error.strerror or error}",
        "The operator of the service can choose the folder of uploads: folder=... .",
        retry_after_s=30,
    )


def _sweep(place: Path) -> None:
    """Remove folders of killed services, whose lock is free."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            handle = os.open(folder / "lock", os.O_WRONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
