"""Training data → checkpoint; not installed."""
