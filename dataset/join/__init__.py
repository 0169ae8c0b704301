"""What both builds share: graphs, keys and totals of models, splits, manifests."""
