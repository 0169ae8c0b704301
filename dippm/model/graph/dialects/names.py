"""Operator names that need no look at attributes: dialect's name → canonical name.

A key is the operator's name without dialect prefix, in lower case and without underscores
("nn.leakyrelu", "aten.leaky_relu" and "onnx.LeakyRelu" are all "leakyrelu"); a key with its
dialect ("tf.sub") wins over the bare one. The spellings are in the operator table; operators whose
canonical form depends on attributes also have a reader, see `readers`.
"""

from __future__ import annotations

from dippm.model.graph.operators import OPERATORS

_BY_DIALECT = {
    "image.gridsample": "grid_sample",
    "onnx.max": "maximum",
    "onnx.min": "minimum",
}
"""Names that mean something else in one dialect than in the others."""


def fold_name(name: str) -> str:
    """Return a name in lower case and without underscores."""
    return name.replace("_", "").lower()


NAMES: dict[str, str] = {
    **{fold_name(name): name for name in OPERATORS},
    **{spelling: row.name for row in OPERATORS.values() for spelling in row.spellings},
    **_BY_DIALECT,
}
"""Canonical name by folded dialect name."""

_IDENTITIES = """
    identity dropout featuredropout alphadropout featurealphadropout stopgradient detach alias
    contiguous clone lift liftfresh liftfreshcopy nativedropout makegraphidentity
    checknumerics ensureshape preventgradient identityn snapshot wrapparam hintondevice
    assertmetadata requiresgrad resolveconj resolveneg conj conjphysical
"""

IDENTITIES = frozenset(_IDENTITIES.split())
"""Folded names of operators that compute nothing at inference."""


def split_name(name: str) -> tuple[str, str]:
    """Return (dialect, bare name), both folded."""
    dialect, _, bare = name.rpartition(".")
    return dialect.lower(), fold_name(bare)


def canonical_name(dialect: str, bare: str) -> str | None:
    """Return the canonical name for a folded name; None if the table has none."""
    return NAMES.get(f"{dialect}.{bare}", NAMES.get(bare))
