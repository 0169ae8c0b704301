"""Raw graphs in a folder, read as `ModelGraph`s by key: "timm:resnet50@224", "hf:bert-base@128"."""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path

from dataset.raw_graphs import path_of
from dippm.graph import build
from dippm.graph.model_graph import ModelGraph
from dippm.relax.raw_graph import RawGraph


class GraphStore:
    """A folder that `dataset.raw_graphs` filled; the last few graphs stay in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = lru_cache(maxsize=4)(self._build)

    def __contains__(self, key: str) -> bool:
        return self._path(key).is_file()

    def __getitem__(self, key: str) -> ModelGraph:
        return self._read(key)

    def _path(self, key: str) -> Path:
        return path_of(key, self.folder)

    def _build(self, key: str) -> ModelGraph:
        with gzip.open(self._path(key), "rt", encoding="utf-8") as file:
            return build(RawGraph.from_json(file.read()))
