"""Raw graphs in the repository: most models of the tables need no conversion.

    python -m dataset.raw_graphs --out GRAPHS         # unpacks these, converts the rest
    python -m dataset.raw_graphs --out EMPTY --ship   # converts all, and writes this file

The file has one line of JSON per model, after a line with the versions of the libraries. Models of
a family are similar, so two thousand lines compress to a few MB. Converting them would take two
cores an hour.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from dataset.join.raw_graphs import path_of, read, write
from dippm.model.relax.raw_graph import RAW_GRAPH_VERSION

SHIPPED = Path(__file__).parents[1] / "graphs" / "models.jsonl.xz"
LIBRARIES = ("torch", "torchvision", "timm", "transformers")
NOT_SHIPPED = ("kernelbench:", "nb101:")
"""Prefixes of models whose graphs are not redistributed, or are made as fast as unpacked."""
GRAPH = ',"graph":'
"""Separator before the graph in a line, which occurs in no JSON string."""


def ship(specs: Iterable[str], folder: Path, path: Path = SHIPPED) -> int:
    """Write the shippable graphs of a folder to the file; return their number.

    Args:
        specs: names of models; those without a graph are skipped.
        folder: folder of raw graphs.
        path: path of the file to write.
    """
    chosen = sorted(
        spec
        for spec in set(specs)
        if not spec.startswith(NOT_SHIPPED) and path_of(spec, folder).is_file()
    )
    head = {"raw_graph_version": RAW_GRAPH_VERSION, "made_with": installed_versions()}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    with lzma.open(unfinished, "wt", preset=6, encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(head) + "\n")
        for spec in chosen:
            graph = read(spec, folder).to_json()
            file.write(f'{{"spec":{json.dumps(spec)}{GRAPH}{graph}}}\n')
    unfinished.replace(path)
    return len(chosen)


def unpack(specs: Iterable[str], folder: Path, path: Path = SHIPPED) -> list[str]:
    """Write the shipped graphs that a folder lacks, and return their specs.

    If the file has another format version, nothing is written.

    Args:
        specs: names of the requested models.
        folder: folder of raw graphs; created if missing.
        path: file written by `ship`.
    """
    wanted = {spec for spec in specs if not path_of(spec, folder).is_file()}
    written: list[str] = []
    if not wanted or not path.is_file():
        return written
    folder.mkdir(parents=True, exist_ok=True)
    for spec, graph in graphs(path):
        if spec in wanted:
            write(spec, graph, folder)
            written.append(spec)
            if len(written) == len(wanted):
                break
    return written


def recorded_versions(path: Path = SHIPPED) -> dict[str, str]:
    """Return the versions of the libraries that made the shipped graphs."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        found: dict[str, str] = json.loads(file.readline())["made_with"]
    return found


def installed_versions() -> dict[str, str]:
    """Return the installed versions of these libraries, without local build labels."""
    return {name: version(name).partition("+")[0] for name in LIBRARIES}


def graphs(path: Path = SHIPPED) -> Iterator[tuple[str, str]]:
    """Yield specs and raw graphs as JSON; none if the file has another format version."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        if json.loads(file.readline())["raw_graph_version"] != RAW_GRAPH_VERSION:
            return
        for line in file:
            head, _, graph = line.rstrip("\n").partition(GRAPH)
            yield json.loads(head + "}")["spec"], graph.removesuffix("}")
