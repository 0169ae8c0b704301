"""Raw graphs in a folder, read as `ModelGraph`s by key: "timm:resnet50@224", "hf:bert-base@128"."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dataset.join import raw_graphs
from dippm.model.graph import build
from dippm.model.graph.model_graph import ModelGraph


class GraphStore:
    """A folder written by `dataset.raw_graphs`, with the most recent graphs in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = lru_cache(maxsize=4)(self._build)

    def __contains__(self, key: str) -> bool:
        return raw_graphs.path_of(key, self.folder).is_file()

    def refused(self, key: str) -> bool:
        """Return whether a conversion was tried and failed with a reason."""
        return raw_graphs.error_path_of(key, self.folder).is_file()

    def __getitem__(self, key: str) -> ModelGraph:
        return self._read(key)

    def _build(self, key: str) -> ModelGraph:
        return build(raw_graphs.read(key, self.folder))
