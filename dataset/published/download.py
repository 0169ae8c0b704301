"""Files over HTTP: resumed where they were cut, tried again, and checked against their SHA-256."""

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
"""To connect, and between two pieces of an answer."""
CHUNK = 1 << 16
PASSING = (429, 500, 502, 503, 504)
"""Answers after which the same question may be asked again."""


class DownloadError(DippmError, OSError):
    """A file could not be had, or is not the pinned one."""


class Downloader:
    """Brings files from a mirror: an address or a folder with the same paths below.

    Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).
    """

    def __init__(self, mirror: str | Path) -> None:
        self.mirror = mirror
        # Asks again by itself where there is no connection, or an answer that passes.
        retry = Retry(ATTEMPTS, backoff_factor=BACK_OFF_S, status_forcelist=PASSING)
        self.session = requests.Session()
        # A piece of what the server compressed on the way is not a piece of the file.
        self.session.headers["Accept-Encoding"] = "identity"
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(max_retries=retry))

    def bring(
        self, path: str, to: Path, sha256: str = "", told: Callable[[int], None] = lambda _: None
    ) -> Path:
        """Bring one file, unless it is there already.

        Args:
            path: below the mirror.
            to: where to put it; what has come of it stands beside it as ".part" until it is whole.
            sha256: of the file; not checked if empty.
            told: is told of every piece, in bytes.

        Raises:
            DownloadError: if it cannot be had, or is another file.
        """
        if to.is_file() and (not sha256 or sha256_of_file(to) == sha256):
            told(to.stat().st_size)
            return to
        part = to.with_name(f"{to.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.mirror, Path):
            self._copy(self.mirror / path, part, told)
        else:
            self._download(f"{self.mirror.rstrip('/')}/{quote(path)}", part, told)
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

    def _copy(self, source: Path, part: Path, told: Callable[[int], None]) -> None:
        if not source.is_file():
            raise DownloadError(
                f"no file {source}",
                "A mirror has files at OWNER/REPOSITORY/COMMIT/PATH, see `--list --json`.",
            )
        shutil.copyfile(source, part)
        told(part.stat().st_size)

    def _download(self, url: str, part: Path, told: Callable[[int], None]) -> None:
        have = 0
        for attempt in range(ATTEMPTS):
            time.sleep(BACK_OFF_S * (2**attempt - 1))
            try:
                whole = self._append(url, part)
            except requests.RequestException as error:
                raise _not_had(url, error) from error
            except HTTPError as error:  # the connection broke amid the file
                whole, cause = False, error
            now = part.stat().st_size if part.exists() else 0
            told(now - have)
            have = now
            if whole:
                return
        raise _not_had(url, cause) from cause

    def _append(self, url: str, part: Path) -> bool:
        """Fetch what is missing of a file; return whether it is whole now."""
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
                # Whatever has come is written, so that nothing of it is asked for again.
                while piece := answer.raw.read1(CHUNK):
                    file.write(piece)
        return True


def _not_had(url: str, error: BaseException) -> DownloadError:
    """Return the error that names the innermost cause; outer ones print addresses of objects."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return DownloadError(
        f"{url} could not be had: {error or type(error).__name__}",
        "What has come is kept: the same command goes on there. Behind a proxy set HTTPS_PROXY;"
        " without a network use --from with a bundle or a mirror.",
    )
