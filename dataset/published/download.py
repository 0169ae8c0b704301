"""Files over HTTP: resumed after an interruption, retried, and checked against their SHA-256."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from dataset.join.manifest import sha256_of_file
from dippm.errors import DippmError

ATTEMPTS = 5
BACK_OFF_S = 0.5
TIMEOUT_S = (10, 60)
"""Limits on connecting, and between two pieces of an answer."""
CHUNK = 1 << 16
PASSING = (429, 500, 502, 503, 504)
"""Temporary HTTP errors, after which a request is repeated."""


class DownloadError(DippmError, OSError):
    """A file is not available, or differs from the pinned one."""


class Downloader:
    """Fetches files from a mirror: an address or a folder with the same paths below.

    Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).
    """

    def __init__(self, mirror: str | Path) -> None:
        self.mirror = mirror
        # Retries by itself without a connection, or after a temporary error.
        retry = Retry(ATTEMPTS, backoff_factor=BACK_OFF_S, status_forcelist=PASSING)
        self.session = requests.Session()
        # Part of a response compressed in transit is not part of the file.
        self.session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(max_retries=retry))

    def bring(
        self,
        path: str,
        to: Path,
        sha256: str = "",
        report_bytes: Callable[[int], None] = lambda _: None,
    ) -> Path:
        """Fetch one file, unless it exists already.

        Args:
            path: path below the mirror.
            to: path to write; an incomplete file is kept next to it as ".part".
            sha256: SHA-256 of the file; not checked if empty.
            report_bytes: called with the size of every piece, in bytes.

        Raises:
            DownloadError: if it is not available, or differs from `sha256`.
        """
        if to.is_file() and (not sha256 or sha256_of_file(to) == sha256):
            report_bytes(to.stat().st_size)
            return to
        part = to.with_name(f"{to.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.mirror, Path):
            self._copy(self.mirror / path, part, report_bytes)
        else:
            self._download(f"{self.mirror.rstrip('/')}/{quote(path)}", part, report_bytes)
        found = sha256_of_file(part)
        if sha256 and found != sha256:
            part.unlink()
            raise DownloadError(
                f"{path} of {self.mirror} is not the pinned file: its SHA-256 is {found},"
                f" not {sha256}",
                "Nothing of it was kept. Try again; if it stays so, the mirror or what lies between"
                " changes files: use another with --from.",
            )
        os.replace(part, to)
        return to

    def _copy(self, source: Path, part: Path, report_bytes: Callable[[int], None]) -> None:
        if not source.is_file():
            raise DownloadError(
                f"no file {source}",
                "A mirror has files at OWNER/REPOSITORY/COMMIT/PATH, see `--list --json`.",
            )
        shutil.copyfile(source, part)
        report_bytes(part.stat().st_size)

    def _download(self, url: str, part: Path, report_bytes: Callable[[int], None]) -> None:
        have = 0
        for attempt in range(ATTEMPTS):
            time.sleep(BACK_OFF_S * (2**attempt - 1))
            try:
                whole = self._append(url, part)
            except requests.RequestException as error:
                raise _not_had(url, error) from error
            except HTTPError as error:  # the connection broke within the file
                whole, cause = False, error
            now = part.stat().st_size if part.exists() else 0
            report_bytes(now - have)
            have = now
            if whole:
                return
        raise _not_had(url, cause) from cause

    def _append(self, url: str, part: Path) -> bool:
        """Fetch the missing part of a file; return whether it is complete now."""
        have = part.stat().st_size if part.exists() else 0
        asked = {"Range": f"bytes={have}-"} if have else {}
        with self.session.get(url, headers=asked, stream=True, timeout=TIMEOUT_S) as answer:
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                if answer.headers.get("Content-Range") == f"bytes */{have}":
                    return True
                part.unlink()
                raise HTTPError("what had come is longer than the file")
            if not answer.ok:
                raise DownloadError(
                    f"{url} could not be had: the server says {answer.status_code} {answer.reason}",
                    "It was moved or withdrawn, or is not for everyone: use --from with a bundle or"
                    " another mirror.",
                )
            resumed = answer.status_code == HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if resumed else "wb") as file:
                # Everything received is written, so that it is not requested again.
                while piece := answer.raw.read1(CHUNK):
                    file.write(piece)
        return True


def _not_had(url: str, error: BaseException) -> DownloadError:
    """Return an error that names the innermost cause; outer ones contain object addresses."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return DownloadError(
        f"{url} could not be had: {error or type(error).__name__}",
        "What has come is kept: the same command goes on there. Behind a proxy set HTTPS_PROXY;"
        " without a network use --from with a bundle or a mirror.",
    )
