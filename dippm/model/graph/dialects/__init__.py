"""How each importer spells operators, and what that means in canonical terms."""

from __future__ import annotations

from dippm.model.graph.dialects.reader import read

__all__ = ["read"]
