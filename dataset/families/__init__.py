"""Architectures that the collector measures: one parametric family per file.

A name is made into a model by `dataset.families.registry`. Nothing here imports more than torch
and, inside functions, the model zoos, so that a bare GPU machine can build everything.
"""
