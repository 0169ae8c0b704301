"""A model's file, name or object becomes a graph."""
