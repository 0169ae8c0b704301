"""Model graph → tensors: adjacency, node features, static features."""

from dippm.estimate.features.encode import GraphTensors, collate, encode
from dippm.estimate.features.feature_spec import FEATURE_VERSION, NODE_FEATURES
from dippm.estimate.features.node_features import adjacency, node_features
from dippm.estimate.features.static_features import static_features, wide_static_features

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
