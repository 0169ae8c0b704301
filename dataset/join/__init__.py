"""Shared parts of both builds: graphs, keys and totals of models, splits, manifests."""
