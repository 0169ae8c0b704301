"""Architectures for the collector: one parametric family per file.

`dataset.families.registry` builds a model from its name. Nothing here imports more than torch and,
inside functions, the model zoos, so that a bare GPU machine can build everything.
"""
