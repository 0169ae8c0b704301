"""Model graph → tensors: adjacency, node features, static features."""

from dippm.estimate.features.encode import (
    GraphTensors,
    adjacency,
    collate,
    encode,
    node_features,
    static_features,
    wide_static_features,
)
from dippm.estimate.features.feature_spec import FEATURE_VERSION, NODE_FEATURES

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
