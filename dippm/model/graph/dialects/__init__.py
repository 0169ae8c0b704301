"""Readers of the importers' dialects: operators as each spells them → canonical operators."""

from __future__ import annotations

from dippm.model.graph.dialects.reader import is_read, read

__all__ = ["is_read", "read"]
