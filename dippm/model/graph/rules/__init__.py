"""The canonical rules, in the order in which they run.

Each rule is a function that changes a draft in place. It looks at structure, shapes and dtypes
only, and is tested by itself with graphs before and after.
"""

from __future__ import annotations

from collections.abc import Callable

from dippm.model.graph.draft import Draft
from dippm.model.graph.rules.activations import (
    join_exported_activations,
    name_activations,
    write_in_place,
)
from dippm.model.graph.rules.affine import fold_affine
from dippm.model.graph.rules.attention import (
    copy_packed_projections,
    join_attention,
    join_exported_attention,
    recognise_attention,
)
from dippm.model.graph.rules.layout import drop_identities, drop_neutral, settle_layout
from dippm.model.graph.rules.norms import join_exported_norms, recognise_norms
from dippm.model.graph.rules.pools import join_pads, unify_pools
from dippm.model.graph.rules.products import join_biases, name_integer_products, name_products
from dippm.model.graph.rules.prune import merge_duplicates, prune
from dippm.model.graph.rules.recurrent import settle_recurrent

Rule = Callable[[Draft], None]

RULES: tuple[Rule, ...] = (
    prune,
    drop_identities,
    name_products,
    settle_layout,
    settle_recurrent,
    drop_identities,
    unify_pools,
    name_activations,
    recognise_norms,
    fold_affine,
    name_integer_products,
    recognise_attention,
    drop_identities,
    merge_duplicates,
    prune,
)

COMPOSITES: tuple[Rule, ...] = (
    drop_neutral,
    join_pads,
    name_activations,
    recognise_norms,
    join_attention,
    join_biases,
    write_in_place,
)
"""Rules for the calls of a file whose format spells out what PyTorch does in one call."""
EXPORTED_COMPOSITES: tuple[Rule, ...] = (
    join_exported_activations,
    join_exported_norms,
    join_exported_attention,
    copy_packed_projections,
    write_in_place,
)
"""The same for what PyTorch's exporters write, so that what a model itself spells out remains."""

__all__ = ["COMPOSITES", "EXPORTED_COMPOSITES", "RULES", "Rule"]
