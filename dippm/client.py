"""`Client`: a client of `dippm serve`, without third-party web libraries."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dippm import errors
from dippm.base.printable import printable
from dippm.base.progress import tell
from dippm.errors import DippmError

TOKEN_VARIABLE = "DIPPM_TOKEN"
CHUNK_BYTES = 1 << 18
SOCKET_S = 90.0
NEWS_S = 20.0
"""Long-polling time of a request for a job's state, in s."""
Model = str | os.PathLike[str] | Mapping[str, str]
Document = dict[str, Any]


class ClientError(DippmError):
    """The service cannot be reached, refuses the request, or sends an invalid response.

    Attributes:
        status: HTTP status code; None without a response.
        kind: type of the error at the service; "" if not given.
        retry_after_s: time in s after which to retry; None if not given.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int | None = None,
        kind: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status, self.kind, self.retry_after_s = status, kind, retry_after_s


class Client:
    """A client of a prediction service; thread-safe.

    >>> from dippm import Client
    >>> client = Client("http://127.0.0.1:8060")  # doctest: +SKIP
    >>> client.predict("resnet50.onnx", batch=8, device="H100")["latency_ms"]  # doctest: +SKIP

    Answers are the documents that `--json` prints. A long answer is a job: its stages are reported
    (`dippm.base.progress.listening`), and it is cancelled if the wait is interrupted.

    Attributes:
        address: URL of the service.
        timeout_s: time limit of an answer in s, over all attempts.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8060",
        *,
        token: str | None = None,
        timeout_s: float = 600.0,
        name: str = "",
        certificates: str | os.PathLike[str] | None = None,
    ) -> None:
        """Store the address; nothing is sent yet.

        Args:
            address: URL of the service: "http://..." or "https://...".
            token: token of the service; None takes $DIPPM_TOKEN.
            timeout_s: time limit of an answer in s.
            name: name of this client on its machine, for a turn of its own in the queue.
            certificates: file of trusted CA certificates; None takes those of the system.

        Raises:
            ClientError: if the address is not valid, or the token or the name cannot be sent.
        """
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except (ValueError, AttributeError, TypeError):  # a port that is none, no text
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise ClientError(
                f"{address!r} is not the address of a service", "Give one: http://127.0.0.1:8060."
            )
        self.address, self.timeout_s = address.rstrip("/"), timeout_s
        self._host, self._port = host, port
        self._path = parts.path.rstrip("/")
        self._is_encrypted = parts.scheme == "https"
        self._certificates = certificates
        token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        for what, text in (("token", token), ("name of the client", name)):
            if not (isinstance(text, str) and text.isascii() and (text.isprintable() or not text)):
                raise ClientError(
                    f"the {what} has characters that no header takes",
                    "A line break at its end, of the file that it was read from?",
                )
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        if name:
            self._headers["Dippm-Client"] = name
        self._local = threading.local()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection of this thread."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def predict(self, model: Model, **question: Any) -> Document:
        """Predict one model on one GPU: the document of `dippm predict --json`.

        Args:
            model: path of a local file or folder, which is uploaded; a name such as
                "timm:resnet50"; {"path": ...} under a root of the service; {"sha256": ...} of a
                kept upload.
            question: batch, device, precision, ... as `dippm.predict` takes them.

        Raises:
            DippmError: error of the service, with its type if that is one of `dippm.errors`.
            ClientError: if there is no valid response.
        """
        return self.ask("predict", model, **question)

    def fit(self, model: Model, **question: Any) -> Document:
        """Ask whether a model fits, and for the largest batch that does; see `predict`."""
        return self.ask("fit", model, **question)

    def choose(self, model: Model, **question: Any) -> Document:
        """Rank GPUs and slices; see `predict` and `dippm.choose`."""
        return self.ask("choose", model, **question)

    def smallest_slice(self, model: Model, **question: Any) -> Document:
        """Find the smallest slice that suffices; see `predict` and `dippm.smallest_slice`."""
        return self.ask("slice", model, **question)

    def request(self, model: Model, **question: Any) -> Document:
        """Return a resource request for a scheduler; see `predict` and `dippm request`."""
        return self.ask("request", model, **question)

    def compare(self, models: Iterable[Model], **question: Any) -> Document:
        """Compare models, see `dippm.compare`; files are uploaded and kept until the answer."""
        return self._ask_about_several("compare", models, question)

    def share(self, models: Iterable[Model], **question: Any) -> Document:
        """Predict processes that share one GPU, see `dippm.share`; files as in `compare`."""
        return self._ask_about_several("share", models, question)

    def _ask_about_several(
        self, kind: str, models: Iterable[Model], question: Mapping[str, Any]
    ) -> Document:
        kept: list[str] = []
        given: list[Any] = []
        try:
            for model in models:
                if isinstance(model, Mapping) or not self._is_local(model):
                    given.append(model)
                    continue
                kept.append(self.upload(model)["sha256"])
                given.append({"sha256": kept[-1]})
            return self._asked(kind, {"models": given, **question})
        finally:
            for sha256 in dict.fromkeys(kept):
                self.forget(sha256)

    def ask(self, kind: str, model: Model, **question: Any) -> Document:
        """Ask a question about one model; see `predict`.

        Args:
            kind: "predict", "fit", "choose", "slice" or "request".
            model: see `predict`.
            question: fields of the question.
        """
        if not self._is_local(model):
            return self._asked(kind, {"model": model, **question})
        path = _file_of(model)
        try:
            if not all(isinstance(v, str | int | float | bool | None) for v in question.values()):
                # Lists and mappings need a JSON body, so the file is uploaded first.
                sha256 = self._uploaded(path)["sha256"]
                try:
                    return self._asked(kind, {"model": {"sha256": sha256}, **question})
                finally:
                    self.forget(sha256)
            fields = {name: value for name, value in question.items() if value is not None}
            return self._wait(f"/v1/{kind}?{_address_of(path, fields)}", path)
        finally:
            if path != Path(os.fspath(model)):  # type: ignore[arg-type]
                path.unlink(missing_ok=True)

    def upload(self, model: str | os.PathLike[str]) -> Document:
        """Upload a model and keep it for several questions; "sha256" identifies it."""
        path = _file_of(model)
        try:
            return self._uploaded(path)
        finally:
            if path != Path(os.fspath(model)):
                path.unlink(missing_ok=True)

    def forget(self, sha256: str) -> None:
        """Stop keeping a model; one that no longer exists is ignored."""
        try:
            self._send("DELETE", f"/v1/models/{sha256}")
        except ClientError as error:
            if error.status != 404:
                raise

    def devices(self) -> Document:
        """Return the known GPUs, like `dippm devices --json`."""
        return self._get("/v1/devices")

    def options(self) -> Document:
        """Return the valid options of questions, and the limits of the service."""
        return self._get("/v1/options")

    def health(self) -> Document:
        """Return the health document of the service."""
        return self._get("/healthz")

    def metrics(self) -> str:
        """Return the metrics of the service in Prometheus' text format."""
        return self._send("GET", "/metrics")[2].decode()

    def start(self, kind: str, question: Mapping[str, Any]) -> Document:
        """Ask without waiting, and return the answer if it is cached, else a job's document."""
        body = _json(question)
        return _read(self._send("POST", f"/v1/{kind}?wait_s=0", body, _JSON)[2])

    def job(self, job_id: str, *, after: int = -1, wait_s: float = 0.0) -> Document:
        """Return the state of a job.

        Args:
            job_id: "id" of its document.
            after: "version" of the last state; with `wait_s` the request waits for a newer one.
            wait_s: longest wait in s.
        """
        return self._get(f"/v1/jobs/{quote(job_id)}?after={after}&wait_s={wait_s:g}")

    def result(self, job_id: str) -> Document:
        """Return the answer of a job, or its document until it is done."""
        return self._get(f"/v1/jobs/{quote(job_id)}/result")

    def cancel(self, job_id: str) -> Document:
        """Cancel a job."""
        return _read(self._send("DELETE", f"/v1/jobs/{quote(job_id)}")[2])

    def _is_local(self, model: Model) -> bool:
        """Return whether a model is a local file or folder."""
        if isinstance(model, Mapping):
            return False
        if not isinstance(model, str | os.PathLike):
            raise ClientError(
                f"a {type(model).__module__}.{type(model).__qualname__} cannot be sent",
                "Give a file, a name or a mapping; for an object in memory there is dippm.predict.",
            )
        text = os.fspath(model)
        is_name = isinstance(model, str) and ":" in text and not os.path.exists(text)
        return not is_name

    def _asked(self, kind: str, question: Mapping[str, Any]) -> Document:
        return self._wait(f"/v1/{kind}", _json(question))

    def _uploaded(self, path: Path) -> Document:
        return _read(self._patiently("POST", f"/v1/models?{_address_of(path, {})}", path, _FILE)[2])

    def _wait(self, address: str, body: bytes | Path) -> Document:
        """Ask, and wait for the job to end."""
        began = time.monotonic()
        kind = _FILE if isinstance(body, Path) else _JSON
        status, _, answer = self._patiently("POST", address, body, kind)
        found = _read(answer)
        if status != 202:
            return found
        job, told_s = found, -1.0
        try:
            while job["state"] in ("queued", "running"):
                for stage in job["stages"]:
                    if stage["at_s"] > told_s:
                        tell(stage["stage"])
                        told_s = stage["at_s"]
                if time.monotonic() - began > self.timeout_s:
                    raise ClientError(
                        f"no answer came in {self.timeout_s:g} s (stage: {job['stage']})",
                        "Give it more time: Client(..., timeout_s=...).",
                    )
                job = self.job(job["id"], after=job["version"], wait_s=NEWS_S)
        except BaseException:
            self._give_up(job["id"])
            raise
        return self.result(job["id"])

    def _give_up(self, job_id: str) -> None:
        try:
            self.cancel(job_id)
        except DippmError:
            return

    def _get(self, address: str) -> Document:
        return _read(self._send("GET", address)[2])

    def _patiently(
        self, method: str, address: str, body: bytes | Path, kind: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Repeat a request while the service is full."""
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return self._send(method, address, body, kind)
            except ClientError as error:
                after_s = error.retry_after_s
                if error.status not in (429, 507) or after_s is None:
                    raise
                if time.monotonic() + after_s > until:
                    raise
                tell(f"the service is full; asking again in {after_s:g} s")
                time.sleep(after_s)

    def _send(
        self,
        method: str,
        address: str,
        body: bytes | Path | None = None,
        kind: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request, again if the service had closed an idle connection."""
        for attempt in range(2):
            is_new = getattr(self._local, "connection", None) is None
            try:
                return self._sent(method, address, body, kind)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if attempt or is_new or isinstance(error, TimeoutError):
                    raise self._unreached(error) from error
        raise AssertionError("the second attempt returns or raises")

    def _sent(
        self, method: str, address: str, body: bytes | Path | None, kind: Mapping[str, str] | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        connection = self._connection()
        headers = {**self._headers, **(kind or {})}
        if isinstance(body, Path):
            headers["Content-Length"] = str(body.stat().st_size)
            with body.open("rb") as file:
                # The service may respond before it has read the whole body: too large, full.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, self._path + address, file, headers)
                response = connection.getresponse()
        else:
            connection.request(method, self._path + address, body, headers)
            response = connection.getresponse()
        content = response.read()
        if response.will_close:
            self.close()
        if response.status >= 400:
            raise _error_of(response, content)
        return response.status, dict(response.headers), content

    def _connection(self) -> http.client.HTTPConnection:
        found = getattr(self._local, "connection", None)
        if found is not None:
            return found  # type: ignore[no-any-return]
        made: http.client.HTTPConnection
        if self._is_encrypted:
            trusted = None if self._certificates is None else os.fspath(self._certificates)
            context = ssl.create_default_context(cafile=trusted)
            made = http.client.HTTPSConnection(
                self._host, self._port, timeout=SOCKET_S, context=context
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=SOCKET_S)
        made.blocksize = CHUNK_BYTES
        self._local.connection = made
        return made

    def _unreached(self, error: Exception) -> ClientError:
        return ClientError(
            f"no answer from {printable(self.address)}: {error}",
            "Start one with `dippm serve`, or give its address: Client(address).",
        )


_JSON = {"Content-Type": "application/json"}
_FILE = {"Content-Type": "application/octet-stream"}


def _json(question: Mapping[str, Any]) -> bytes:
    """Return a question as JSON; numbers of libraries such as NumPy are numbers.

    Raises:
        ClientError: if a value is none of JSON.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        raise ClientError(
            f"a {type(value).__module__}.{type(value).__qualname__} cannot be sent",
            "Give text, numbers, lists and mappings.",
        )

    return json.dumps(question, default=plain).encode()


def _address_of(path: Path, fields: Mapping[str, Any]) -> str:
    """Return the query string of an upload: the fields, and a safe name."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._+-") else "_" for c in path.name)
    name = name[-100:].lstrip(".+-") or "model"
    plain = {n: str(v).lower() if isinstance(v, bool) else v for n, v in fields.items()}
    return urlencode({**plain, "name": name})


