"""From a model's file, name or object to its graph."""
