"""A model on many GPUs: an estimate from a prediction for one, and public figures of links."""