def _file_of(model: Any) -> Path:
    """Return the file to send; for a folder a zip, which the caller removes."""
    path = Path(os.path.expanduser(os.fspath(model)))
    if path.is_file():
        return path
    if not path.is_dir():
        raise errors.ModelNotFoundError(
            f"{path} is not there", "Check the path; paths at the service are {'path': ...}."
        )
    import tempfile
    import zipfile

    from dippm.base import files

    members: Sequence[Path] = sorted(files.walk(path))
    handle, name = tempfile.mkstemp(prefix=f"{path.name}-", suffix=".zip")
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as packed:
        for member in members:
            if member.is_file():
                packed.write(member, member.relative_to(path))
    return Path(name)


def _read(content: bytes) -> Document:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ClientError("the answer is not JSON", "Is this the address of `dippm serve`?") from (
            error
        )
    if not isinstance(found, dict):
        raise ClientError("the answer is not a document", "Is this the address of `dippm serve`?")
    return found


def _error_of(response: http.client.HTTPResponse, content: bytes) -> DippmError:
    """Return the error of a response, with its own type if that is one of DIPPM's."""
    try:
        document = json.loads(content)["error"]
        kind, message, hint = (str(document[name]) for name in ("type", "message", "hint"))
    except (ValueError, LookupError, TypeError):
        text = content[:200].decode(errors="replace")
        return ClientError(
            f"{response.status} {response.reason}: {text}",
            "Is this the address of `dippm serve`? A proxy before it may have answered.",
            status=response.status,
        )
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, DippmError):
        return found(message, hint)
    after = response.headers.get("Retry-After", "")
    after_s = float(after) if after.isdecimal() else None
    return ClientError(message, hint, status=response.status, kind=kind, retry_after_s=after_s)
