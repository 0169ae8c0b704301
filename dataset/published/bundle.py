"""The tables whose licences allow redistribution, in one file with credits.

A plain tar, byte for byte the same for the same tables on every machine: the tables are compressed
already, and no compressor guarantees its output. It contains NOTICE, bundle.json, and each table at
SOURCE/FILE.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dataset.join.manifest import sha256_of_file
from dataset.published.download import DownloadError
from dataset.published.registry import PublishedSource
from dippm.errors import DippmError

SCHEMA = 1
NOTICE, MANIFEST = "NOTICE", "bundle.json"
APACHE = Path(__file__).resolve().parents[2] / "LICENSE"
MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
ReadTable = Callable[[str], bytes]
"""Function from SOURCE/FILE to its bytes; raises KeyError for an unknown table."""


def pack(sources: Sequence[PublishedSource], data: Path, out: Path) -> None:
    """Write the tables of these sources, from `data`, into one file, atomically."""
    tables = {
        f"{source.name}/{table.file}": data / source.name / table.file
        for source in sources
        for table in source.tables
    }
    manifest = {
        "schema": SCHEMA,
        "sources": [
            {
                "name": source.name,
                "about": source.about,
                "repository": f"https://github.com/{source.repository}",
                "commit": source.commit or None,
                "licence": source.licence,
                "copyright": source.copyright,
            }
            for source in sources
        ],
        "tables": {name: sha256_of_file(path) for name, path in tables.items()},
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    contents = {NOTICE: notice(sources).encode(), MANIFEST: text.encode()}
    part = out.with_name(f"{out.name}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in [NOTICE, MANIFEST, *sorted(tables)]:
            content = contents[name] if name in contents else tables[name].read_bytes()
            member = tarfile.TarInfo(name)  # without time, owner and permissions
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    part.replace(out)


def notice(sources: Sequence[PublishedSource]) -> str:
    """Return the credits of the measurements, and their licences."""
    preface = (
        "Tables of measurements, made of files that these projects published. Rows and columns\n"
        "were chosen, renamed and joined; no value was changed but by rounding and units.\n"
    )
    apache = APACHE.read_text(encoding="utf-8").strip("\n")
    return f"{preface}\n{credits_of(sources)}\nMIT\n\n{MIT}\nApache-2.0\n\n{apache}\n"


def credits_of(sources: Sequence[PublishedSource]) -> str:
    """Return a paragraph per source: description, address and copyright."""
    return "\n".join(
        f"{source.name}: {source.about}\n"
        f"  https://github.com/{source.repository}"
        + (f" at {source.commit}\n" if source.commit else "\n")
        + f"  {source.copyright}\n  {source.licence}\n"
        for source in sources
    )


def open_bundle(path: Path) -> ReadTable:
    """Return a reader of the tables in a bundle, or in a folder with the same files.

    Raises:
        DownloadError: if it is not a bundle, or a table differs from the packed one.
    """
    if path.is_dir():
        return lambda name: _bytes_of(path / name)
    try:
        tar = tarfile.open(path)  # noqa: SIM115  # read as long as the function lives
        members = {member.name: member for member in tar.getmembers() if member.isfile()}
        hashes = json.loads(tar.extractfile(members[MANIFEST]).read())["tables"]  # type: ignore[union-attr]
    except (tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise DownloadError(
            f"{path} is no bundle of tables: {error}",
            "`python -m dataset.bundle` writes one; a mirror is a folder or an address.",
        ) from error

    def read(name: str) -> bytes:
        content: bytes = tar.extractfile(members[name]).read()  # type: ignore[union-attr]
        if hashlib.sha256(content).hexdigest() != hashes.get(name):
            raise DownloadError(f"{name} in {path} is damaged", "Get the bundle again.")
        return content

    return read


def _bytes_of(path: Path) -> bytes:
    if not path.is_file():
        raise KeyError(str(path))
    return path.read_bytes()


class NotPackedError(DippmError, ValueError):
    """A table may not be redistributed, is missing, or has other contents."""
