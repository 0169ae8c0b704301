"""The Croissant description of our committed sets, generated from columns and files.

    python -m dataset.croissant --write        # dataset/croissant.json
    python -m dataset.croissant --check        # fails if the file is not what would be written

Croissant is JSON-LD that data set catalogues and loaders read: files with their SHA-256, and the
columns with type and meaning (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dataset.cards.generated import write_or_check
from dataset.collected.rows import DATA, folders
from dippm import __version__
from dippm.errors import DippmError
from dippm.measure.collected.rows import collected
from dippm.measure.columns import COLUMNS, KERNEL, Column

DATASET = DATA.parent
FILE = DATASET / "croissant.json"
LICENCE_URL = "https://creativecommons.org/licenses/by/4.0/"
CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
TYPES = {
    "text": "sc:Text",
    "texts": "sc:Text",
    "integer": "sc:Integer",
    "integers": "sc:Integer",
    "real": "sc:Float",
    "reals": "sc:Float",
    "flag": "sc:Boolean",
    "json": "sc:Text",
}
REPEATED = ("texts", "integers", "reals")
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def describe(data: Path = DATA, base: Path = FILE.parent) -> dict[str, Any]:
    """Return the Croissant document of the sets in a folder.

    Args:
        data: folder with one subfolder per device.
        base: folder of the document; files are named relative to it.

    Raises:
        DippmError: if a set has shards that are not Parquet.
    """
    sets = folders(data)
    other = [str(path) for f in sets for path in sorted(f.glob("shard-*.jsonl.gz"))]
    if other:
        raise DippmError(
            f"not Parquet: {', '.join(other)}", "Run `python -m dataset.collect pack DIR` first."
        )
    rows = [path for f in sets for path in sorted(f.glob("shard-*.parquet"))]
    kernels = [path for f in sets for path in sorted(f.glob("kernels-*.parquet"))]
    days = [str(d)[:10] for f in sets for d in collected(f).rows["measured_at"].dropna()]
    document = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": "dippm-own",
        "description": "Latency, energy and memory of generated and well-known neural network "
        "architectures, measured configuration by configuration, failures included. One folder "
        "for each device; dataset/README.md is the datasheet.",
        "conformsTo": CONFORMS_TO,
        "license": LICENCE_URL,
        "citeAs": "The DIPPM authors: DIPPM, measurements of our own. See CITATION.cff.",
        "creator": {"@type": "sc:Organization", "name": "The DIPPM authors"},
        "keywords": ["deep learning", "performance", "latency", "energy", "memory"],
        "version": __version__,
        "isLiveDataset": True,
        "distribution": [
            *(file_object(path, base, "Measured rows") for path in rows),
            *(file_object(path, base, "Kernels of the measured rows") for path in kernels),
        ],
        "recordSet": [*map(_rows, rows), *map(_kernels, kernels)],
    }
    return {**document, "datePublished": max(days)} if days else document


def file_object(path: Path, base: Path, what: str) -> dict[str, Any]:
    """Return a file of a distribution, named by its folder and file name.

    Args:
        path: path of the file.
        base: folder of the document.
        what: description of its content.
    """
    relative = path.relative_to(base).as_posix()
    return {
        "@type": "cr:FileObject",
        "@id": _id(path),
        "name": _id(path),
        "description": f"{what}, {path.parent.name}.",
        "contentUrl": relative,
        "contentSize": f"{path.stat().st_size} B",
        "encodingFormat": "application/x-parquet",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def _rows(path: Path) -> dict[str, Any]:
    from pyarrow.parquet import read_schema

    names = set(read_schema(path).names)  # a file of an older schema lacks newer columns
    name = f"rows:{_id(path)}"
    return {
        **record_set(name, path, [column for column in COLUMNS if column.name in names]),
        "description": "One configuration measured once, or why it could not be.",
        "key": {"@id": f"{name}/row_id"},
    }


def _kernels(path: Path) -> dict[str, Any]:
    return {
        **record_set(f"kernels:{_id(path)}", path, KERNEL),
        "description": "One kernel of a profiled step; row_id is that of its measured row.",
    }


def record_set(name: str, path: Path, columns: Iterable[Column]) -> dict[str, Any]:
    """Return the columns of a file.

    Args:
        name: name of the record set.
        path: path of the file, as given to `file_object`.
        columns: columns with type and meaning.
    """
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "field": [_field(column, name, _id(path)) for column in columns],
    }


def _field(column: Column, records: str, file: str) -> dict[str, Any]:
    text = column.about + (" (JSON)" if column.kind == "json" else "")
    return {
        "@type": "cr:Field",
        "@id": f"{records}/{column.name}",
        "name": f"{records}/{column.name}",
        "description": text,
        "dataType": TYPES[column.kind],
        **({"repeated": True} if column.kind in REPEATED else {}),
        "source": {"fileObject": {"@id": file}, "extract": {"column": column.name}},
    }


def _id(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def text_of(document: dict[str, Any]) -> str:
    """Return the text of the document."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the Croissant file, or check that it is up to date."""
    write_or_check(
        FILE, lambda: text_of(describe()), command="python -m dataset.croissant", about=main.__doc__
    )
