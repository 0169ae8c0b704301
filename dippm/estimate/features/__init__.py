"""Model graph → tensors: adjacency, node features, static features."""

from dippm.estimate.features.encode import (
    FEATURE_VERSION,
    NODE_FEATURES,
    GraphTensors,
    adjacency,
    collate,
    encode,
    node_features,
    static_features,
    wide_static_features,
)

__all__ = [
    "FEATURE_VERSION",
    "NODE_FEATURES",
    "GraphTensors",
    "adjacency",
    "collate",
    "encode",
    "node_features",
    "static_features",
    "wide_static_features",
]
