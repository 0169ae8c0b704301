"""Descriptions of the data: the datasheet and the Croissant document, both generated."""
